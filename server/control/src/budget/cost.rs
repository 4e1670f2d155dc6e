//! Cost of a hit: the processor time that one run of a probe takes from the task that ran into it.
//!
//! Owns the figures, by the way in which the kernel arms a probe and by what it fetches. Plain
//! functions: never measures anything.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use kprobed_lang::definition::{ProbeKind, guard};
use kprobed_verdict::validate::Arming;

/// Prefix of the names of guards ([`kprobed_lang::definition`]).
const GUARD: &str = "__kpd_g";

/// What a hit fetches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fetches {
    /// Arguments, but for guards.
    arguments: u32,
    /// Reads of memory among them: each step of a pointer, and each element of an array.
    reads: u32,
    /// Texts among them. The kernel goes through the bytes of each twice: for its length, and to copy it
    /// (kernel/trace/trace_probe_tmpl.h).
    texts: u32,
    /// Hidden arguments that show whether another one has faulted. They end with a fault of their own.
    guards: u32,
}

impl Fetches {
    /// Those of a line of `kprobe_events`.
    fn of(line: &str) -> Self {
        let mut found = Self::default();
        for argument in line.split_ascii_whitespace().skip(2) {
            if argument.starts_with(GUARD) {
                found.guards = found.guards.saturating_add(1);
                continue;
            }
            found.arguments = found.arguments.saturating_add(1);
            if argument.starts_with(guard::END) {
                // A text that is written in the definition: nothing is read.
                continue;
            }
            let fetched = argument.split_once('=').map_or(argument, |(_, fetched)| fetched);
            let (fetched, ty) = fetched.rsplit_once(':').unwrap_or((fetched, ""));
            let steps = fetched.matches('(').count() + fetched.matches("->").count();
            let steps = steps + usize::from(fetched.contains('@'));
            let is_text = ["string", "ustring", "symstr"].iter().any(|text| ty.starts_with(text));
            let is_text = is_text || fetched == "$comm";
            // The last step to a text is the text: DEREF becomes ST_STRING
            // (kernel/trace/trace_probe.c:traceprobe_parse_probe_arg_body).
            let reads = if is_text { steps.saturating_sub(1) } else { steps };
            let length = array_length(ty);
            // Each further element of an array is read at its own address.
            let reads = u32::try_from(reads).unwrap_or(u32::MAX).saturating_add(length.saturating_sub(1));
            found.reads = found.reads.saturating_add(reads);
            found.texts = found.texts.saturating_add(if is_text { length } else { 0 });
        }
        found
    }
}

/// The number of elements of a type such as `u8[16]`, or 1.
fn array_length(ty: &str) -> u32 {
    ty.split_once('[').and_then(|(_, rest)| rest.strip_suffix(']')?.parse().ok()).unwrap_or(1)
}

/// A cost in nanoseconds, and how far it may be off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HitCost {
    /// The cost.
    pub ns: f64,
    /// Its error, to both sides.
    pub error_ns: f64,
}

impl HitCost {
    /// One that may be half, or one and a half.
    const fn about(ns: f64) -> Self {
        Self { ns, error_ns: ns / 2.0 }
    }

    fn times(self, factor: f64) -> Self {
        Self { ns: self.ns * factor, error_ns: self.error_ns * factor }
    }

    fn plus(self, other: Self) -> Self {
        Self { ns: self.ns + other.ns, error_ns: self.error_ns + other.error_ns }
    }
}

/// The nearest whole number of nanoseconds, hits or bytes; 0 for a negative number.
pub(super) fn whole(number: f64) -> u64 {
    let as_time = Duration::try_from_secs_f64(number / 1e9);
    as_time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// The figures of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostTable {
    pub(super) ftrace: HitCost,
    pub(super) optimised: HitCost,
    pub(super) breakpoint: HitCost,
    pub(super) return_: HitCost,
    pub(super) argument: HitCost,
    pub(super) read: HitCost,
    /// Of some 16 bytes.
    pub(super) text: HitCost,
    pub(super) guard: HitCost,
    /// Whether they were measured on this host.
    pub is_calibrated: bool,
}

impl CostTable {
    /// About twice of what servers of the last years take, so that a budget holds on slow ones
    /// too. An emulated or nested guest can take ten times as much.
    pub(super) const CONSERVATIVE: Self = Self {
        ftrace: HitCost::about(500.0),
        optimised: HitCost::about(500.0),
        breakpoint: HitCost::about(1500.0),
        return_: HitCost::about(1000.0),
        argument: HitCost::about(20.0),
        read: HitCost::about(100.0),
        text: HitCost::about(200.0),
        guard: HitCost::about(500.0),
        is_calibrated: false,
    };

