//! Kernel addresses in filters: which comparisons can tell where the kernel is in memory.
//!
//! Owns which numbers and which fields count as addresses: the same list decides what is hidden in events, in
//! counts and in filters. Never decides who may see them.

use std::ops::Range;

use super::Filter;
use super::ast::{Number, Operand, Operator, Suffix, Term};
use super::fields::is_of_all_events;
use crate::{FieldKind, FieldSchema, Notation, Schema, Span};

/// The kernel's half of the address space, with four or five levels of page tables, up to the fixmap
/// (Documentation/arch/x86/x86_64/mm.rst). Above are small negative numbers.
pub const KERNEL_ADDRESSES: Range<u64> = 0xff00_0000_0000_0000..0xffff_ffff_ff60_0000;

/// Bits below these are the same wherever the kernel is: it moves by whole pages.
const PAGE_BYTES: u64 = 4096;

/// Fields with places of a probe: their numbers are hidden, and their names are no secret.
const PLACES: [&str; 3] = ["__probe_ip", "__probe_func", "__probe_ret_ip"];

impl FieldKind {
    /// Whether a value can be a kernel address as it is: all 64 bits of one. A symbol's name is none.
    pub const fn can_hold_address(self) -> bool {
        matches!(self, Self::Unsigned { bytes: 8 } | Self::Signed { bytes: 8 } | Self::Symbol)
    }
}

impl FieldSchema {
    /// Whether its texts are names of symbols, or the addresses that have none. Who may not see addresses compares such
    /// texts as they are shown, with the addresses hidden.
    pub fn names_addresses(&self) -> bool {
        self.kind == FieldKind::SymbolName || matches!(self.notation, Notation::Stack | Notation::Symbol)
    }
}

impl Schema {
    /// Whether a value of this field can be a kernel address. Absent if the probe has no such field.
    pub fn can_hold_address(&self, name: &str) -> Option<bool> {
        let field = self.fields.iter().find(|field| field.name == name)?;
        // Of a symbol's name the kernel compares the address.
        Some(field.kind.can_hold_address() || field.kind == FieldKind::SymbolName)
    }
}

impl Filter {
    /// The first comparison that can tell which kernel address a field holds: with an address, with bits of one, with
    /// a function, or with CPUs. For every other comparison all kernel addresses are the same.
    /// `can_hold_address` says it of a field of the probe, and nothing of one that is not known: a field
    /// that not all events have can then be anything.
    pub fn tells_address(&self, can_hold_address: impl Fn(&str) -> Option<bool>) -> Option<Span> {
        let mut found = None;
        self.expression.terms(&mut |term| {
            if found.is_none() && tells(term, &can_hold_address) {
                found = Some(term.span);
            }
        });
        found
    }
}

/// Whether a field is a place of a probe: neither its definition nor a caller of the function chooses the number.
pub fn is_place(field: &str) -> bool {
    PLACES.contains(&field)
}

/// Whether buckets of this width can tell which kernel address a number is: their bounds are numbers that a client
/// chooses, and two numbers in one bucket have no bound between them. Buckets of which a page holds a whole number
/// tell nothing but bits that are the same wherever the kernel is.
pub fn buckets_tell_address(width: u64) -> bool {
    !PAGE_BYTES.is_multiple_of(width)
}

