//! Evaluation of one comparison on one event.
//!
//! Owns width and sign. `bind` has checked the operand: nothing is truncated here.

use super::ast::Operator;
use super::cpus::CpuSet;
use super::fields::Source;
use super::interfaces::FilterEvent;
use super::notation::{sign_extended, swapped};
use super::pattern::Pattern;

/// A comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Test {
    /// Of a number.
    Number {
        load: Load,
        operator: Operator,
        /// Extended as the value is.
        operand: u64,
    },
    /// Of a number with addresses: whether it is among them.
    Within { load: Load, start: u64, end: u64 },
    /// Of a number without its sign with CPUs: whether it is one of them.
    Cpus { load: Load, set: CpuSet },
    /// Of a text: whether it is like this.
    Text { source: Source, pattern: Pattern },
}

/// Where a number comes from, and how large it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) source: Source,
    /// 1, 2, 4 or 8.
    pub(super) bytes: u32,
    pub(super) signed: bool,
    /// Whether its bytes are turned round first.
    pub(super) swapped: bool,
    /// Whether the kernel has 64 bits, of which these are the lower.
    pub(super) is_lower_half: bool,
}

impl Operator {
    /// Whether it depends on which of two numbers is the larger one.
    pub(super) const fn is_of_order(self) -> bool {
        matches!(self, Self::Less | Self::LessOrEqual | Self::Greater | Self::GreaterOrEqual)
    }

    /// Whether it holds for two numbers, which have no patterns.
    #[inline]
    fn holds(self, value: u64, operand: u64, signed: bool) -> bool {
        // With the top bit turned over, signed numbers are in the order of unsigned ones.
        let turn = if signed { 1 << 63 } else { 0 };
        let (ordered, bound) = (value ^ turn, operand ^ turn);
        match self {
            Self::Equal => value == operand,
            Self::NotEqual => value != operand,
            Self::Less => ordered < bound,
            Self::LessOrEqual => ordered <= bound,
            Self::Greater => ordered > bound,
            Self::GreaterOrEqual => ordered >= bound,
            Self::Bits => value & operand != 0,
            Self::Glob => false,
        }
    }
}

impl Load {
    /// The value with its sign, or zeros, extended to 64 bits.
    #[inline]
    fn value(self, event: &impl FilterEvent) -> Option<u64> {
        match self.source {
            Source::Own { index, elements: 1, .. } if self.swapped => {
                Some(self.cut(swapped(event.number(index, 0)?, self.bytes as usize)))
            }
            Source::Own { index, elements: 1, .. } => event.number(index, 0),
            Source::Own { index, elements, .. } => self.whole_array(event, index, elements),
            Source::Ip => event.ip(),
            Source::ReturnIp => event.return_ip(),
            Source::Tid => Some(extended(event.tid())),
            Source::Tgid => event.tgid().map(extended),
            Source::Cpu => Some(event.cpu().into()),
            Source::Type => Some(event.type_id().into()),
            Source::Flags => Some(event.flags().into()),
            Source::PreemptCount => Some(event.preempt_count().into()),
            Source::Comm | Source::Probe | Source::Host => None,
        }
    }

    /// The first value of an array lowest: the bytes as they are in the record.
    fn whole_array(self, event: &impl FilterEvent, index: usize, elements: u32) -> Option<u64> {
        let bits = (self.bytes * 8).checked_div(elements)?;
        let mut whole = 0;
        for element in (0..elements).rev() {
            let value = event.number(index, element as usize)?;
            whole = whole << bits | value & mask(bits);
        }
        Some(self.cut(whole))
    }

    /// A number as this would load it.
    pub(super) const fn cut(self, number: u64) -> u64 {
        if self.signed {
            sign_extended(number, self.bytes as usize).cast_unsigned()
        } else {
            number & mask(self.bytes * 8)
        }
    }
}

/// As many low bits.
pub(super) const fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

fn extended(number: i32) -> u64 {
    i64::from(number).cast_unsigned()
}

impl Test {
    /// Whether it holds for an event; absent when the value could not be read.
    #[inline]
    pub(super) fn holds(&self, event: &impl FilterEvent) -> Option<bool> {
        match self {
            Self::Number { load, operator, operand } => {
                Some(operator.holds(load.value(event)?, *operand, load.signed))
            }
            Self::Within { load, start, end } => Some((*start..*end).contains(&load.value(event)?)),
            Self::Cpus { load, set } => {
                // The kernel keeps 32 bits of the value (DEFINE_CPUMASK_COMPARISON_PRED).
                let cpu = load.value(event)? & mask(load.bytes * 8) & mask(32);
                Some(u32::try_from(cpu).is_ok_and(|cpu| set.contains(cpu)))
            }
            Self::Text { source: Source::Own { index, .. }, pattern } => {
                Some(pattern.matches(event.text(*index)?))
            }
            Self::Text { source: _, pattern } => Some(pattern.matches(event.comm()?)),
        }
    }
}
