//! What a check found.

use std::ops::Range;

use super::{Target, judge};
use crate::definition::{ProbeDefinition, Span};
use crate::insn;
use crate::kernel::KernelFacts;

/// Why a place is refused. The names are those that clients see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// No such symbol.
    UnknownSymbol,
    /// Several symbols of that name.
    AmbiguousSymbol,
    /// The offset lies behind the function's end. The kernel would silently probe what is there.
    OutsideFunction,
    /// An address that no function holds. The kernel would accept it and never fire.
    NoFunction,
    /// The bytes there can not be read.
    UnreadableCode,
    /// A return probe that is not at a function's entry.
    NotFunctionEntry,
    /// A function that ftrace does not trace.
    NotraceFunction,
    /// A range that kprobes must not touch.
    Blacklisted,
    /// Not the beginning of an instruction.
    InstructionBoundary,
}

impl Rule {
    /// Stable identifier: the kernel's own where it has one for exactly this.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownSymbol => "BAD_PROBE_ADDR",
            Self::AmbiguousSymbol => "NON_UNIQ_SYMBOL",
            Self::OutsideFunction => "OUTSIDE_FUNCTION",
            Self::NoFunction => "NO_FUNCTION",
            Self::UnreadableCode => "UNREADABLE_CODE",
            Self::NotFunctionEntry => "BAD_RETPROBE",
            Self::NotraceFunction => "NOTRACE_FUNCTION",
            Self::Blacklisted => "BLACKLISTED",
            Self::InstructionBoundary => "BAD_INSN_BNDRY",
        }
    }

    /// The errno that a write to `kprobe_events` would give.
    pub fn errno(self) -> i32 {
        use nix::errno::Errno;
        (match self {
            Self::InstructionBoundary => Errno::EILSEQ,
            _ => Errno::EINVAL,
        }) as i32
    }
}

/// A refusal with everything that there is to say about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rule that was broken.
    pub rule: Rule,
    /// What is wrong.
    pub message: String,
    /// What to do instead; empty when there is nothing to say.
    pub hint: String,
    /// The part of the definition that is at fault.
    pub span: Span,
}

/// How the kernel would arm a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arming {
    /// Through the function's ftrace call site. Stops when `kernel.ftrace_enabled` is 0.
    Ftrace,
    /// Through a breakpoint, which the kernel may replace by a jump later.
    Breakpoint,
}

/// One instruction of a listing.
#[derive(Clone, Debug)]
pub struct ShownInstruction {
    /// The instruction.
    pub instruction: insn::Instruction,
    /// Why no probe can be placed here; absent when one can.
    pub refusal: Option<String>,
}

/// Outcome of a check.
#[derive(Clone, Debug)]
pub struct Report {
    /// Why not; absent when the probe would be accepted.
    pub refusal: Option<Refusal>,
    /// `FUNCTION+0xOFFSET`, when that is known.
    pub location: String,
    /// Whether the place is the entry of a function, where its arguments still are in their registers.
    pub is_entry: bool,
    /// Addresses of the function.
    pub code_range: Option<Range<u64>>,
    /// How it would be armed; absent when it would not.
    pub arming: Option<Arming>,
    /// The probe's module is not loaded: the kernel takes the probe and registers it when the module comes. Its name.
    pub absent_module: Option<String>,
    /// Instructions around the place.
    pub listing: Vec<ShownInstruction>,
    /// The nearest offset before the place that works.
    pub nearest_before: Option<u32>,
    /// The nearest offset after the place that works.
    pub nearest_after: Option<u32>,
}

impl Report {
    pub(super) fn accepted(target: &Target, arming: Arming, listing: Vec<ShownInstruction>) -> Self {
        let mut report = Self::about(Some(target), listing);
        report.arming = Some(arming);
        report
    }

    pub(super) fn refused(
        mut refusal: Refusal,
        target: Option<&Target>,
        listing: Vec<ShownInstruction>,
    ) -> Self {
        let mut report = Self::about(target, listing);
        if refusal.hint.is_empty() {
            refusal.hint = match (report.nearest_before, report.nearest_after) {
                (Some(before), Some(after)) => format!("+{before} and +{after} work"),
                (Some(only), None) | (None, Some(only)) => format!("+{only} works"),
                (None, None) => String::new(),
            };
        }
        report.refusal = Some(refusal);
        report
    }

    pub(super) fn waiting(module: &str) -> Self {
        Self { absent_module: Some(module.to_owned()), ..Self::about(None, Vec::new()) }
    }

    fn about(target: Option<&Target>, listing: Vec<ShownInstruction>) -> Self {
        let offset = target.map_or(0, |target| target.offset);
        let works =
            || listing.iter().filter(|shown| shown.refusal.is_none()).map(|shown| shown.instruction.offset);
        Self {
            refusal: None,
            location: target.map(Target::location).unwrap_or_default(),
            is_entry: target.is_some_and(|target| target.is_entry(target.offset)),
            code_range: target.map(|target| target.start..target.start.saturating_add(target.size)),
            arming: None,
            absent_module: None,
            nearest_before: works().rfind(|works| u64::from(*works) < offset),
            nearest_after: works().find(|works| u64::from(*works) > offset),
            listing,
        }
    }
}

/// How many instructions a listing shows on either side of the place.
const CONTEXT_INSTRUCTIONS: usize = 8;

/// Instructions around the place, each judged by the same rules. The window grows until it holds a working place on either side, if
/// the function has one.
pub(super) fn listing_around(
    definition: &ProbeDefinition,
    target: &Target,
    facts: &KernelFacts,
) -> Vec<ShownInstruction> {
    let shown: Vec<_> = insn::listing(&target.code, target.start)
        .into_iter()
        .map(|instruction| {
            let verdict = judge(definition, target, instruction.offset.into(), facts);
            ShownInstruction { instruction, refusal: verdict.err().map(|refusal| refusal.message) }
        })
        .collect();
    let works = |index: &usize| shown.get(*index).is_some_and(|shown| shown.refusal.is_none());
    let at = shown.partition_point(|shown| u64::from(shown.instruction.offset) < target.offset);
    let before = (0..at).rev().find(works).unwrap_or(at);
    let after = (at + 1..shown.len()).find(works).unwrap_or(at);
    let first = at.saturating_sub(CONTEXT_INSTRUCTIONS).min(before);
    let last = (at + CONTEXT_INSTRUCTIONS).max(after).min(shown.len().saturating_sub(1));
    shown.into_iter().skip(first).take((last + 1).saturating_sub(first)).collect()
}
