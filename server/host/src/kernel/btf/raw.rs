//! Byte layout of BTF: the header, and the length of each type (include/uapi/linux/btf.h; unchanged
//! since 4.18 but for new kinds).
//!
//! Owns finding where each section and type begins and ends. Never follows a reference.

use std::ops::Range;

use super::{BtfError, TypeId};
use crate::little_endian::{u16_at, u32_at};

const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;

/// Bytes of the header that every version has: magic, version, flags, header length, and place and
/// length of both sections.
const HEADER_BYTES: usize = 24;

/// Bytes that every type begins with: name, kind and count, size or type.
pub(super) const TYPE_BYTES: usize = 12;

/// The sections of a file.
#[derive(Debug, Default)]
pub(super) struct Sections {
    pub(super) types: Range<usize>,
    pub(super) strings: Range<usize>,
}

impl Sections {
    /// Reads the header. The byte order is that of x86-64.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, BtfError> {
        let refused = |message: String| Err(BtfError::NoSections(message));
        let Some(header) = bytes.get(..HEADER_BYTES) else {
            return refused(format!("not BTF: {} bytes are shorter than the header", bytes.len()));
        };
        let found = u16_at(header, 0).unwrap_or_default();
        if found != MAGIC {
            return refused(format!("not BTF: the magic is {found:#06x}, not {MAGIC:#06x}"));
        }
        let version = header.get(2).copied().unwrap_or_default();
        if version != VERSION {
            return refused(format!("BTF version {version} is not supported, only version {VERSION}"));
        }
        let number = |offset| u32_at(header, offset).unwrap_or_default();
        let header_bytes = number(4);
        let section = |section: &str, offset: u32, length: u32| {
            let start = u64::from(header_bytes) + u64::from(offset);
            let end = start + u64::from(length);
            let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
            range
                .filter(|(start, end)| *start >= HEADER_BYTES && *end <= bytes.len())
                .map(|(start, end)| start..end)
                .ok_or_else(|| {
                    let message = format!(
                        "the {section} section of {length} bytes at offset {start} does not fit the file"
                    );
                    BtfError::NoSections(message)
                })
        };
        let sections = Self {
            types: section("type", number(8), number(12))?,
            strings: section("string", number(16), number(20))?,
        };
        let strings = bytes.get(sections.strings.clone()).unwrap_or_default();
        // A module may have no names of its own.
        if strings.last().is_some_and(|last| *last != 0) {
            let start = sections.strings.start;
            return refused(format!("the string section at offset {start} does not end with NUL"));
        }
        Ok(sections)
    }
}

/// The three numbers that every type begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// Offset of its name in the strings.
    pub(super) name: u32,
    /// Number of its kind.
    pub(super) kind: u8,
    /// How many members, parameters or values follow.
    pub(super) count: u16,
    /// The flag: a structure with bit-fields, a signed enumeration, a forward declaration of a
    /// union.
    pub(super) flag: bool,
    /// Its size in bytes, or the type that it refers to.
    pub(super) size_or_type: u32,
}

impl Head {
    pub(super) fn read(bytes: &[u8], offset: usize) -> Option<Self> {
        let info = u32_at(bytes, offset.checked_add(4)?)?;
        let [low, high, _, kind] = info.to_le_bytes();
        Some(Self {
            name: u32_at(bytes, offset)?,
            kind: kind & 0x1f,
            count: u16::from_le_bytes([low, high]),
            flag: kind & 0x80 != 0,
            size_or_type: u32_at(bytes, offset.checked_add(8)?)?,
        })
    }

    /// Bytes that follow these, or `None` for a kind that is not known.
    pub(super) fn tail_bytes(self) -> Option<usize> {
        let count = usize::from(self.count);
        Some(match self.kind {
            kind::INT | kind::VARIABLE | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            kind::STRUCT | kind::UNION | kind::SECTION | kind::ENUM64 => 12 * count,
            kind::ENUM | kind::PROTOTYPE => 8 * count,
            kind::POINTER..=kind::FUNCTION | kind::FLOAT | kind::TYPE_TAG => 0,
            _ => return None,
        })
    }
}

/// Numbers of the kinds (`BTF_KIND_*`).
pub(super) mod kind {
    pub(in super::super) const INT: u8 = 1;
    pub(in super::super) const POINTER: u8 = 2;
    pub(in super::super) const ARRAY: u8 = 3;
    pub(in super::super) const STRUCT: u8 = 4;
    pub(in super::super) const UNION: u8 = 5;
    pub(in super::super) const ENUM: u8 = 6;
    pub(in super::super) const FORWARD: u8 = 7;
    pub(in super::super) const TYPEDEF: u8 = 8;
    pub(in super::super) const VOLATILE: u8 = 9;
    pub(in super::super) const CONST: u8 = 10;
    pub(in super::super) const RESTRICT: u8 = 11;
    pub(in super::super) const FUNCTION: u8 = 12;
    pub(in super::super) const PROTOTYPE: u8 = 13;
    pub(in super::super) const VARIABLE: u8 = 14;
    pub(in super::super) const SECTION: u8 = 15;
    pub(in super::super) const FLOAT: u8 = 16;
    pub(in super::super) const DECL_TAG: u8 = 17;
    pub(in super::super) const TYPE_TAG: u8 = 18;
    pub(in super::super) const ENUM64: u8 = 19;
}

/// Where each type begins, in the order of their ids; `first` is the id of the first of them.
pub(super) fn type_offsets(bytes: &[u8], types: &Range<usize>, first: u32) -> Result<Vec<u32>, BtfError> {
    let section = bytes.get(..types.end).unwrap_or_default();
    let mut offsets = Vec::new();
    let mut offset = types.start;
    while offset < types.end {
        let id = u32::try_from(offsets.len()).ok().and_then(|index| first.checked_add(index));
        let id = TypeId(id.ok_or(BtfError::TooLarge)?);
        let head = Head::read(section, offset).ok_or(BtfError::CutOff { id, offset })?;
        let tail = head.tail_bytes().ok_or(BtfError::UnknownKind { id, offset, kind: head.kind })?;
        let end = offset + TYPE_BYTES + tail;
        if end > types.end {
            return Err(BtfError::CutOff { id, offset });
        }
        offsets.push(u32::try_from(offset).map_err(|_too_large| BtfError::TooLarge)?);
        offset = end;
    }
    offsets.shrink_to_fit();
    Ok(offsets)
}