    /// The conservative figures, each multiplied by the factor.
    pub(super) fn scaled(factor: f64) -> Self {
        let of = Self::CONSERVATIVE;
        Self {
            ftrace: of.ftrace.times(factor),
            optimised: of.optimised.times(factor),
            breakpoint: of.breakpoint.times(factor),
            return_: of.return_.times(factor),
            argument: of.argument.times(factor),
            read: of.read.times(factor),
            text: of.text.times(factor),
            guard: of.guard.times(factor),
            is_calibrated: of.is_calibrated,
        }
    }

    /// The cost of a hit of a probe with this line of `kprobe_events`, whatever values it reads. A place that was not
    /// looked at counts as a breakpoint, the dearest.
    pub fn hit(&self, kind: ProbeKind, arming: Option<Arming>, line: &str) -> HitCost {
        let base = match (kind, arming) {
            (ProbeKind::Return, _) => self.return_,
            (ProbeKind::Entry, Some(Arming::Ftrace)) => self.ftrace,
            (ProbeKind::Entry, Some(Arming::Optimised)) => self.optimised,
            // The daemon asks for no cost of an event of the host.
            (ProbeKind::Entry, Some(Arming::Breakpoint) | None) | (ProbeKind::Event, _) => self.breakpoint,
        };
        let Fetches { arguments, reads, texts, guards } = Fetches::of(line);
        base.plus(self.argument.times(arguments.into()))
            .plus(self.read.times(reads.into()))
            .plus(self.text.times(texts.into()))
            .plus(self.guard.times(guards.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded() {
        for (number, expected) in [(0.0, 0), (1.0, 1), (1234.9, 1235), (5e12, 5_000_000_000_000), (-1.0, 0)] {
            assert_eq!(whole(number), expected, "{number}");
        }
    }

    #[test]
    fn fetches_are_those_of_the_line() {
        for (line, arguments, reads, texts, guards) in [
            ("p:kprobes/a f", 0, 0, 0, 0),
            ("p:kprobes/a f a=%di:u64 b=%si", 2, 0, 0, 0),
            (
                "p:kprobes/a f a=+0(%di):x64 __kpd_g0=-2147483647(+0(%di)):ustring __kpd_end=\\\"k\":string",
                2,
                1,
                0,
                1,
            ),
            ("p:kprobes/a f name=+0(+32(%si)):ustring", 1, 1, 1, 0),
            ("r16:kprobes/a f child=$retval:s32 comm=$comm", 2, 0, 1, 0),
            ("p:kprobes/a f comm=$comm:string names=+0(%si):string[3]", 2, 2, 4, 0),
            ("p:kprobes/a f j=@jiffies:u64 d=path->dentry->d_flags:u32", 2, 3, 0, 0),
            ("p:kprobes/a f b=+0(%si):u8[16]", 1, 16, 0, 0),
            ("p:kprobes/a f +8(%sp)", 1, 1, 0, 0),
        ] {
            assert_eq!(Fetches::of(line), Fetches { arguments, reads, texts, guards }, "{line}");
        }
    }

    #[test]
    fn what_a_hit_costs_goes_by_the_way_and_what_it_fetches() {
        let table = CostTable::CONSERVATIVE;
        let entry = |arming| table.hit(ProbeKind::Entry, arming, "p:a/b f").ns;
        let (ftrace, breakpoint) = (entry(Some(Arming::Ftrace)), entry(Some(Arming::Breakpoint)));
        assert!(ftrace < breakpoint && breakpoint <= entry(None));
        let returning = table.hit(ProbeKind::Return, Some(Arming::Ftrace), "r4:a/b f").ns;
        assert!(ftrace < returning);
        let fetching = table.hit(ProbeKind::Entry, Some(Arming::Ftrace), "p:a/b f x=+0(%di) y=+0(+8(%di))");
        assert!((fetching.ns - ftrace - 340.0).abs() < 1e-9, "{fetching:?}");
        let table = CostTable { guard: HitCost { ns: 300.0, error_ns: 210.0 }, ..table };
        let line = "p:a/b f __kpd_g0=-2147483647(+0(%di)):ustring __kpd_g1=-2147483647(+8(%di)):ustring";
        let either = table.hit(ProbeKind::Entry, Some(Arming::Ftrace), line);
        assert!(
            (either.ns - ftrace - 600.0).abs() < 1e-9 && (either.error_ns - 670.0).abs() < 1e-9,
            "{either:?}"
        );
        let slow = CostTable::scaled(10.0).hit(ProbeKind::Entry, Some(Arming::Ftrace), "p:a/b f");
        assert_eq!(slow, HitCost { ns: 5000.0, error_ns: 2500.0 });
    }
}
