//! Tests of filters: text, types and meaning, against hand-written results and a second evaluator.

mod kernel;
mod meaning;
mod properties;
mod push_down;
mod refused;
mod strategies;

use std::ops::Range;

use super::*;
use crate::decode::{Base, FieldKind, FieldSchema, Schema};

/// A probe with one field of every kind.
fn schema() -> Schema {
    let number = |name: &str, kind, array_len| FieldSchema {
        base: Some(Base::Decimal),
        array_len,
        ..FieldSchema::new(name, kind)
    };
    let unsigned = |bytes| FieldKind::Unsigned { bytes };
    let signed = |bytes| FieldKind::Signed { bytes };
    Schema {
        fields: vec![
            number("u8", unsigned(1), None),
            number("s16", signed(2), None),
            number("s32", signed(4), None),
            number("u64", unsigned(8), None),
            number("s64", signed(8), None),
            number("text", FieldKind::String, None),
            number("letter", FieldKind::Char, None),
            number("place", FieldKind::Symbol, None),
            number("pair", signed(1), Some(2)),
            number("three", unsigned(1), Some(3)),
            number("texts", FieldKind::String, Some(2)),
        ],
        is_return: false,
    }
}

/// An event of that probe. Absent values could not be read.
#[derive(Debug, Clone, Default)]
struct Event {
    u8: Option<u8>,
    s16: Option<i16>,
    s32: Option<i32>,
    u64: Option<u64>,
    s64: Option<i64>,
    text: Option<String>,
    pair: Option<[i8; 2]>,
    comm: Option<String>,
    tgid: Option<i32>,
    tid: i32,
    cpu: u32,
}

impl FilterEvent for Event {
    fn number(&self, field: usize, element: usize) -> Option<u64> {
        let wide = |number: i64| number.cast_unsigned();
        match field {
            0 | 6 => self.u8.map(u64::from),
            1 => self.s16.map(|number| wide(number.into())),
            2 => self.s32.map(|number| wide(number.into())),
            3 | 7 => self.u64,
            4 => self.s64.map(wide),
            8 => self.pair.map(|pair| wide(pair[element].into())),
            _ => None,
        }
    }

    fn text(&self, field: usize) -> Option<&[u8]> {
        self.text.as_ref().filter(|_| field == 5 || field == 10).map(String::as_bytes)
    }

    fn ip(&self) -> Option<u64> {
        Some(0xffff_ffff_8100_0010)
    }

    fn return_ip(&self) -> Option<u64> {
        None
    }

    fn tid(&self) -> i32 {
        self.tid
    }

    fn tgid(&self) -> Option<i32> {
        self.tgid
    }

    fn comm(&self) -> Option<&[u8]> {
        self.comm.as_deref().map(str::as_bytes)
    }

    fn cpu(&self) -> u32 {
        self.cpu
    }

    fn type_id(&self) -> u16 {
        1392
    }

    fn flags(&self) -> u8 {
        0x40
    }

    fn preempt_count(&self) -> u8 {
        0xff
    }
}

/// Two adjacent functions, `one` and `two`.
struct TwoFunctions;

impl Functions for TwoFunctions {
    fn named(&self, name: &str) -> Option<Range<u64>> {
        let start = match name {
            "one" => 0xffff_ffff_8100_0000_u64,
            "two" => 0xffff_ffff_8100_0100,
            _ => return None,
        };
        Some(start..start + 0x100)
    }

    fn at(&self, address: u64) -> Option<Range<u64>> {
        ["one", "two"].into_iter().filter_map(|name| self.named(name)).find(|range| range.contains(&address))
    }

    fn nearest(&self, _name: &str) -> Option<&str> {
        Some("one")
    }
}

const BINDING: Binding<'static> =
    Binding { probe: "kprobes/open", host: "host1", functions: Some(&TwoFunctions) };

fn bind(text: &str) -> Result<BoundFilter, FilterError> {
    Filter::parse(text)?.bind(&schema(), &BINDING)
}

fn selects(text: &str, event: &Event) -> bool {
    bind(text).unwrap_or_else(|error| panic!("{text}: {error:?}")).matches(event)
}
