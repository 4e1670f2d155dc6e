//! Tests of refusals: fields that no line can express are refused with their path; what the kernel
//! refuses has the kernel's code.

use super::*;
use kprobed_lang::definition::parse_any;

/// A definition with one change, which is refused at a field.
fn refused(change: impl FnOnce(&mut v1::ProbeSpec)) -> (String, String) {
    let mut fields = spec("r:g/e m:f+4 x=+8($arg1):u32 y=%di");
    change(&mut fields);
    match given(&fields) {
        Err(Unwritable { field, problem, .. }) => {
            assert!(problem.hint.is_some() || problem.code.hint().is_empty());
            (problem.code.name().to_owned(), field)
        }
        Ok(given) => {
            let problems = parse_any(given.text(), &v6_12()).result.expect_err(given.text());
            (problems[0].code.name().to_owned(), given.field_at(given.text(), problems[0].span))
        }
    }
}

fn symbol(spec: &mut v1::ProbeSpec) -> &mut v1::SymbolPlace {
    match spec.place.as_mut().unwrap().place.as_mut().unwrap() {
        v1::probe_place::Place::Symbol(symbol) => symbol,
        v1::probe_place::Place::Address(_) => panic!("a symbol"),
    }
}

fn source(spec: &mut v1::ProbeSpec, source: Source) {
    spec.arguments[1].fetch = fetch(source);
}

fn parameter(name: &str, members: &[&str]) -> Source {
    let members = members.iter().map(|name| v1::FetchMember { arrow: true, name: (*name).to_owned() });
    Source::Parameter(v1::FetchParameter { name: name.to_owned(), members: members.collect() })
}

fn memory(symbol: &str) -> Source {
    let symbol = v1::FetchSymbol { symbol: symbol.to_owned(), offset: 0 };
    Source::Memory(v1::FetchMemory { place: Some(v1::fetch_memory::Place::Symbol(symbol)) })
}

macro_rules! cases {
    ($($change:expr => $code:literal $field:literal,)*) => {
        $(
            let (code, field) = refused($change);
            assert_eq!((code.as_str(), field.as_str()), ($code, $field), "{}", stringify!($change));
        )*
    };
}

#[test]
fn what_is_not_set_is_missing() {
    cases! {
        |s| s.kind = 0 => "INCOMPLETE_SPEC" "spec.kind",
        |s| s.kind = 77 => "INCOMPLETE_SPEC" "spec.kind",
        |s| s.place = None => "INCOMPLETE_SPEC" "spec.place",
        |s| s.place = Some(v1::ProbePlace::default()) => "INCOMPLETE_SPEC" "spec.place",
        |s| symbol(s).symbol.clear() => "INCOMPLETE_SPEC" "spec.place.symbol.symbol",
        |s| s.arguments[1].fetch = None => "INCOMPLETE_SPEC" "spec.arguments[1].fetch",
        |s| s.arguments[1].fetch = Some(v1::Fetch::default()) => "INCOMPLETE_SPEC" "spec.arguments[1].fetch",
        |s| source(s, Source::Memory(v1::FetchMemory::default()))
            => "INCOMPLETE_SPEC" "spec.arguments[1].fetch.memory",
        |s| source(s, memory("")) => "INCOMPLETE_SPEC" "spec.arguments[1].fetch.memory.symbol.symbol",
        |s| source(s, Source::Dereference(Box::default()))
            => "INCOMPLETE_SPEC" "spec.arguments[1].fetch.dereference.inner",
        |s| source(s, parameter("", &[])) => "INCOMPLETE_SPEC" "spec.arguments[1].fetch.parameter.name",
        |s| source(s, parameter("p", &["a", ""]))
            => "INCOMPLETE_SPEC" "spec.arguments[1].fetch.parameter.members[1].name",
        |s| source(s, Source::Returned(v1::FetchReturned::default()))
            => "INCOMPLETE_SPEC" "spec.arguments[1].fetch.returned.members",
        |s| s.arguments[0].r#type = Some(v1::FetchType::default()) => "INCOMPLETE_SPEC" "spec.arguments[0].type",
        |s| source(s, Source::Variable(0)) => "BAD_VAR" "spec.arguments[1].fetch.variable",
        |s| source(s, Source::Variable(99)) => "BAD_VAR" "spec.arguments[1].fetch.variable",
    }
}

