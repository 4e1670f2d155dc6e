//! Values as OTLP has them.
//!
//! Integers there are signed: an unsigned one beyond `i64::MAX` is a text of its decimal digits. Text is a string if it is UTF-8, and bytes
//! otherwise. A value that could not be read is a value without anything in it.

use kprobed_event::{Address, Value};
use kprobed_otlp::common::any_value::Value as Any;
use kprobed_otlp::common::{AnyValue, ArrayValue, KeyValue, KeyValueList};

pub(super) fn attribute(key: impl Into<String>, value: Any) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

pub(super) fn text(text: impl Into<String>) -> Any {
    Any::StringValue(text.into())
}

pub(super) fn texts<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Any {
    let values = texts.into_iter().map(|each| AnyValue { value: Some(text(each)) }).collect();
    Any::ArrayValue(ArrayValue { values })
}

pub(super) fn map(values: Vec<KeyValue>) -> Any {
    Any::KvlistValue(KeyValueList { values })
}

pub(super) fn unsigned(value: u64) -> Any {
    match i64::try_from(value) {
        Ok(value) => Any::IntValue(value),
        Err(_) => text(value.to_string()),
    }
}

pub(super) fn bytes(bytes: &[u8]) -> Any {
    match std::str::from_utf8(bytes) {
        Ok(known) => text(known),
        Err(_) => Any::BytesValue(bytes.to_vec()),
    }
}

pub(super) fn address(address: Address<'_>) -> Any {
    match address.text {
        Some(known) => text(known),
        None => text(address.to_string()),
    }
}

/// The value of a field.
pub(super) fn of_field(value: &Value<'_>) -> AnyValue {
    let value = match value {
        Value::Unsigned { value, .. } => unsigned(*value),
        Value::Signed { value, .. } => Any::IntValue(*value),
        Value::Char(byte) => bytes(&[*byte]),
        Value::Symbol(symbol) => address(*symbol),
        Value::Bytes(known) => bytes(known),
        Value::List(list) => {
            Any::ArrayValue(ArrayValue { values: list.iter().map(|value| of_field(&value)).collect() })
        }
        Value::Fault => return AnyValue { value: None },
    };
    AnyValue { value: Some(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_keep_their_value() {
        assert_eq!(unsigned(7), Any::IntValue(7));
        assert_eq!(unsigned(i64::MAX as u64), Any::IntValue(i64::MAX));
        assert_eq!(unsigned(1 << 63), text("9223372036854775808"));
        assert_eq!(unsigned(u64::MAX), text("18446744073709551615"));
    }

    #[test]
    fn text_that_is_not_utf8_is_bytes() {
        assert_eq!(bytes(b"sshd"), text("sshd"));
        assert_eq!(bytes(b"\xff"), Any::BytesValue(vec![0xff]));
    }
}
