//! Definitions as fields, in JSON and YAML.
//!
//! Owns the names in such documents, which are a promise to scripts: they are those of the API, in lower case. It never judges what a
//! document says; that is for the daemon.

mod from_message;
#[cfg(test)]
pub(crate) mod tests;
mod to_message;

use kprobed_proto::v1::ProbeSpec;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A probe.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    maxactive: Option<u32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    group: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    event: String,
    place: Place,
    #[serde(default)]
    arguments: Vec<Argument>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Entry,
    Return,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Place {
    Symbol(SymbolPlace),
    Address(Word),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SymbolPlace {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    module: String,
    symbol: String,
    #[serde(default)]
    offset: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Argument {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    fetch: Fetch,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    r#type: Option<Type>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fetch {
    Register(String),
    StackNth(u32),
    Argument(u32),
    Variable(Variable),
    Memory(Memory),
    Dereference(Dereference),
    Immediate(i64),
    ImmediateUnsigned(Word),
    ImmediateString(String),
    Parameter(Parameter),
    Returned(Returned),
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Variable {
    Stack,
    AllArguments,
    Retval,
    Comm,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Memory {
    Address(Word),
    Symbol(MemorySymbol),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemorySymbol {
    symbol: String,
    #[serde(default)]
    offset: i64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Dereference {
    #[serde(default)]
    user: bool,
    #[serde(default)]
    offset: i32,
    inner: Box<Fetch>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameter {
    name: String,
    #[serde(default)]
    members: Vec<Member>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Returned {
    members: Vec<Member>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Member {
    #[serde(default)]
    arrow: bool,
    name: String,
}

/// `name` or `bit_field`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Type {
    /// As in the kernel's language: `u8`, `string`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bit_field: Option<BitField>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    array_length: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BitField {
    width: u32,
    offset: u32,
    container_bits: u32,
}

/// 64 bits. Written as text, because many readers of JSON keep 53; read as text or number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Serialize for Word {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{:#x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(number) => Ok(Self(number)),
            Form::Text(text) => {
                let number = match text.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16),
                    None => text.parse(),
                };
                number
                    .map(Self)
                    .map_err(|_bad| serde::de::Error::custom(format!("`{text}` is not a number of 64 bits")))
            }
        }
    }
}

/// Serialises fields so that an alternative is a map with one key in YAML too, as it is in JSON.
pub fn serialize<T: Serialize, S: Serializer>(spec: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serde_yaml_ng::with::singleton_map_recursive::serialize(spec, serializer)
}

/// Reads the definitions of a text: one document of JSON, or documents of YAML.
///
/// # Errors
/// What is wrong with the first that cannot be read.
pub fn read(text: &str) -> Result<Vec<ProbeSpec>, String> {
    // The reader of YAML takes JSON too, but not every character in it.
    if let Ok(spec) = serde_json::from_str::<Spec>(text) {
        return Ok(vec![spec.to_message()?]);
    }
    let mut specs = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let spec: Option<Spec> = serde_yaml_ng::with::singleton_map_recursive::deserialize(document)
            .map_err(|error| error.to_string())?;
        // A document of nothing but comments.
        let Some(spec) = spec else { continue };
        specs.push(spec.to_message()?);
    }
    if specs.is_empty() { Err("it has no definition".to_owned()) } else { Ok(specs) }
}
