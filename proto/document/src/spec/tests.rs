//! Documents and messages are inverse, and mistakes are said.

use kprobed_proto::v1::fetch::Source;
use kprobed_proto::v1::{
    ArgumentSpec, Fetch, FetchBitField, FetchDereference, FetchMember, FetchMemory, FetchParameter,
    FetchReturned, FetchSymbol, FetchType, FetchTypeName, FetchVariable, ProbeKind, ProbePlace, SymbolPlace,
    fetch_memory, fetch_type, probe_place,
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
        (".{0,4}", members()).prop_map(|(name, members)| Source::Parameter(FetchParameter { name, members })),
        members().prop_map(|members| Source::Returned(FetchReturned { members })),
    ];
    (leaf, vec((any::<bool>(), any::<i32>()), 0..3)).prop_map(|(leaf, around)| {
        around.into_iter().fold(Fetch { source: Some(leaf) }, |inner, (user, offset)| {
            let inner = Some(Box::new(inner));
            Fetch { source: Some(Source::Dereference(Box::new(FetchDereference { user, offset, inner }))) }
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

pub(crate) fn specs() -> impl Strategy<Value = ProbeSpec> {
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
        ("kind: entry\nplace: {address: x}\n", "`x` is not a number of 64 bits"),
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
