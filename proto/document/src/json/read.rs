//! Reader of API messages from JSON or YAML, with the place of every mistake.
//!
//! Owns the checks of names and types against the descriptors of the API. Never accepts an unknown
//! field.

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};

use super::{ApiMessage, descriptor};
use crate::place::{Place, meant};
use crate::tree::{self, Node};

/// Why a tree is not a message.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) place: Place,
    pub(crate) message: String,
    pub(crate) hint: String,
}

type Read<T> = Result<T, Unread>;

fn unread<T>(node: &Node, message: String, hint: impl Into<String>) -> Read<T> {
    Err(Unread { place: node.place, message, hint: hint.into() })
}

/// Reads a message.
pub(crate) fn message<M: ApiMessage>(node: &Node) -> Read<M> {
    let read = fields(node, &descriptor::<M>(), "")?;
    read.transcode_to().or_else(|error| unread(node, error.to_string(), ""))
}

/// The fields of the message at `path`.
fn fields(node: &Node, descriptor: &MessageDescriptor, path: &str) -> Read<DynamicMessage> {
    let mut message = DynamicMessage::new(descriptor.clone());
    let tree::Value::Mapping(entries) = &node.value else {
        return unread(node, format!("{} is {}, and must be a mapping", shown(path), node.kind()), "");
    };
    for (key, value) in entries {
        let tree::Value::Scalar { text: name, .. } = &key.value else {
            return unread(key, "a key must be a word".to_owned(), "");
        };
        let by_name = descriptor.get_field_by_name(name);
        let Some(field) = by_name.or_else(|| descriptor.get_field_by_json_name(name)) else {
            let names: Vec<_> = descriptor.fields().map(|field| field.name().to_owned()).collect();
            let hint = match meant(name, names.iter().map(String::as_str)) {
                Some(known) => format!("did you mean `{known}`?"),
                None => format!("there can be `{}`", names.join("`, `")),
            };
            return unread(key, format!("`{}` is not a field", inner(path, name)), hint);
        };
        if value.is_null() {
            continue;
        }
        let other = field
            .containing_oneof()
            .and_then(|oneof| oneof.fields().find(|other| *other != field && message.has_field(other)));
        if let Some(other) = other {
            let message = format!("{} has both `{}` and `{}`", shown(path), other.name(), field.name());
            return unread(key, message, "leave one of them out");
        }
        let read = field_value(value, &field, &inner(path, field.name()))?;
        message.set_field(&field, read);
    }
    Ok(message)
}

