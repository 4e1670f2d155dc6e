//! Errors in BTF: malformed bytes, and types that contradict each other.

use super::TypeId;

/// Bytes that are not BTF, or BTF that contradicts itself. Offsets count from the beginning of the
/// file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// Bytes without a good header, or without the sections that it names.
    #[error("{0}")]
    NoSections(String),
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
