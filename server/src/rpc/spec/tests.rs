//! Tests of definitions as fields: they say what the text says, which is parsed only once; and what the
//! client library builds is read as the fields that were asked for.

#[allow(dead_code, clippy::allow_attributes, reason = "other tests need more of it")]
#[path = "../../../fixtures/world.rs"]
mod world;

use std::sync::Arc;
use std::time::SystemTime;

use kprobed_client::{FetchArg, PartError, ProbeBuilder};
use kprobed_proto::v1::FetchTypeName;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::rpc::changes;
use crate::rpc::probes::probe_message;
use kprobed_control::auth::Caller;
use kprobed_control::store::{ProbeSpec, Record};
use kprobed_control::{Registry, samples};
use kprobed_host::kernel::FactsCache;
use kprobed_lang::definition::{Definition, Dialect, Features, parse_any, parse_as};
use kprobed_lang::model::{KernelChange, Metadata, ProbeUid};
use kprobed_lang::samples::{v6_1, v6_12, v7_3};
use kprobed_verdict::checker::{Checker, DefinitionText};

/// Probes of a long list.
const MANY: u64 = 1000;

/// The fields of a line.
fn spec(line: &str) -> v1::ProbeSpec {
    match parse_as(Dialect::Kernel, line, &v6_12()).result {
        Ok(Definition::Probe(definition)) => write(&definition),
        other => panic!("{line}: {other:?}"),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "every field that holds one is optional")]
fn of_source(source: Source) -> Option<v1::Fetch> {
    Some(v1::Fetch { source: Some(source) })
}

#[test]
fn a_line_and_its_fields_say_the_same() {
    let line =
        "r10:g/e ext4:ext4_map_blocks+4 %di x=+16(-8($arg2)):u32[4] b=@jiffies+8:b3@2/16 $comm s=\\\"k\"";
    let fields = spec(line);
    assert_eq!(fields.maxactive, Some(10));
    assert_eq!((fields.group.as_str(), fields.event.as_str()), ("g", "e"));
    let symbol =
        v1::SymbolPlace { module: "ext4".to_owned(), symbol: "ext4_map_blocks".to_owned(), offset: 4 };
    assert_eq!(fields.place.as_ref().unwrap().place, Some(v1::probe_place::Place::Symbol(symbol)));
    assert_eq!(fields.arguments.len(), 5);
    assert_eq!(fields.arguments[0].fetch, of_source(Source::Register("di".to_owned())));
}

fn stored_kernel() -> (world::World, Checker) {
    let sites = std::fs::read_to_string(world::fixture("patch-sites-6.12.tsv")).unwrap();
    let world = world::world("6.12", &sites);
    let features = Features::from_readme("char, string, ustring kernel return probes support");
    let checker = Checker::new(features, Arc::new(FactsCache::new(world.paths.clone())));
    (world, checker)
}

#[test]
fn what_is_shown_has_a_name_for_every_argument_whatever_the_dialect() {
    let (_world, checker) = stored_kernel();
    let shown = |line: &str| write(&checker.probe(&DefinitionText::new(line)).unwrap());
    assert_eq!(shown("p:g/e vfs_read x=+8($arg1):u32 %si").arguments[1].name, "arg2");
    assert_eq!(shown("f(int a)"), spec("p:functions/f f a=$arg1:s32"));
}

#[test]
fn a_request_is_parsed_once() {
    let (_world, checker) = stored_kernel();
    let definition = "p:g/e vfs_read x=$arg1:u64 y=%si".to_owned();
    let request = v1::CreateProbeRequest { definition, ..Default::default() };
    let probe = samples::made(&checker, changes::creation(&Caller::daemon(), request).unwrap());
    assert_eq!(probe_message(&checker, &probe).spec.unwrap().arguments.len(), 2);
    assert_eq!(checker.texts_parsed(), 1);
}