fn inner(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn shown(path: &str) -> String {
    if path.is_empty() { "this".to_owned() } else { format!("`{path}`") }
}

fn field_value(node: &Node, field: &FieldDescriptor, path: &str) -> Read<Value> {
    let kind = field.kind();
    match (&node.value, &kind) {
        (tree::Value::Mapping(entries), Kind::Message(entry)) if field.is_map() => {
            let of_values = entry.map_entry_value_field().kind();
            let read = entries.iter().map(|(key, value)| {
                let tree::Value::Scalar { text, .. } = &key.value else {
                    return unread(key, "a key must be a word".to_owned(), "");
                };
                Ok((MapKey::String(text.clone()), single(value, &of_values, &inner(path, text))?))
            });
            Ok(Value::Map(read.collect::<Read<_>>()?))
        }
        (tree::Value::Sequence(items), _) if field.is_list() => {
            let items = items.iter().enumerate();
            let read = items.map(|(index, item)| single(item, &kind, &format!("{path}[{index}]")));
            Ok(Value::List(read.collect::<Read<_>>()?))
        }
        _ if field.is_map() => {
            unread(node, format!("`{path}` is {}, and must be a mapping", node.kind()), "")
        }
        _ if field.is_list() => unread(node, format!("`{path}` is {}, and must be a list", node.kind()), ""),
        _ => single(node, &kind, path),
    }
}

/// A value that is neither a list nor a map.
fn single(node: &Node, kind: &Kind, path: &str) -> Read<Value> {
    if let Kind::Message(descriptor) = kind {
        return match descriptor.full_name() {
            "google.protobuf.Timestamp" => parsed::<prost_types::Timestamp>(node, descriptor, path, "a time"),
            "google.protobuf.Duration" => {
                parsed::<prost_types::Duration>(node, descriptor, path, "a duration")
            }
            _ => Ok(Value::Message(fields(node, descriptor, path)?)),
        };
    }
    let tree::Value::Scalar { text, plain } = &node.value else {
        return unread(node, format!("`{path}` is {}, and must be a value", node.kind()), "");
    };
    let no_number = |what: &str| unread(node, format!("`{path}` is `{text}`, and must be {what}"), "");
    let number = number(text);
    match kind {
        Kind::String if node.is_null() => {
            unread(node, format!("`{path}` has no value"), "put it into quotes")
        }
        Kind::String => Ok(Value::String(text.clone())),
        Kind::Bool => match text.as_str() {
            "true" if *plain => Ok(Value::Bool(true)),
            "false" if *plain => Ok(Value::Bool(false)),
            _ => no_number("true or false, without quotes"),
        },
        Kind::Enum(names) => enum_number(text, names).map(Value::EnumNumber).ok_or_else(|| {
            let names: Vec<_> = names.values().map(|value| value.name().to_owned()).collect();
            Unread {
                place: node.place,
                message: format!("`{path}` is `{text}`, and there is no such choice"),
                hint: format!("there can be {}", names.join(", ")),
            }
        }),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => match number.and_then(|n| n.try_into().ok()) {
            Some(number) => Ok(Value::I32(number)),
            None => no_number("a whole number of 32 bits"),
        },
        Kind::Uint32 | Kind::Fixed32 => match number.and_then(|n| n.try_into().ok()) {
            Some(number) => Ok(Value::U32(number)),
            None => no_number("a whole number of 32 bits that is not negative"),
        },
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => match number.and_then(|n| n.try_into().ok()) {
            Some(number) => Ok(Value::I64(number)),
            None => no_number("a whole number of 64 bits"),
        },
        Kind::Uint64 | Kind::Fixed64 => match number.and_then(|n| n.try_into().ok()) {
            Some(number) => Ok(Value::U64(number)),
            None => no_number("a whole number of 64 bits that is not negative"),
        },
        Kind::Float => text.parse().map(Value::F32).or_else(|_bad| no_number("a number")),
        Kind::Double => text.parse().map(Value::F64).or_else(|_bad| no_number("a number")),
        // No message that is read has a field of this kind.
        Kind::Bytes | Kind::Message(_) => unread(node, format!("`{path}` cannot be written down"), ""),
    }
}

/// A number, quoted or not: decimal, or hexadecimal with `0x`.
fn number(text: &str) -> Option<i128> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(i128::from),
        None => text.parse().ok(),
    }
}

/// The number of an enum value, which can be written instead of its name.
fn enum_number(text: &str, names: &EnumDescriptor) -> Option<i32> {
    let by_name = names.get_value_by_name(text).map(|value| value.number());
    by_name.or_else(|| text.parse().ok().filter(|number| names.get_value(*number).is_some()))
}

/// A message that is written as one word, such as a time.
fn parsed<M: prost::Message + std::str::FromStr>(
    node: &Node,
    descriptor: &MessageDescriptor,
    path: &str,
    what: &str,
) -> Read<Value> {
    let text = match &node.value {
        tree::Value::Scalar { text, .. } => text.as_str(),
        _ => "",
    };
    let read = text.parse::<M>().ok().map(|read| read.encode_to_vec());
    let read = read.and_then(|bytes| DynamicMessage::decode(descriptor.clone(), bytes.as_slice()).ok());
    match read {
        Some(read) => Ok(Value::Message(read)),
        None => unread(node, format!("`{path}` must be {what}"), ""),
    }
}
