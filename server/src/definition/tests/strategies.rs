//! Trees of definitions as the parser makes them, most of which are definitions.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::definition::{
    Argument, BaseType, BtfMember, BtfRoot, Fetch, FetchKind, MemoryAddress, Name, Place, ProbeDefinition,
    ProbeKind, Register, Span, Type, Width,
};

const HERE: Span = Span { start: 0, end: 0 };

fn fetch(kind: FetchKind) -> Fetch {
    Fetch { kind, span: HERE }
}

fn values() -> impl Strategy<Value = FetchKind> {
    prop_oneof![
        proptest::sample::select(&Register::NAMES[..])
            .prop_map(|name| FetchKind::Register(Register::named(name).unwrap())),
        (0u32..=2048).prop_map(FetchKind::StackNth),
        Just(FetchKind::Stack),
        Just(FetchKind::Retval),
        (1u32..=2048).prop_map(FetchKind::Argument),
        any::<u64>().prop_map(|address| FetchKind::Memory(MemoryAddress::Address(address))),
        ("[a-z_][a-z0-9_.]{0,8}", any::<i64>().prop_map(|offset| offset.max(-i64::MAX)))
            .prop_map(|(symbol, offset)| FetchKind::Memory(MemoryAddress::Symbol { symbol, offset })),
        (-(1i128 << 63)..(1i128 << 64)).prop_map(FetchKind::Immediate),
        ("[a-z_][a-z0-9_]{0,6}", vec((any::<bool>(), "[a-z_][a-z0-9_]{0,6}"), 0..3)).prop_map(
            |(root, members)| {
                let members = members.into_iter().enumerate();
                let members = members
                    .map(|(index, (arrow, name))| BtfMember { arrow: arrow || index == 0, name })
                    .collect();
                FetchKind::Btf { root: BtfRoot::Parameter(root), members }
            }
        ),
    ]
}

fn expressions() -> impl Strategy<Value = Fetch> {
    (values(), vec((any::<bool>(), any::<i32>()), 0..5)).prop_map(|(value, derefs)| {
        derefs.into_iter().fold(fetch(value), |inner, (user, offset)| {
            fetch(FetchKind::Deref { user, offset, inner: Box::new(inner) })
        })
    })
}

fn texts() -> impl Strategy<Value = Fetch> {
    prop_oneof![Just(FetchKind::Comm), "[a-z\"(%é]{0,9}".prop_map(FetchKind::ImmediateString)].prop_map(fetch)
}

fn widths() -> impl Strategy<Value = Width> {
    proptest::sample::select(vec![Width::W8, Width::W16, Width::W32, Width::W64])
}

fn types() -> impl Strategy<Value = Type> {
    let base = prop_oneof![
        widths().prop_map(BaseType::Unsigned),
        widths().prop_map(BaseType::Signed),
        widths().prop_map(BaseType::Hex),
        (widths(), 1u8..=64, 0u8..64).prop_map(|(container, width, offset)| {
            let width = width.min(container.bits());
            BaseType::BitField { width, offset: offset.min(container.bits() - width), container }
        }),
        proptest::sample::select(vec![
            BaseType::Char,
            BaseType::Symbol,
            BaseType::String,
            BaseType::UserString,
            BaseType::SymbolString,
            BaseType::DentryName,
            BaseType::FileName,
        ]),
    ];
    (base, option::weighted(0.2, 1u8..=64)).prop_map(|(base, count)| Type { base, count, span: HERE })
}

fn names() -> impl Strategy<Value = Name> {
    "[a-z][a-z0-9_]{0,10}".prop_map(|text| Name { text, span: HERE })
}

pub(crate) fn arguments() -> impl Strategy<Value = Argument> {
    let numbers = (option::of(names()), expressions(), option::of(types()));
    let strings = (option::of(names()), texts(), Just(None));
    let all = (Just(None), Just(fetch(FetchKind::AllArguments)), Just(None));
    prop_oneof![16 => numbers, 4 => strings, 1 => all].prop_map(|(name, fetch, ty)| Argument {
        name,
        fetch,
        ty,
        span: HERE,
    })
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![
        (option::of("[a-z][a-z0-9_-]{0,8}"), "[a-zA-Z_][a-zA-Z0-9_.$]{0,30}", any::<u32>()).prop_map(
            |(module, symbol, offset)| Place::Symbol {
                // A `-` in the name of a module would start the offset.
                module: module.map(|module| module.replace('-', "_")),
                symbol,
                offset,
                span: HERE,
            }
        ),
        any::<u64>().prop_map(|address| Place::Address { address, span: HERE }),
    ]
}

pub(crate) fn definitions() -> impl Strategy<Value = ProbeDefinition> {
    (any::<bool>(), option::of(1u16..=4096), places(), vec(arguments(), 0..6)).prop_map(
        |(exit, maxactive, place, args)| ProbeDefinition {
            kind: if exit { ProbeKind::Return } else { ProbeKind::Entry },
            maxactive: maxactive.filter(|_| exit),
            group: Some(Name { text: "g".to_owned(), span: HERE }),
            event: Some(Name { text: "e".to_owned(), span: HERE }),
            place,
            args,
            warnings: Vec::new(),
            span: HERE,
        },
    )
}