#[test]
fn nothing_is_smuggled_into_another_word() {
    cases! {
        |s| s.group = "a/b".to_owned() => "BAD_CHARACTER" "spec.group",
        |s| s.event = "a:b".to_owned() => "BAD_CHARACTER" "spec.event",
        |s| s.event = "a.b".to_owned() => "BAD_CHARACTER" "spec.event",
        |s| s.event = "a b".to_owned() => "BAD_CHARACTER" "spec.event",
        |s| symbol(s).symbol = "f+8".to_owned() => "BAD_CHARACTER" "spec.place.symbol.symbol",
        |s| symbol(s).symbol = "f%return".to_owned() => "BAD_CHARACTER" "spec.place.symbol.symbol",
        |s| symbol(s).symbol = "f\n-:g/e".to_owned() => "BAD_CHARACTER" "spec.place.symbol.symbol",
        |s| symbol(s).symbol = "f#".to_owned() => "BAD_CHARACTER" "spec.place.symbol.symbol",
        |s| symbol(s).symbol = "0x10".to_owned() => "BAD_PROBE_ADDR" "spec.place.symbol.symbol",
        |s| symbol(s).module = "m:n".to_owned() => "BAD_CHARACTER" "spec.place.symbol.module",
        |s| s.arguments[1].name = "a=%si".to_owned() => "BAD_CHARACTER" "spec.arguments[1].name",
        |s| s.arguments[1].name = "a\0".to_owned() => "BAD_CHARACTER" "spec.arguments[1].name",
        |s| source(s, Source::ImmediateString("a b".to_owned()))
            => "BAD_CHARACTER" "spec.arguments[1].fetch.immediate_string",
        |s| source(s, Source::ImmediateString("a:u8".to_owned()))
            => "BAD_CHARACTER" "spec.arguments[1].fetch.immediate_string",
        |s| source(s, Source::ImmediateString("\0".to_owned()))
            => "BAD_CHARACTER" "spec.arguments[1].fetch.immediate_string",
        |s| source(s, Source::ImmediateString("\u{a0}".to_owned())) => "BAD_CHARACTER" "spec.arguments[1].fetch.immediate_string",
        |s| source(s, parameter("a->b", &[])) => "BAD_CHARACTER" "spec.arguments[1].fetch.parameter.name",
        |s| source(s, parameter("$retval", &["x"])) => "NO_EQUIVALENT" "spec",
        |s| source(s, parameter("p", &["a.b"]))
            => "BAD_CHARACTER" "spec.arguments[1].fetch.parameter.members[0].name",
        |s| source(s, memory("a+8")) => "BAD_CHARACTER" "spec.arguments[1].fetch.memory.symbol.symbol",
        |s| source(s, memory("16")) => "BAD_MEM_ADDR" "spec.arguments[1].fetch.memory.symbol.symbol",
        |s| source(s, Source::Register("rdi".to_owned())) => "BAD_REG_NAME" "spec.arguments[1].fetch.register",
        |s| source(s, Source::Register("di):u8".to_owned())) => "BAD_REG_NAME" "spec.arguments[1].fetch.register",
    }
}

#[test]
fn numbers_out_of_range_have_the_kernels_code() {
    let bits = |width, offset, container_bits| {
        let field = v1::FetchBitField { width, offset, container_bits };
        Some(v1::FetchType { r#type: Some(v1::fetch_type::Type::BitField(field)), array_length: None })
    };
    let array = |length| {
        let name = v1::fetch_type::Type::Name(v1::FetchTypeName::U8.into());
        Some(v1::FetchType { r#type: Some(name), array_length: Some(length) })
    };
    cases! {
        |s| s.maxactive = Some(0) => "BAD_MAXACT" "spec.maxactive",
        |s| s.maxactive = Some(4097) => "MAXACT_TOO_BIG" "spec.maxactive",
        |s| s.maxactive = Some(70_000) => "MAXACT_TOO_BIG" "spec.maxactive",
        |s| (s.kind, s.maxactive) = (v1::ProbeKind::Entry.into(), Some(5)) => "BAD_MAXACT_TYPE" "spec.maxactive",
        |s| source(s, Source::StackNth(2049)) => "BAD_STACK_NUM" "spec.arguments[1].fetch.stack_nth",
        |s| source(s, Source::Argument(0)) => "BAD_ARG_NUM" "spec.arguments[1].fetch.argument",
        |s| s.arguments[0].r#type = array(0) => "BAD_ARRAY_NUM" "spec.arguments[0].type.array_length",
        |s| s.arguments[0].r#type = array(65) => "ARRAY_TOO_BIG" "spec.arguments[0].type",
        |s| s.arguments[0].r#type = array(1000) => "ARRAY_TOO_BIG" "spec.arguments[0].type.array_length",
        |s| s.arguments[0].r#type = bits(9, 0, 8) => "BAD_BITFIELD" "spec.arguments[0].type",
        |s| s.arguments[0].r#type = bits(0, 0, 8) => "BAD_BITFIELD" "spec.arguments[0].type",
        |s| s.arguments[0].r#type = bits(257, 0, 8) => "BAD_BITFIELD" "spec.arguments[0].type.bit_field.width",
        |s| s.arguments[0].r#type = bits(1, 0, 9) => "BAD_TYPE" "spec.arguments[0].type.bit_field.container_bits",
        |s| s.event = "9".to_owned() => "BAD_EVENT_NAME" "spec.event",
        |s| s.event = "x".repeat(64) => "EVENT_TOO_LONG" "spec.event",
        |s| s.arguments[1].name = "x".to_owned() => "USED_ARG_NAME" "spec.arguments[1].name",
        |s| s.arguments[0].name = "__kpd_g0".to_owned() => "RESERVED_ARG_NAME" "spec.arguments[0].name",
    }
}

#[test]
fn depth_is_bounded_before_anything_is_built() {
    let nested = |depth| {
        let mut inner = fetch(Source::Register("di".to_owned()));
        for _ in 0..depth {
            let outer = v1::FetchDereference { user: false, offset: 0, inner: inner.map(Box::new) };
            inner = fetch(Source::Dereference(Box::new(outer)));
        }
        inner
    };
    let (code, field) = refused(|s| s.arguments[0].fetch = nested(40));
    assert_eq!((code.as_str(), field.as_str()), ("ARG_TOO_LONG", "spec.arguments[0]"));
    let (code, field) = refused(|s| s.arguments[0].fetch = nested(300));
    assert_eq!(code, "TOO_MANY_NESTED");
    assert_eq!(field.matches(".dereference.inner").count(), 65);
}
