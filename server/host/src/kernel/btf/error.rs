//! Errors in BTF: malformed bytes, and types that contradict each other.

use super::TypeId;

/// Bytes that are not BTF, or BTF that contradicts itself. Offsets count from the beginning of the
/// file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// Shorter than a header.
    #[error("not BTF: {bytes} bytes are shorter than the header")]
    NoHeader {
        /// How many there are.
        bytes: usize,
    },
    /// The first two bytes are others.
    #[error("not BTF: the magic is {found:#06x}, not 0xeb9f")]
    BadMagic {
        /// They, as a number.
        found: u16,
    },
    /// A version that is not known.
    #[error("BTF version {found} is not supported, only version 1")]
    BadVersion {
        /// The version.
        found: u8,
    },
    /// A section that reaches beyond the file, or has an impossible place.
    #[error("the {section} section of {bytes} bytes at offset {offset} does not fit the file")]
    BadSection {
        /// `type` or `string`.
        section: &'static str,
        /// Where the header says that it is.
        offset: u64,
        /// How long the header says that it is.
        bytes: u32,
    },
    /// The string section does not begin and end with a NUL.
    #[error("the string section at offset {offset} does not end with NUL")]
    UnclosedStrings {
        /// Where it is.
        offset: usize,
    },
    /// A type that ends after the type section.
    #[error("type {id} at offset {offset} is cut off")]
    CutOff {
        /// The type.
        id: TypeId,
        /// Where it begins.
        offset: usize,
    },
    /// A kind that is not known. What follows it cannot be read: its length is not known either.
    #[error("type {id} at offset {offset} has the unknown kind {kind}")]
    UnknownKind {
        /// The type.
        id: TypeId,
        /// Where it begins.
        offset: usize,
        /// Its kind.
        kind: u8,
    },
    /// More types or strings than an id can count.
    #[error("more types than can be counted")]
    TooLarge,
    /// A reference to a type that does not exist.
    #[error("there is no type {id}")]
    NoSuchType {
        /// The id.
        id: TypeId,
    },
    /// A reference to a string that does not exist or is not UTF-8.
    #[error("there is no name at offset {offset} of the strings")]
    NoSuchName {
        /// The offset, in the strings of the kernel and of the module together.
        offset: u32,
    },
    /// Types that refer to each other in a circle, or deeper than in any C program.
    #[error("type {id} is nested too deeply")]
    TooDeep {
        /// The type at which the limit was reached.
        id: TypeId,
    },
    /// A type whose C text is longer than any that a C program has.
    #[error("the text of type {id} has more than {max_bytes} bytes")]
    TooLong {
        /// The type at which the limit was reached.
        id: TypeId,
        /// Most bytes that are written.
        max_bytes: usize,
    },
    /// A type of another kind than the one that refers to it needs.
    #[error("type {id} is not {wanted}")]
    WrongKind {
        /// The type.
        id: TypeId,
        /// The kind that is needed.
        wanted: &'static str,
    },
}
