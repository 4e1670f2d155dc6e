//! Writer of API messages as JSON.
//!
//! Owns the order of fields and the form of each value. Never decides which message is printed.

use std::collections::BTreeMap;

use prost::Message as _;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage as _, Value};
use serde::ser::{Error as _, Serialize, SerializeMap as _, Serializer};

use super::{ApiMessage, reflected};

/// A message as JSON, with its fields in the order of their numbers.
#[derive(Clone, Debug)]
pub struct Json {
    message: DynamicMessage,
    form: Form,
    left_out: &'static [&'static str],
}

/// Output of fields that have no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// They are printed, for programs: `null` if they are not set, and empty texts and lists.
    Full,
    /// They are omitted, for people and for documents.
    Brief,
}

impl Json {
    /// With every field, so that programs can rely on it.
    pub fn full(message: &impl ApiMessage) -> Self {
        Self { message: reflected(message), form: Form::Full, left_out: &[] }
    }

    /// Only with the fields that have a value.
    pub fn brief(message: &impl ApiMessage) -> Self {
        Self { message: reflected(message), form: Form::Brief, left_out: &[] }
    }

    /// The same message without some fields, which the caller prints in another form.
    #[must_use]
    pub fn without(self, fields: &'static [&'static str]) -> Self {
        Self { left_out: fields, ..self }
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Fields { message: &self.message, form: self.form, left_out: self.left_out }.serialize(serializer)
    }
}

struct Fields<'a> {
    message: &'a DynamicMessage,
    form: Form,
    left_out: &'a [&'a str],
}

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { message, form, left_out } = *self;
        let mut map = serializer.serialize_map(None)?;
        let descriptor = message.descriptor();
        for field in descriptor.fields().filter(|field| !left_out.contains(&field.name())) {
            if message.has_field(&field) || (form == Form::Full && !field.supports_presence()) {
                let value = message.get_field(&field);
                map.serialize_entry(field.name(), &Field { descriptor: &field, value: &value, form })?;
            } else if form == Form::Full && (field.containing_oneof().is_none() || is_optional(&field)) {
                map.serialize_entry(field.name(), &())?;
            }
        }
        map.end()
    }
}

/// Whether a field is `optional`: the protobuf compiler makes a oneof of its own for it.
fn is_optional(field: &FieldDescriptor) -> bool {
    field.containing_oneof().is_some_and(|oneof| oneof.is_synthetic())
}

/// The value of a field.
struct Field<'a> {
    descriptor: &'a FieldDescriptor,
    value: &'a Value,
    form: Form,
}

impl Serialize for Field<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { descriptor, value, form } = *self;
        let kind = descriptor.kind();
        match value {
            Value::List(values) => {
                serializer.collect_seq(values.iter().map(|value| Single { kind: &kind, value, form }))
            }
            Value::Map(entries) => {
                let Kind::Message(entry) = &kind else { return Err(S::Error::custom("a map has entries")) };
                let kind = entry.map_entry_value_field().kind();
                // A protobuf map has no order.
                let entries: BTreeMap<String, &Value> =
                    entries.iter().map(|(key, value)| (key_text(key), value)).collect();
                let entries = entries.iter().map(|(key, value)| (key, Single { kind: &kind, value, form }));
                serializer.collect_map(entries)
            }
            value => Single { kind: &kind, value, form }.serialize(serializer),
        }
    }
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

/// A value that is neither a list nor a map.
struct Single<'a> {
    kind: &'a Kind,
    value: &'a Value,
    form: Form,
}

impl Serialize for Single<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::I32(value) => serializer.serialize_i32(*value),
            Value::U32(value) => serializer.serialize_u32(*value),
            // Many readers of JSON keep only 53 bits of a number.
            Value::I64(value) => serializer.collect_str(value),
            Value::U64(value) => serializer.collect_str(value),
            Value::F32(value) => serializer.serialize_f32(*value),
            Value::F64(value) => serializer.serialize_f64(*value),
            Value::String(text) => serializer.serialize_str(text),
            Value::Bytes(bytes) => serializer.collect_str(&Base64(bytes)),
            Value::EnumNumber(number) => {
                let name = match self.kind {
                    Kind::Enum(names) => names.get_value(*number),
                    _ => None,
                };
                match name {
                    Some(name) => serializer.serialize_str(name.name()),
                    // An enum value that is newer than this program.
                    None => serializer.serialize_i32(*number),
                }
            }
            Value::Message(message) => self.message(message, serializer),
            Value::List(_) | Value::Map(_) => Err(S::Error::custom("a message cannot have a list of lists")),
        }
    }
}

impl Single<'_> {
    fn message<S: Serializer>(&self, message: &DynamicMessage, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = message.encode_to_vec();
        match message.descriptor().full_name() {
            "google.protobuf.Timestamp" => match prost_types::Timestamp::decode(bytes.as_slice()) {
                Ok(time) => serializer.collect_str(&time),
                Err(error) => Err(S::Error::custom(error)),
            },
            "google.protobuf.Duration" => match prost_types::Duration::decode(bytes.as_slice()) {
                Ok(duration) => serializer.collect_str(&duration),
                Err(error) => Err(S::Error::custom(error)),
            },
            _ => Fields { message, form: self.form, left_out: &[] }.serialize(serializer),
        }
    }
}

/// Bytes in base64 (RFC 4648, section 4).
struct Base64<'a>(&'a [u8]);

impl std::fmt::Display for Base64<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use std::fmt::Write as _;
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for chunk in self.0.chunks(3) {
            let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or_default());
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for index in 0..4 {
                let digit = DIGITS[(bits >> (18 - 6 * index)) as usize & 63];
                f.write_char(if index <= chunk.len() { char::from(digit) } else { '=' })?;
            }
        }
        Ok(())
    }
}
