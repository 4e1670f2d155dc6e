//! Definitions as fields, in JSON and YAML.
//!
//! Owns the names in such documents, which are a promise to scripts: they are those of the API, in lower case. It never judges what a
//! document says; that is for the daemon.

mod from_message;
mod to_message;

use kprobed_client::api::ProbeSpec;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A probe.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spec {
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
                    .map_err(|_bad| serde::de::Error::custom(format!("`{text}` is no number of 64 bits")))
            }
        }
    }
}

/// Serialises fields so that an alternative is a map with one key in YAML too, as it is in JSON.
pub(crate) fn serialize<T: Serialize, S: Serializer>(spec: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serde_yaml_ng::with::singleton_map_recursive::serialize(spec, serializer)
}

/// Reads the definitions of a text: one document of JSON, or documents of YAML.
///
/// # Errors
/// What is wrong with the first that can not be read.
pub(crate) fn read(text: &str) -> Result<Vec<ProbeSpec>, String> {
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
    if specs.is_empty() { Err("there is no definition in it".to_owned()) } else { Ok(specs) }
}

#[cfg(test)]
mod tests {
    use kprobed_client::api::fetch::Source;
    use kprobed_client::api::{
        ArgumentSpec, Fetch, FetchBitField, FetchDereference, FetchMember, FetchMemory, FetchParameter,
        FetchReturned, FetchSymbol, FetchType, FetchTypeName, FetchVariable, ProbeKind, ProbePlace,
        SymbolPlace, fetch_memory, fetch_type, probe_place,
    };
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn fetches() -> impl Strategy<Value = Fetch> {
        let members = || {
            vec((any::<bool>(), ".{0,4}"), 0..3).prop_map(|all| {
                all.into_iter().map(|(arrow, name)| FetchMember { arrow, name }).collect::<Vec<_>>()
            })
        };
        let memory = |place| Source::Memory(FetchMemory { place: Some(place) });
        let leaf = prop_oneof![
            ".{0,4}".prop_map(Source::Register),
            any::<u32>().prop_map(Source::StackNth),
            any::<u32>().prop_map(Source::Argument),
            (1..5i32).prop_map(Source::Variable),
            any::<u64>().prop_map(move |address| memory(fetch_memory::Place::Address(address))),
            (".{0,4}", any::<i64>()).prop_map(move |(symbol, offset)| memory(fetch_memory::Place::Symbol(
                FetchSymbol { symbol, offset }
            ))),
            any::<i64>().prop_map(Source::Immediate),
            any::<u64>().prop_map(Source::ImmediateUnsigned),
            ".{0,4}".prop_map(Source::ImmediateString),
            (".{0,4}", members())
                .prop_map(|(name, members)| Source::Parameter(FetchParameter { name, members })),
            members().prop_map(|members| Source::Returned(FetchReturned { members })),
        ];
        (leaf, vec((any::<bool>(), any::<i32>()), 0..3)).prop_map(|(leaf, around)| {
            around.into_iter().fold(Fetch { source: Some(leaf) }, |inner, (user, offset)| {
                let inner = Some(Box::new(inner));
                Fetch {
                    source: Some(Source::Dereference(Box::new(FetchDereference { user, offset, inner }))),
                }
            })
        })
    }

    fn types() -> impl Strategy<Value = FetchType> {
        let base = prop_oneof![
            (1..20i32).prop_map(fetch_type::Type::Name),
            (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(width, offset, container_bits)| {
                fetch_type::Type::BitField(FetchBitField { width, offset, container_bits })
            }),
        ];
        (base, option::of(any::<u32>()))
            .prop_map(|(r#type, array_length)| FetchType { r#type: Some(r#type), array_length })
    }

    fn specs() -> impl Strategy<Value = ProbeSpec> {
        let place = prop_oneof![
            any::<u64>().prop_map(probe_place::Place::Address),
            (".{0,4}", ".{0,4}", any::<u32>()).prop_map(|(module, symbol, offset)| {
                probe_place::Place::Symbol(SymbolPlace { module, symbol, offset })
            }),
        ];
        let argument = (".{0,4}", fetches(), option::of(types()))
            .prop_map(|(name, fetch, r#type)| ArgumentSpec { name, fetch: Some(fetch), r#type });
        (1..3i32, option::of(any::<u32>()), ".{0,4}", ".{0,4}", place, vec(argument, 0..4)).prop_map(
            |(kind, maxactive, group, event, place, arguments)| ProbeSpec {
                kind,
                maxactive,
                group,
                event,
                place: Some(ProbePlace { place: Some(place) }),
                arguments,
            },
        )
    }

    #[derive(Serialize)]
    struct View {
        #[serde(serialize_with = "serialize")]
        spec: Option<Spec>,
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_printed_can_be_read(message in specs()) {
            let view = View { spec: Spec::from_message(&message) };
            let json = serde_json::to_value(&view).unwrap();
            prop_assert_eq!(&read(&json["spec"].to_string()).unwrap(), std::slice::from_ref(&message));
            let yaml = serde_yaml_ng::to_string(&view).unwrap();
            let (_, yaml) = yaml.split_once('\n').unwrap();
            prop_assert_eq!(&read(yaml).unwrap(), &[message]);
        }

        #[test]
        fn any_text_is_survived(text in "[a-z{}\\[\\]:,\"\\- \n0-9&*!|>#]{0,60}") {
            prop_assert!(read(&text).map_or(true, |specs| !specs.is_empty()));
        }
    }

    #[test]
    fn documents_are_what_a_person_would_write() {
        let specs = read(
            "# two probes\n\
             kind: return\nplace: {symbol: {symbol: vfs_read}}\n\
             arguments:\n- {name: got, fetch: {variable: retval}, type: {name: s64}}\n\
             ---\n{\"kind\": \"entry\", \"place\": {\"address\": \"0xffffffff81000000\"}}\n",
        )
        .unwrap();
        assert_eq!(specs.len(), 2);
        assert_eq!(specs[0].kind(), ProbeKind::Return);
        let argument = &specs[0].arguments[0];
        let retval = Source::Variable(FetchVariable::Retval.into());
        assert_eq!(argument.fetch.as_ref().unwrap().source, Some(retval));
        let s64 = fetch_type::Type::Name(FetchTypeName::S64.into());
        assert_eq!(argument.r#type.as_ref().unwrap().r#type, Some(s64));
        let address = probe_place::Place::Address(0xffff_ffff_8100_0000);
        assert_eq!(specs[1].place.as_ref().unwrap().place, Some(address));
    }

    #[test]
    fn mistakes_are_said() {
        for (text, said) in [
            ("", "no definition"),
            ("# nothing\n", "no definition"),
            ("kind: entry\n", "place"),
            ("kind: sideways\nplace: {address: 1}\n", "sideways"),
            ("kind: entry\nplace: {address: 1}\nplcae: 1\n", "plcae"),
            ("kind: entry\nplace: {address: -1}\n", "did not match"),
            ("kind: entry\nplace: {address: x}\n", "`x` is no number of 64 bits"),
            (
                "kind: entry\nplace: {address: 1}\narguments: [{fetch: {argument: 1}, type: {name: int}}]\n",
                "`int`",
            ),
            (
                "kind: entry\nplace: {address: 1}\narguments: [{fetch: {argument: 1}, type: {}}]\n",
                "`name` or `bit_field`",
            ),
            (
                "kind: entry\nplace: {address: 1}\narguments: [{fetch: {argument: 1, register: di}}]\n",
                "single key",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
