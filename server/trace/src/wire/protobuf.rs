//! Protobuf writer: the few pieces of the wire format that a batch needs.
//!
//! A nested message begins with a length of fixed width, which is filled in when the message is
//! complete: a varint may have more bytes than it needs, so that the writer need not measure a
//! message before it writes it. Owns the encoding of fields, and never their meaning.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use bytes::{BufMut as _, BytesMut};

/// Wire types (protobuf encoding, "Message structure").
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH_DELIMITED: u32 = 2;

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
