//! Values and attributes of events in OTLP.
//!
//! Integers of OTLP are signed: an unsigned one beyond `i64::MAX` is a string of its decimal
//! digits. Text is a string if it is UTF-8, and bytes otherwise. A fault is a value without
//! content.

use std::fmt::Display;

use kprobed_event::{Address, Value};

use super::protobuf::Protobuf;

/// Numbers of fields, as `opentelemetry/proto/common/v1/common.proto` has them.
mod field {
    /// Of `AnyValue`.
    pub(super) const STRING: u8 = 1;
    pub(super) const BOOL: u8 = 2;
    pub(super) const INT: u8 = 3;
    pub(super) const ARRAY: u8 = 5;
    pub(super) const MAP: u8 = 6;
    pub(super) const BYTES: u8 = 7;
    /// Of `ArrayValue` and `KeyValueList`.
    pub(super) const VALUES: u8 = 1;
    /// Of `KeyValue`.
    pub(super) const KEY: u8 = 1;
    pub(super) const VALUE: u8 = 2;
}

/// A message that is written: an `AnyValue`.
pub(super) struct AnyValue<'a>(&'a mut Protobuf);

/// A message that is written: one with attributes in a field.
pub(super) struct Attributes<'a> {
    out: &'a mut Protobuf,
    field: u8,
}

impl<'a> Attributes<'a> {
    /// Those in a field of the message that is written.
    pub(super) fn new(out: &'a mut Protobuf, field: u8) -> Self {
        Self { out, field }
    }

    /// One more.
    #[inline]
    pub(super) fn put(&mut self, key: &str, write: impl FnOnce(AnyValue<'_>)) {
        self.out.message(self.field, |out| {
            out.bytes(field::KEY, key.as_bytes());
            value(out, field::VALUE, write);
        });
    }
}

/// An `AnyValue` in a field of the message that is written.
#[inline]
pub(super) fn value(out: &mut Protobuf, field: u8, write: impl FnOnce(AnyValue<'_>)) {
    out.message(field, |out| write(AnyValue(out)));
}

impl AnyValue<'_> {
    #[inline]
    pub(super) fn text(self, text: &str) {
        self.0.bytes(field::STRING, text.as_bytes());
    }

    pub(super) fn display(self, shown: impl Display) {
        self.text(&shown.to_string());
    }

    pub(super) fn bool(self, value: bool) {
        self.0.bool(field::BOOL, value);
    }

    #[inline]
    pub(super) fn signed(self, value: impl Into<i64>) {
        self.0.signed(field::INT, value.into());
    }

    #[inline]
    pub(super) fn unsigned(self, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.signed(value),
            Err(_) => self.display(value),
        }
    }

    #[inline]
    pub(super) fn bytes(self, bytes: &[u8]) {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.text(text),
            Err(_) => self.0.bytes(field::BYTES, bytes),
        }
    }

    #[inline]
    pub(super) fn address(self, address: Address<'_>) {
        match address.text {
            Some(name) => self.text(name),
            None => self.display(address),
        }
    }

    /// An array of texts.
    pub(super) fn texts<T: AsRef<str>>(self, texts: impl Iterator<Item = T>) {
        self.0.message(field::ARRAY, |out| {
            for text in texts {
                value(out, field::VALUES, |value| value.text(text.as_ref()));
            }
        });
    }

    /// A map.
    #[inline]
    pub(super) fn map(self, write: impl FnOnce(&mut Attributes<'_>)) {
        self.0.message(field::MAP, |out| write(&mut Attributes::new(out, field::VALUES)));
    }

    /// The value of a field of an event.
    pub(super) fn of_field(self, known: &Value<'_>) {
        match known {
            Value::Unsigned { value, .. } => self.unsigned(*value),
            Value::Signed { value, .. } => self.signed(*value),
            Value::Char(byte) => self.bytes(&[*byte]),
            Value::Symbol(symbol) => self.address(*symbol),
            Value::Bytes(bytes) => self.bytes(bytes),
            Value::List(list) => self.0.message(field::ARRAY, |out| {
                for each in list.iter() {
                    value(out, field::VALUES, |value| value.of_field(&each));
                }
            }),
            Value::Fault => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use kprobed_event::Base;
    use kprobed_otlp::common::any_value::Value as Any;
    use kprobed_otlp::common::{AnyValue as Read, ArrayValue, KeyValueList};
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::export::otlp::attribute::{attribute, text};

    fn read(write: impl FnOnce(AnyValue<'_>)) -> Option<Any> {
        let mut out = Protobuf::default();
        write(AnyValue(&mut out));
        Read::decode(out.into_bytes().as_slice()).unwrap().value
    }

    fn of_field(value: &Value<'_>) -> Option<Any> {
        read(|out| out.of_field(value))
    }

    #[test]
    fn integers_keep_their_value() {
        let unsigned = |value| of_field(&Value::Unsigned { value, base: Base::Decimal });
        assert_eq!(unsigned(0), Some(Any::IntValue(0)));
        assert_eq!(unsigned(i64::MAX as u64), Some(Any::IntValue(i64::MAX)));
        assert_eq!(unsigned(1 << 63), Some(text("9223372036854775808")));
        assert_eq!(unsigned(u64::MAX), Some(text("18446744073709551615")));
    }

    #[test]
    fn text_that_is_not_utf8_is_bytes() {
        assert_eq!(of_field(&Value::Bytes(b"sshd")), Some(text("sshd")));
        assert_eq!(of_field(&Value::Bytes(b"")), Some(text("")));
        assert_eq!(of_field(&Value::Bytes(b"\xff")), Some(Any::BytesValue(vec![0xff])));
        assert_eq!(of_field(&Value::Char(b'x')), Some(text("x")));
        assert_eq!(of_field(&Value::Fault), None);
    }

    #[test]
    fn maps_and_arrays_hold_values() {
        let map = read(|out| {
            out.map(|map| {
                map.put("flag", |out| out.bool(false));
                map.put("list", |out| out.texts(["a", "b"].into_iter()));
                map.put("at", |out| out.address(Address { address: 0xfe, text: None }));
            });
        });
        let texts = ["a", "b"].map(|one| Read { value: Some(text(one)) }).to_vec();
        let values = vec![
            attribute("flag", Any::BoolValue(false)),
            attribute("list", Any::ArrayValue(ArrayValue { values: texts })),
            attribute("at", text("0xfe")),
        ];
        assert_eq!(map, Some(Any::KvlistValue(KeyValueList { values })));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
        #[test]
        fn every_value_is_read_back(number in any::<i64>(), bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let signed = Value::Signed { value: number, base: Base::Hex };
            prop_assert_eq!(of_field(&signed), Some(Any::IntValue(number)));
            let expected = String::from_utf8(bytes.clone()).map_or_else(|_| Any::BytesValue(bytes.clone()), text);
            prop_assert_eq!(of_field(&Value::Bytes(&bytes)), Some(expected));
        }
    }
}
