//! Protobuf: the few pieces of the wire format that a batch needs.
//!
//! A nested message begins with a length of fixed width, which is filled in when the message is
//! complete: a varint may have more bytes than it needs, so that the writer need not measure a
//! message before it writes it. Reading only finds fields, and trusts no byte. Owns the encoding of
//! fields, and never their meaning.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::ops::Range;

use bytes::{BufMut as _, BytesMut};

/// Wire types (protobuf encoding, "Message structure").
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH_DELIMITED: u32 = 2;
const FIXED32: u32 = 5;

/// Bytes of the length of a nested message: 28 bits are far more than the largest batch needs.
const LENGTH_BYTES: usize = 4;

/// A nested message that is being written.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Nested {
    length_at: usize,
}

/// Appends fields to a buffer.
#[derive(Debug)]
pub(super) struct Writer<'a>(pub(super) &'a mut BytesMut);

impl Writer<'_> {
    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.put_u8(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.put_u8(value.to_le_bytes()[0]);
    }

    fn key(&mut self, field: u32, wire_type: u32) {
        self.raw_varint(u64::from(field << 3 | wire_type));
    }

    /// An integer; nothing for 0, which is the value of an absent field.
    pub(super) fn varint(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.key(field, VARINT);
            self.raw_varint(value);
        }
    }

    /// A `sint64`.
    pub(super) fn zigzag(&mut self, field: u32, value: i64) {
        self.varint(field, (value << 1 ^ value >> 63).cast_unsigned());
    }

    /// A `fixed64`.
    pub(super) fn fixed64(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.key(field, FIXED64);
            self.0.put_u64_le(value);
        }
    }

    /// Bytes; nothing for none.
    pub(super) fn bytes(&mut self, field: u32, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.key(field, LENGTH_DELIMITED);
            self.raw_varint(bytes.len() as u64);
            self.0.extend_from_slice(bytes);
        }
    }

    /// Room for this many bytes of a field, zeroed, for the caller to fill.
    pub(super) fn room(&mut self, field: u32, bytes: usize) -> &mut [u8] {
        self.key(field, LENGTH_DELIMITED);
        self.raw_varint(bytes as u64);
        let start = self.0.len();
        self.0.resize(start.saturating_add(bytes), 0);
        self.0.get_mut(start..).unwrap_or_default()
    }

    /// Begins a nested message.
    pub(super) fn begin(&mut self, field: u32) -> Nested {
        self.key(field, LENGTH_DELIMITED);
        let length_at = self.0.len();
        self.0.put_bytes(0, LENGTH_BYTES);
        Nested { length_at }
    }

    /// Ends a nested message, and fills in its length.
    pub(super) fn end(&mut self, nested: Nested) {
        let start = nested.length_at.saturating_add(LENGTH_BYTES);
        let length = self.0.len().saturating_sub(start);
        let Some(room) = self.0.get_mut(nested.length_at..start) else { return };
        for (index, byte) in room.iter_mut().enumerate() {
            let bits = (length >> index.saturating_mul(7)).to_le_bytes()[0] & 0x7f;
            let more = if index == LENGTH_BYTES.saturating_sub(1) { 0 } else { 0x80 };
            *byte = bits | more;
        }
    }
}

/// A field of an encoded message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// Its number.
    pub(super) number: u32,
    /// Its value, if it is a varint; 0 otherwise.
    pub(super) varint: u64,
    /// Where it is, with its key.
    pub(super) whole: Range<usize>,
    /// Where the content of a nested message is, or of bytes.
    pub(super) content: Range<usize>,
}

/// The fields of the message that is at this place of the bytes. `None` in place of the first that
/// is not valid, and then no more.
pub(super) fn fields(bytes: &[u8], within: Range<usize>) -> impl Iterator<Item = Option<Field>> {
    let mut at = within.start;
    std::iter::from_fn(move || {
        let rest = bytes.get(at..within.end).filter(|rest| !rest.is_empty())?;
        let field = field(rest, at);
        at = field.as_ref().map_or(within.end, |field| field.whole.end);
        Some(field)
    })
}

/// The field that these bytes begin with, which are at `at` of the message.
fn field(bytes: &[u8], at: usize) -> Option<Field> {
    let mut rest = bytes;
    let key = varint(&mut rest)?;
    let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
    let (mut value, mut length) = (0, 0);
    match u32::try_from(key & 7).ok()? {
        VARINT => value = varint(&mut rest)?,
        FIXED64 => length = 8,
        FIXED32 => length = 4,
        LENGTH_DELIMITED => length = usize::try_from(varint(&mut rest)?).ok()?,
        _ => return None,
    }
    let behind = rest.get(length..)?;
    let place = |rest: &[u8]| at.checked_add(bytes.len().checked_sub(rest.len())?);
    let (start, end) = (place(rest)?, place(behind)?);
    Some(Field { number, varint: value, whole: at..end, content: start..end })
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
