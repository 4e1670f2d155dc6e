//! Attributes of resources, scopes and metric points, as generated classes. Those of events are in
//! [`super::value`].

use kprobed_otlp::common::any_value::Value as Any;
use kprobed_otlp::common::{AnyValue, KeyValue};

pub(super) fn attribute(key: impl Into<String>, value: Any) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

pub(super) fn text(text: impl Into<String>) -> Any {
    Any::StringValue(text.into())
}