#[test]
fn rows_are_parsed_once_and_lists_parse_nothing() {
    let (_world, checker) = stored_kernel();
    let records = (1..=MANY).map(|number| {
        let text = format!("p:g/e{number} vfs_read x=$arg1:u64 y=%si");
        let definition = Arc::new(DefinitionText::new(text.clone()));
        // Their meaning was not stored: they are armed all the same.
        let on_kernel_change = KernelChange::ArmAnyway;
        let metadata = Metadata { on_kernel_change, ..Metadata::default() };
        let spec = ProbeSpec { definition, enabled: true, metadata, ..ProbeSpec::default() };
        let name = format!("g/e{number}").parse().unwrap();
        let uid = ProbeUid(number.try_into().unwrap());
        Record { uid, ..Record::new(name, spec, text, SystemTime::UNIX_EPOCH) }
    });
    let registry: Registry = samples::recalled(&checker, records.collect()).into_iter().collect();
    assert_eq!(checker.texts_parsed(), MANY, "by a start");
    let page = registry.page(None, 1000, |_| true);
    let listed: Vec<_> = page.iter().map(|probe| probe_message(&checker, probe)).collect();
    assert_eq!((listed.len() as u64, checker.texts_parsed()), (MANY, MANY), "by a list");
    assert!(listed.iter().all(|probe| probe.spec.as_ref().is_some_and(|spec| spec.arguments.len() == 2)));
}

/// What the client library is asked to build, and the fields that this is.
type Built = (ProbeBuilder, v1::ProbeSpec);

/// Names, and texts that are special to the parser.
fn names() -> impl Strategy<Value = String> {
    let special = proptest::sample::select(vec![
        " ",
        "\n",
        "\t",
        ":",
        "=",
        "/",
        ".",
        "-",
        "->",
        "+8",
        "(",
        ")",
        "[2]",
        ":u8",
        "%di",
        "%return",
        "$retval",
        "$arg*",
        "@",
        "\\",
        "\"",
        "#",
        "# dialect: 2009",
        "\0",
        "\u{a0}",
        "é",
        "0",
        "0x1f",
        "a0",
        "rv",
        "__kpd_g0",
        ",",
        "|",
    ]);
    prop_oneof![
        12 => "[a-z_][a-z0-9_.$]{0,6}",
        1 => ("[a-z]{0,2}", special, "[a-z]{0,2}").prop_map(|(head, special, tail)| format!("{head}{special}{tail}")),
    ]
}

fn values() -> impl Strategy<Value = (FetchArg, v1::Fetch)> {
    let symbol = |(symbol, offset): (String, i64)| {
        let place = v1::fetch_memory::Place::Symbol(v1::FetchSymbol { symbol: symbol.clone(), offset });
        (FetchArg::symbol(&symbol, offset), Source::Memory(v1::FetchMemory { place: Some(place) }))
    };
    let variable = |variable: v1::FetchVariable| Source::Variable(variable.into());
    let leaf = prop_oneof![
        prop_oneof![Just("di".to_owned()), names()]
            .prop_map(|name| (FetchArg::register(&name), Source::Register(name))),
        (1u32..3000).prop_map(|index| (FetchArg::argument(index), Source::Argument(index))),
        Just((FetchArg::retval(), variable(v1::FetchVariable::Retval))),
        Just((FetchArg::comm(), variable(v1::FetchVariable::Comm))),
        (names(), any::<i64>()).prop_map(symbol),
        (0u32..2048).prop_map(|nth| (FetchArg::expression(&format!("$stack{nth}")), Source::StackNth(nth))),
    ];
    (leaf, vec((any::<bool>(), any::<i32>()), 0..3)).prop_map(|((built, source), around)| {
        let innermost = (built, v1::Fetch { source: Some(source) });
        around.into_iter().fold(innermost, |(built, fetch), (user, offset)| {
            let outer = v1::FetchDereference { user, offset, inner: Some(Box::new(fetch)) };
            let built = if user { built.at_user(offset) } else { built.at(offset) };
            (built, v1::Fetch { source: Some(Source::Dereference(Box::new(outer))) })
        })
    })
}

