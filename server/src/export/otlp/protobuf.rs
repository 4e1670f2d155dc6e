//! A protobuf writer that writes fields straight into one buffer.
//!
//! Owns the wire format (protobuf.dev, "Encoding"). Never decides what a message contains. Own code
//! because it is faster than the generated classes (prost), which allocate for each name and each
//! value and compute the length of a message again for every message around it. The length of a
//! message stands before it and is known only after it, so one byte is kept for it, and a message
//! of 128 bytes or more is moved by the bytes that its length takes beyond that.

const VARINT: u8 = 0;
const I64: u8 = 1;
const LEN: u8 = 2;

/// Most bytes of a number.
const MOST: usize = 10;

/// Messages as bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Protobuf(Vec<u8>);

impl From<Vec<u8>> for Protobuf {
    /// Continues with bytes that were written before.
    fn from(written: Vec<u8>) -> Self {
        Self(written)
    }
}

impl Protobuf {
    /// Nothing yet, in a buffer that was used before.
    pub(super) fn within(mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        Self(buffer)
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Fields that were written elsewhere.
    pub(super) fn fields(&mut self, fields: &Self) {
        self.0.extend_from_slice(&fields.0);
    }

    /// `uint64`, `uint32`, an enum.
    #[inline]
    pub(super) fn unsigned(&mut self, field: u8, value: u64) {
        self.key(field, VARINT);
        self.varint(value);
    }

    /// `int64`, `int32`.
    #[inline]
    pub(super) fn signed(&mut self, field: u8, value: i64) {
        self.unsigned(field, value.cast_unsigned());
    }

    /// `bool`.
    #[inline]
    pub(super) fn bool(&mut self, field: u8, value: bool) {
        self.unsigned(field, value.into());
    }

    /// `fixed64`.
    #[inline]
    pub(super) fn fixed64(&mut self, field: u8, value: u64) {
        self.key(field, I64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// `bytes`, `string`, or a message that was written elsewhere.
    #[inline]
    pub(super) fn bytes(&mut self, field: u8, bytes: &[u8]) {
        self.key(field, LEN);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// A message, written by `write`.
    #[inline]
    pub(super) fn message(&mut self, field: u8, write: impl FnOnce(&mut Self)) {
        self.key(field, LEN);
        let at = self.0.len();
        self.0.push(0);
        write(self);
        let length = self.0.len() - at - 1;
        match (u8::try_from(length), self.0.get_mut(at)) {
            (Ok(short @ 0..0x80), Some(kept)) => *kept = short,
            _ => self.set_length(at, length),
        }
    }

    /// Key and length of a message of so many bytes that is written elsewhere.
    pub(super) fn begin_message(&mut self, field: u8, length: usize) {
        self.key(field, LEN);
        self.varint(length as u64);
    }

    /// Writes a length into the byte that was kept for it.
    fn set_length(&mut self, at: usize, length: usize) {
        let mut number = Self(Vec::with_capacity(MOST));
        number.varint(length as u64);
        self.0.splice(at..=at, number.0);
    }

    /// Numbers of fields are below 16 everywhere here: their keys are one byte.
    #[inline]
    fn key(&mut self, field: u8, wire_type: u8) {
        debug_assert!((1..16).contains(&field), "{field}");
        self.0.push(field << 3 | wire_type);
    }

    #[inline]
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(lowest(value) | 0x80);
            value >>= 7;
        }
        self.0.push(lowest(value));
    }
}

/// The lowest eight bits.
const fn lowest(value: u64) -> u8 {
    value.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Sample {
        #[prost(uint64, optional, tag = "1")]
        unsigned: Option<u64>,
        #[prost(int64, optional, tag = "2")]
        signed: Option<i64>,
        #[prost(bool, optional, tag = "3")]
        flag: Option<bool>,
        #[prost(fixed64, optional, tag = "4")]
        fixed: Option<u64>,
        #[prost(bytes = "vec", optional, tag = "5")]
        bytes: Option<Vec<u8>>,
        #[prost(message, repeated, tag = "15")]
        inner: Vec<Sample>,
    }

    fn write(sample: &Sample, out: &mut Protobuf) {
        out.unsigned(1, sample.unsigned.unwrap());
        out.signed(2, sample.signed.unwrap());
        out.bool(3, sample.flag.unwrap());
        out.fixed64(4, sample.fixed.unwrap());
        out.bytes(5, sample.bytes.as_ref().unwrap());
        for inner in &sample.inner {
            out.message(15, |out| write(inner, out));
        }
    }

    fn sample() -> impl Strategy<Value = Sample> {
        let number = prop_oneof![any::<u64>(), 0..300_u64, Just(u64::MAX)];
        let bytes = prop_oneof![prop::collection::vec(any::<u8>(), 0..200), Just(vec![7; 20_000])];
        let plain = (number, any::<i64>(), any::<bool>(), any::<u64>(), bytes).prop_map(
            |(unsigned, signed, flag, fixed, bytes)| Sample {
                unsigned: Some(unsigned),
                signed: Some(signed),
                flag: Some(flag),
                fixed: Some(fixed),
                bytes: Some(bytes),
                inner: Vec::new(),
            },
        );
        plain.prop_recursive(3, 12, 3, |inner| {
            (inner.clone(), prop::collection::vec(inner, 0..3))
                .prop_map(|(sample, inner)| Sample { inner, ..sample })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
        #[test]
        fn the_bytes_are_those_of_a_generated_class(sample in sample()) {
            let mut out = Protobuf::within(vec![1, 2, 3]);
            write(&sample, &mut out);
            prop_assert_eq!(out.into_bytes(), sample.encode_to_vec());
        }
    }
}
