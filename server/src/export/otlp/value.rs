//! Values and attributes in OTLP.
//!
//! Integers of OTLP are signed: an unsigned one beyond `i64::MAX` is a string of its decimal
//! digits. Text is a string if it is UTF-8, and bytes otherwise. A fault is a value without
//! content.

use kprobed_event::{Address, Value};
use kprobed_otlp::common::any_value::Value as Any;
use kprobed_otlp::common::{AnyValue, ArrayValue, KeyValue, KeyValueList};

pub(super) fn attribute(key: impl Into<String>, value: Any) -> KeyValue {
    optional(key, Some(value))
}

/// The field of an event.
pub(super) fn field(name: impl Into<String>, value: &Value<'_>) -> KeyValue {
    optional(name, of_field(value))
}

fn optional(key: impl Into<String>, value: Option<Any>) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value }), ..KeyValue::default() }
}

pub(super) fn text(text: impl Into<String>) -> Any {
    Any::StringValue(text.into())
}

pub(super) fn signed(value: impl Into<i64>) -> Any {
    Any::IntValue(value.into())
}

pub(super) fn unsigned(value: u64) -> Any {
    i64::try_from(value).map_or_else(|_| text(value.to_string()), Any::IntValue)
}

pub(super) fn bytes(bytes: &[u8]) -> Any {
    std::str::from_utf8(bytes).map_or_else(|_| Any::BytesValue(bytes.to_vec()), text)
}

pub(super) fn address(address: Address<'_>) -> Any {
    text(address.text.map_or_else(|| address.to_string(), ToOwned::to_owned))
}

pub(super) fn texts<T: Into<String>>(texts: impl Iterator<Item = T>) -> Any {
    list(texts.map(|each| Some(text(each))))
}

pub(super) fn map(values: Vec<KeyValue>) -> Any {
    Any::KvlistValue(KeyValueList { values })
}

fn list(values: impl Iterator<Item = Option<Any>>) -> Any {
    Any::ArrayValue(ArrayValue { values: values.map(|value| AnyValue { value }).collect() })
}

fn of_field(value: &Value<'_>) -> Option<Any> {
    Some(match value {
        Value::Unsigned { value, .. } => unsigned(*value),
        Value::Signed { value, .. } => signed(*value),
        Value::Char(byte) => bytes(&[*byte]),
        Value::Symbol(symbol) => address(*symbol),
        Value::Bytes(text) => bytes(text),
        Value::List(values) => list(values.iter().map(|value| of_field(&value))),
        Value::Fault => return None,
    })
}

#[cfg(test)]
mod tests {
    use kprobed_event::Base;
    use proptest::prelude::*;

    use super::*;

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
        let values = vec![attribute("list", texts(["a", "b"].into_iter())), field("fault", &Value::Fault)];
        let Any::KvlistValue(read) = map(values) else { panic!("no map") };
        let both = ["a", "b"].map(|one| AnyValue { value: Some(text(one)) }).to_vec();
        assert_eq!(read.values[0], attribute("list", Any::ArrayValue(ArrayValue { values: both })));
        assert_eq!(read.values[1].value, Some(AnyValue { value: None }));
        assert_eq!(address(Address { address: 0xfe, text: None }), text("0xfe"));
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
