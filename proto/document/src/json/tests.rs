//! Tests of JSON messages: messages and texts are inverse, and mistakes have their places.

use kprobed_proto::v1::fetch::Source;
use kprobed_proto::v1::{
    ArgumentSpec, Fetch, FetchBitField, FetchDereference, FetchMember, FetchMemory, FetchParameter,
    FetchReturned, FetchSymbol, FetchType, FetchTypeName, FetchVariable, ProbeKind, ProbePlace, SymbolPlace,
    fetch_memory, fetch_type, probe_place,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde::Serialize;

use super::*;
use kprobed_proto::v1::ProbeSpec;

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
struct Shown {
    spec: Json,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_printed_can_be_read(message in specs()) {
        for spec in [Json::full(&message), Json::brief(&message)] {
            let shown = Shown { spec };
            let json = serde_json::to_value(&shown).unwrap();
            prop_assert_eq!(&read::<ProbeSpec>(&json["spec"].to_string()).unwrap(), std::slice::from_ref(&message));
            let yaml = crate::write::yaml(&shown.spec).unwrap();
            prop_assert_eq!(&read::<ProbeSpec>(&yaml).unwrap(), std::slice::from_ref(&message), "{}", yaml);
        }
    }

    #[test]
    fn any_text_is_survived(text in "[a-z{}\\[\\]:,\"\\- \n0-9&*!|>#]{0,60}") {
        prop_assert!(read::<ProbeSpec>(&text).map_or(true, |specs| !specs.is_empty()));
    }
}

#[test]
fn documents_are_what_a_person_would_write() {
    let specs: Vec<ProbeSpec> = read(
        "# two probes\n\
         kind: PROBE_KIND_RETURN\nplace: {symbol: {symbol: vfs_read}}\n\
         arguments:\n- name: got\n  fetch: {variable: FETCH_VARIABLE_RETVAL}\n  type: {name: FETCH_TYPE_NAME_S64}\n\
         ---\n{\"kind\": \"PROBE_KIND_ENTRY\", \"place\": {\"address\": \"0xffffffff81000000\"}}\n",
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
fn mistakes_have_a_path_and_a_place() {
    for (text, said) in [
        ("", "1:1: there is no document in it"),
        ("# nothing\n", "1:1: there is no document in it"),
        (
            "kind: sideways\n",
            "1:7: `kind` is `sideways`, and there is no such choice (there can be PROBE_KIND_UNSPECIFIED, PROBE_KIND_ENTRY, PROBE_KIND_RETURN)",
        ),
        ("kind: PROBE_KIND_ENTRY\nplcae: 1\n", "2:1: `plcae` is not a field (did you mean `place`?)"),
        (
            "place: {address: -1}\n",
            "1:18: `place.address` is `-1`, and must be a whole number of 64 bits that is not negative",
        ),
        ("place: 1\n", "1:8: `place` is a text, and must be a mapping"),
        (
            "place: {address: x}\n",
            "1:18: `place.address` is `x`, and must be a whole number of 64 bits that is not negative",
        ),
        (
            "maxactive: 4294967296\n",
            "1:12: `maxactive` is `4294967296`, and must be a whole number of 32 bits that is not negative",
        ),
        ("arguments: {}\n", "1:12: `arguments` is a mapping, and must be a list"),
        (
            "arguments:\n- name: a\n- fetch: {argument: 1}\n  type: {nmae: 1}\n",
            "4:10: `arguments[1].type.nmae` is not a field (did you mean `name`?)",
        ),
        (
            "arguments: [{fetch: {argument: 1, register: di}}]\n",
            "1:35: `arguments[0].fetch` has both `argument` and `register` (leave one of them out)",
        ),
    ] {
        assert_eq!(read::<ProbeSpec>(text).unwrap_err().to_string(), said, "{text}");
    }
}

#[test]
fn programs_find_every_field_and_people_those_that_say_something() {
    let probe = v1::Probe {
        name: "kprobes/open".to_owned(),
        uid: i64::MAX,
        state: v1::ProbeState::Armed.into(),
        labels: [("b", "2"), ("a", "1")].map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        create_time: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 5_000_000 }),
        lease: Some(v1::Lease {
            duration: Some(prost_types::Duration { seconds: 90, nanos: 0 }),
            ..v1::Lease::default()
        }),
        ..v1::Probe::default()
    };
    let brief = serde_json::to_string(&Json::brief(&probe)).unwrap();
    assert_eq!(
        brief,
        r#"{"name":"kprobes/open","uid":"9223372036854775807","state":"PROBE_STATE_ARMED","create_time":"2023-11-14T22:13:20.005Z","labels":{"a":"1","b":"2"},"lease":{"duration":"90s"}}"#
    );
    let full = serde_json::to_value(Json::full(&probe)).unwrap();
    for field in descriptor::<v1::Probe>().fields() {
        assert!(full.get(field.name()).is_some(), "{}", field.name());
    }
    assert_eq!((&full["filter"], &full["enabled"]), (&serde_json::json!(""), &serde_json::json!(false)));
    assert_eq!((&full["schema"], &full["warnings"]), (&serde_json::Value::Null, &serde_json::json!([])));
}

#[test]
fn every_message_that_has_a_form_is_one_of_the_api() {
    for message in [
        descriptor::<v1::Aggregation>(),
        descriptor::<v1::AttachedEvent>(),
        descriptor::<v1::CodeInstruction>(),
        descriptor::<v1::DeletedProbe>(),
        descriptor::<v1::DescribeFunctionResponse>(),
        descriptor::<v1::Diagnostic>(),
        descriptor::<v1::ExplainProbeResponse>(),
        descriptor::<v1::Exporter>(),
        descriptor::<v1::ExporterLedger>(),
        descriptor::<v1::ForeignEvent>(),
        descriptor::<v1::Function>(),
        descriptor::<v1::GetHostResponse>(),
        descriptor::<v1::GetLedgerResponse>(),
        descriptor::<v1::HitCost>(),
        descriptor::<v1::HitProfile>(),
        descriptor::<v1::HitSeries>(),
        descriptor::<v1::Lease>(),
        descriptor::<v1::ListCostsResponse>(),
        descriptor::<v1::MeaningChange>(),
        descriptor::<v1::Probe>(),
        descriptor::<v1::ProbeFilter>(),
        descriptor::<v1::ProbeLedger>(),
        descriptor::<ProbeSpec>(),
        descriptor::<v1::ProbeStateRecord>(),
        descriptor::<v1::ReconciledProbe>(),
        descriptor::<v1::SpoolLedger>(),
        descriptor::<v1::SubscriberLedger>(),
        descriptor::<v1::TryProbeResponse>(),
        descriptor::<v1::WatchProbesResponse>(),
    ] {
        assert_eq!(message.package_name(), "kprobed.v1");
    }
}