fn arguments() -> impl Strategy<Value = (FetchArg, v1::ArgumentSpec)> {
    let types = option::of((1..20i32).prop_map(|number| FetchTypeName::try_from(number).unwrap()));
    let names = prop_oneof![Just(String::new()), names()];
    (names, values(), types, option::weighted(0.2, 0u32..70)).prop_map(
        |(name, (mut built, fetch), ty, length)| {
            if let Some(ty) = ty {
                built = built.typed(ty);
            }
            if let Some(length) = length {
                built = built.array(length);
            }
            let ty = ty.or(length.map(|_| FetchTypeName::X64));
            let r#type = ty.map(|ty| v1::FetchType {
                r#type: Some(v1::fetch_type::Type::Name(ty.into())),
                array_length: length,
            });
            (built, v1::ArgumentSpec { name, fetch: Some(fetch), r#type })
        },
    )
}

fn built() -> impl Strategy<Value = Built> {
    let sometimes = || prop_oneof![Just(String::new()), names()];
    let place = (sometimes(), names(), 0u32..100);
    (option::of(option::of(1u32..5000)), sometimes(), sometimes(), place, vec(arguments(), 0..3)).prop_map(
        |(exit, group, event, (module, symbol, offset), arguments)| {
            let start = if exit.is_some() { ProbeBuilder::returning } else { ProbeBuilder::entry };
            let mut builder = start(&symbol).module(&module).offset(offset).event(&group, &event);
            let maxactive = exit.flatten();
            if let Some(maxactive) = maxactive {
                builder = builder.maxactive(maxactive);
            }
            for (value, argument) in &arguments {
                builder = builder.argument(&argument.name, value.clone());
            }
            let kind = if exit.is_some() { v1::ProbeKind::Return } else { v1::ProbeKind::Entry };
            let place = v1::probe_place::Place::Symbol(v1::SymbolPlace { module, symbol, offset });
            let spec = v1::ProbeSpec {
                kind: kind.into(),
                maxactive,
                group,
                event,
                place: Some(v1::ProbePlace { place: Some(place) }),
                arguments: arguments.into_iter().map(|(_, argument)| argument).collect(),
            };
            (builder, spec)
        },
    )
}

/// How often every kernel took what was built, as what it was meant to be: never as anything else.
fn taken((builder, spec): Built) -> usize {
    let line: Result<String, PartError> = builder.build();
    let Ok(line) = line else { return 0 };
    let kernels =
        [v6_1(), v6_12(), v7_3()].into_iter().filter(|features| match parse_any(&line, features).result {
            Ok(Definition::Probe(read)) => {
                assert_eq!(write(&read), spec, "{line}");
                true
            }
            Ok(Definition::Delete(_)) => panic!("{line}"),
            Err(_) => false,
        });
    kernels.count()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1024) })]

    #[test]
    fn what_is_built_is_read_as_it_was_meant_or_not_at_all(built in built()) {
        taken(built);
    }
}

/// Some of what is generated must be definitions, or the property above proves little.
#[test]
fn the_generator_makes_definitions() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let taken = (0..1000).filter(|_| taken(built().new_tree(&mut runner).unwrap().current()) > 0).count();
    assert!(taken > 30, "{taken} of 1000");
}

#[test]
fn what_is_put_together_step_by_step_is_the_line() {
    let entry = ProbeBuilder::entry("f")
        .module("m")
        .offset(4)
        .event("g", "e")
        .argument("a", FetchArg::register("di").at(8).at_user(-16).typed(FetchTypeName::U16))
        .argument("b", FetchArg::symbol("jiffies", 8).typed(FetchTypeName::X8).array(4))
        .argument("c", FetchArg::comm());
    let exit = ProbeBuilder::returning("f")
        .maxactive(7)
        .argument("", FetchArg::retval())
        .argument("text", FetchArg::argument(2).typed(FetchTypeName::String).at(0));
    for (built, line) in [
        (entry, "p:g/e m:f+4 a=-u16(+8(%di)):u16 b=@jiffies+8:x8[4] c=$comm"),
        (exit, "r7 f $retval text=+0($arg2):string"),
    ] {
        assert_eq!(built.build().unwrap(), line);
        assert!(parse_any(line, &v6_12()).result.is_ok(), "{line}");
    }
}
