//! Tests of JSON messages: another implementation of protobuf's JSON mapping reads what is printed.

use kprobed_proto::v1::fetch::Source;
use kprobed_proto::v1::{
    ArgumentSpec, Fetch, FetchBitField, FetchDereference, FetchMember, FetchMemory, FetchParameter,
    FetchReturned, FetchSymbol, FetchType, ProbePlace, SymbolPlace, fetch_memory, fetch_type, probe_place,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde::Serialize;

use super::*;
use kprobed_proto::v1::ProbeSpec;

/// Reads a message as `prost-reflect` reads protobuf's JSON mapping.
fn read(json: &serde_json::Value) -> ProbeSpec {
    DynamicMessage::deserialize(descriptor::<ProbeSpec>(), json).unwrap().transcode_to().unwrap()
}

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
            prop_assert_eq!(&read(&json["spec"]), &message);
            let yaml = crate::write::yaml(&shown.spec).unwrap();
            prop_assert_eq!(&read(&serde_yaml_ng::from_str(&yaml).unwrap()), &message, "{}", yaml);
        }
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
        descriptor::<v1::ExporterLedger>(),
        descriptor::<v1::ForeignEvent>(),
        descriptor::<v1::Function>(),
        descriptor::<v1::GetHostResponse>(),
        descriptor::<v1::GetLedgerResponse>(),
        descriptor::<v1::HitCost>(),
        descriptor::<v1::HitProfile>(),
        descriptor::<v1::HitSeries>(),
        descriptor::<v1::Lease>(),
        descriptor::<v1::MeaningChange>(),
        descriptor::<v1::Probe>(),
        descriptor::<v1::ProbeLedger>(),
        descriptor::<ProbeSpec>(),
        descriptor::<v1::ProbeStateRecord>(),
        descriptor::<v1::ReconciledProbe>(),
        descriptor::<v1::SpoolLedger>(),
        descriptor::<v1::SubscriberLedger>(),
        descriptor::<v1::WatchProbesResponse>(),
    ] {
        assert_eq!(message.package_name(), "kprobed.v1");
    }
}