fn tells(term: &Term, can_hold_address: &impl Fn(&str) -> Option<bool>) -> bool {
    let is_place = is_place(&term.field);
    if term.suffix == Some(Suffix::Function) {
        // A name for the place of a probe is not a secret; a name for another number, or the function
        // at a number that the filter chooses, is.
        return !is_place || !matches!(term.operand, Operand::Function(_));
    }
    if !is_place && !can_hold_address(&term.field).unwrap_or_else(|| !is_of_all_events(&term.field)) {
        return false;
    }
    match &term.operand {
        Operand::Number { value, .. } => {
            let number = match *value {
                Number::Unsigned(number) => number,
                Number::Negative(number) => number.cast_unsigned(),
            };
            if term.operator == Operator::Bits {
                number >= PAGE_BYTES
            } else {
                KERNEL_ADDRESSES.contains(&number)
            }
        }
        Operand::Cpus { .. } | Operand::Function(_) => true,
        // A name is not a secret, and an address without a name is hidden before the comparison.
        Operand::Text(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Binding;
    use crate::interfaces::TestHit;

    #[test]
    fn buckets_that_fill_a_page_tell_no_address() {
        for width in [1, 2, 16, 512, 4096] {
            assert!(!buckets_tell_address(width), "{width}");
        }
        for width in [0, 3, 200, 4095, 8192, 1 << 21, KERNEL_ADDRESSES.start, u64::MAX] {
            assert!(buckets_tell_address(width), "{width}");
        }
    }

    /// A hit whose numbers of 64 bits are one address, and all others 7.
    fn hit(address: u64) -> TestHit<impl Fn(usize) -> u64> {
        let kinds: Vec<_> = schema().fields.into_iter().map(|field| field.kind).collect();
        let numbers = move |field: usize| if kinds[field].can_hold_address() { address } else { 7 };
        TestHit { numbers, text: Some("text"), address }
    }

    fn schema() -> Schema {
        let field = FieldSchema::new;
        Schema {
            fields: vec![
                // Hides a field of all events from the kernel.
                field("common_cpu", FieldKind::Unsigned { bytes: 8 }),
                field("u", FieldKind::Unsigned { bytes: 8 }),
                field("s", FieldKind::Signed { bytes: 8 }),
                field("k", FieldKind::Symbol),
                field("half", FieldKind::Unsigned { bytes: 4 }),
                field("t", FieldKind::String),
            ],
            is_return: false,
        }
    }

    fn told(text: &str) -> Option<String> {
        let schema = schema();
        let span = Filter::parse(text).unwrap().tells_address(|name| schema.can_hold_address(name))?;
        Some(text[span.start..span.end].to_owned())
    }

    #[test]
    fn comparisons_with_addresses_tell_them() {
        for text in [
            "__probe_ip >= 0xffffffff81000000",
            "u == 0xffff888100000000",
            "s < -43400572577562792",
            "k > 0xffffffff80000000",
            "u & 0x200000",
            "__probe_ip & 0x1000",
            "u & CPUS{0-8191}",
            "u.function == vfs_read",
            "__probe_ip.function == 0xffffffff81234567",
            "nosuch > 0xffffffff80000000",
            "common_cpu & 0x200000",
        ] {
            assert_eq!(told(text).as_deref(), Some(text));
            assert_eq!(told(&format!("comm == \"cat\" && !(half == 1 || {text} )")).as_deref(), Some(text));
        }
        for text in [
            "u > 4096",
            "u == 0x7fff00000000",
            "s < -4095",
            "u & 0xfff",
            "half & 0x200000",
            "__probe_ip.function == vfs_read",
            "cpu & CPUS{1}",
            "t ~ \"*x\"",
            "common_pid == 7",
        ] {
            assert_eq!(told(text), None, "{text}");
        }
    }

    fn operands() -> impl Strategy<Value = u64> {
        let edges =
            vec![KERNEL_ADDRESSES.start, KERNEL_ADDRESSES.end, 0, 1 << 12, 1 << 21, 1 << 63, u64::MAX];
        prop_oneof![
            any::<u64>(),
            KERNEL_ADDRESSES,
            0_u64..1 << 14,
            (proptest::sample::select(edges), -3_i64..=3).prop_map(|(edge, by)| edge.wrapping_add_signed(by)),
        ]
    }

    /// An address in the same place of its page.
    fn addresses() -> impl Strategy<Value = u64> {
        KERNEL_ADDRESSES.prop_map(|address| address & !(PAGE_BYTES - 1) | 0x560)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// A filter that tells no address selects all addresses or none.
        #[test]
        fn what_tells_nothing_does_not_depend_on_the_address(
            terms in proptest::collection::vec(
                ("u|s|k|half|__probe_ip|cpu|common_pid", "==|!=|<|<=|>|>=|&", operands(), any::<bool>()), 1..4,
            ),
            any_of in any::<bool>(),
            (one, other) in (addresses(), addresses()),
        ) {
            let signed = ["s", "common_pid"];
            let terms: Vec<_> = terms.into_iter().map(|(field, operator, operand, negated)| {
                let value = if signed.contains(&field.as_str()) { operand.cast_signed().to_string() } else { operand.to_string() };
                format!("{}{field} {operator} {value}", if negated { "!" } else { "" })
            }).collect();
            let text = terms.join(if any_of { " || " } else { " && " });
            let (filter, schema) = (Filter::parse(&text).unwrap(), schema());
            let binding = Binding { probe: "g/e", host: "h", functions: None };
            if let Ok(bound) = filter.bind(&schema, &binding)
                && filter.tells_address(|name| schema.can_hold_address(name)).is_none()
            {
                prop_assert_eq!(bound.matches(&hit(one)), bound.matches(&hit(other)), "{} {:#x} {:#x}", text, one, other);
            }
        }
    }
}
