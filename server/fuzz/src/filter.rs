//! Property: parser and evaluator of subscription filters.
#![expect(clippy::cast_possible_truncation, reason = "any bits will do")]

use std::ops::Range;

use kprobed_trace::decode::{Base, FieldKind, FieldSchema, Schema};
use kprobed_trace::filter::{
    Binding, BoundFilter, Filter, FilterError, FilterEvent, Functions, KernelFilterFeatures,
};

/// Longest filter that is read, in bytes.
const TEXT_MAX_BYTES: usize = 4095;

/// Every other function has an address.
struct SomeFunctions;

impl Functions for SomeFunctions {
    fn named(&self, name: &str) -> Option<Range<u64>> {
        (name.len() % 2 == 1).then_some(0xffff_ffff_8100_0000..0xffff_ffff_8100_0040)
    }

    fn at(&self, address: u64) -> Option<Range<u64>> {
        Some(address..address.checked_add(1)?)
    }

    fn nearest(&self, _name: &str) -> Option<&str> {
        None
    }
}

/// An event made of one number.
struct Event {
    seed: u64,
    /// Whether everything could be read.
    readable: bool,
}

impl FilterEvent for Event {
    fn number(&self, field: usize, element: usize) -> Option<u64> {
        // As many bits as the field has: `a` has 8, `b` 32 with sign, `c` 16 in an array.
        let value = self.seed.rotate_left((8 * field + element) as u32);
        let value = match field {
            0 => value & 0xff,
            1 => i64::from(value as i32).cast_unsigned(),
            2 => value & 0xffff,
            _ => value,
        };
        self.readable.then_some(value)
    }

    fn text(&self, _field: usize) -> Option<&[u8]> {
        self.readable.then_some(b"/etc/passwd")
    }

    fn ip(&self) -> Option<u64> {
        Some(self.seed | 0xffff_ffff_0000_0000)
    }

    fn return_ip(&self) -> Option<u64> {
        Some(!self.seed)
    }

    fn tid(&self) -> i32 {
        self.seed as i32
    }

    fn tgid(&self) -> Option<i32> {
        self.readable.then_some(1)
    }

    fn comm(&self) -> Option<&[u8]> {
        self.readable.then_some(b"bash")
    }

    fn cpu(&self) -> u32 {
        self.seed as u32 % 4
    }

    fn type_id(&self) -> u16 {
        self.seed as u16
    }

    fn flags(&self) -> u8 {
        self.seed as u8
    }

    fn preempt_count(&self) -> u8 {
        0
    }
}

fn schema(is_return: bool) -> Schema {
    let field = |name: &str, kind, array_len| FieldSchema {
        base: Some(Base::Decimal),
        array_len,
        ..FieldSchema::new(name, kind)
    };
    Schema {
        fields: vec![
            field("a", FieldKind::Unsigned { bytes: 1 }, None),
            field("b", FieldKind::Signed { bytes: 4 }, None),
            field("c", FieldKind::Unsigned { bytes: 2 }, Some(4)),
            field("d", FieldKind::Symbol, None),
            field("s", FieldKind::String, None),
        ],
        is_return,
    }
}

/// Errors lie in the text and say what to do; the canonical text means the same; a filter and its
/// opposite never both select an event, and one of them does when everything can be read; the
/// kernel's filter selects no less.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let filter = match Filter::parse(text) {
        Ok(filter) => filter,
        Err(error) => return check_error(text, &error),
    };
    let canonical = filter.to_string();
    let again = Filter::parse(&canonical);
    assert!(again.is_ok() || canonical.len() > TEXT_MAX_BYTES, "{canonical:?}");
    let opposite = Filter::parse(&format!("!({canonical} )"));
    for schema in [schema(false), schema(true)] {
        let binding = Binding { probe: "g/e", host: "h", functions: Some(&SomeFunctions) };
        let bound = match filter.bind(&schema, &binding) {
            Ok(bound) => bound,
            Err(error) => {
                check_error(text, &error);
                continue;
            }
        };
        if let Ok(again) = &again {
            let again = again.bind(&schema, &binding).expect("it means the same");
            compare(&canonical, &bound, &again, |first, second, _| first == second);
        }
        if let Ok(opposite) = &opposite {
            let opposite = opposite.bind(&schema, &binding).expect("it has the same fields");
            compare(&canonical, &bound, &opposite, |first, second, readable| {
                !(first && second) && (first || second || !readable)
            });
        }
        let features = KernelFilterFeatures { functions: true, cpu_lists: true };
        for features in [KernelFilterFeatures::default(), features] {
            let Some(pushed) = bound.kernel_text(features).text else { continue };
            let kernel = Filter::parse(&pushed).unwrap_or_else(|error| panic!("{pushed:?}: {error}"));
            kernel.check_for_kernel(&schema, Some(&SomeFunctions)).expect("the kernel knows these fields");
            if let Ok(kernel) = kernel.bind(&schema, &binding) {
                compare(&pushed, &bound, &kernel, |ours, kernels, _| kernels || !ours);
            }
        }
    }
}

fn check_error(text: &str, error: &FilterError) {
    assert!(text.get(error.span.range()).is_some(), "{error:?} of {text:?}");
    assert!(!error.message.is_empty() && !error.hint.is_empty(), "{error:?}");
}

/// Compares both filters on events.
fn compare(text: &str, first: &BoundFilter, second: &BoundFilter, fits: impl Fn(bool, bool, bool) -> bool) {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..16 {
        seed = if round < 4 { round } else { (seed | 1).wrapping_mul(0x2545_f491_4f6c_dd1d) ^ seed >> 31 };
        let event = Event { seed, readable: round % 3 != 2 };
        assert!(fits(first.matches(&event), second.matches(&event), event.readable), "{text:?} {seed:#x}");
    }
}
