//! A case: a place in kernel code, with the facts that the rules need.
//!
//! Owns reading the code and decoding the function, each once and only if a rule needs it. Never
//! judges.

use std::cell::OnceCell;
use std::ops::Range;

use super::functions;
use super::optimise::Optimiser;
use super::report::{Arming, Report, refusal};
use kprobed_host::insn;
use kprobed_host::kernel::{KernelFacts, Located};
use kprobed_lang::definition::{Code, Diagnostic, ProbeDefinition, ProbeKind};

/// A function, and the place in it to judge.
pub(super) struct Case<'a> {
    /// The definition.
    pub(super) definition: &'a ProbeDefinition,
    /// The facts of the kernel.
    pub(super) facts: &'a KernelFacts,
    /// Name of the function: the first of its address, which is the one that the kernel uses.
    pub(super) function: &'a str,
    /// Its module; absent for the kernel itself.
    pub(super) module: Option<&'a str>,
    /// Whether it is code at all.
    pub(super) is_code: bool,
    /// Address of its first byte.
    pub(super) start: u64,
    /// Distance to the next symbol, in bytes.
    pub(super) size: u64,
    /// The place, in bytes from the start.
    pub(super) offset: u64,
    /// How much of the code is needed.
    needed_bytes: u64,
    code: OnceCell<Vec<u8>>,
    optimiser: OnceCell<Option<Optimiser<'a>>>,
}

/// No function is larger; what kallsyms takes for one may be a hole between sections.
pub(super) const MAX_FUNCTION_BYTES: u64 = 1 << 20;

impl<'a> Case<'a> {
    /// The case of an address. Absent if the kernel has no name for it.
    pub(super) fn at(definition: &'a ProbeDefinition, address: u64, facts: &'a KernelFacts) -> Option<Self> {
        let located = facts.symbols.locate(address)?;
        let Located { symbol, offset, size } = located;
        Some(Self {
            definition,
            facts,
            function: symbol.name,
            module: symbol.module,
            is_code: symbol.is_code(),
            start: symbol.address,
            size,
            offset,
            // The instruction at the place, and the beginning of the function.
            needed_bytes: offset.saturating_add(insn::MAX_INSTRUCTION_BYTES as u64 + 4),
            code: OnceCell::new(),
            optimiser: OnceCell::new(),
        })
    }

    /// The case of the function that a report is about, if it has one.
    pub(super) fn of_report(
        definition: &'a ProbeDefinition,
        report: &Report,
        facts: &'a KernelFacts,
    ) -> Option<Self> {
        Self::at(definition, report.code_range.as_ref()?.start, facts)
    }

    /// The case with all of the function's code.
    pub(super) fn whole(mut self) -> Self {
        self.needed_bytes = self.size;
        self.code = OnceCell::new();
        self
    }

    /// The case with other code, from the start of the function.
    pub(super) fn with_code(mut self, code: Vec<u8>) -> Self {
        self.code = OnceCell::from(code);
        self
    }

    /// The code from the start of the function to the end of the place, as the kernel's checks see
    /// it. Read when first needed; empty if it cannot be read.
    pub(super) fn code(&self) -> &[u8] {
        self.code.get_or_init(|| {
            let margin = insn::MAX_INSTRUCTION_BYTES as u64;
            let length = self.needed_bytes.min(self.size.saturating_add(margin)).min(MAX_FUNCTION_BYTES);
            self.facts.code(self.start, usize::try_from(length).unwrap_or_default())
        })
    }

    /// The function as the kernel's jump optimisation sees it. None if that leaves the function out.
    pub(super) fn optimiser(&self) -> Option<&Optimiser<'a>> {
        self.optimiser.get_or_init(|| Optimiser::new(self)).as_ref()
    }

    /// The code from an offset on.
    pub(super) fn code_from(&self, offset: u64) -> &[u8] {
        usize::try_from(offset).ok().and_then(|offset| self.code().get(offset..)).unwrap_or_default()
    }

    /// Bytes of ENDBR at the start: on such a function offset 0 means the instruction after it
    /// (arch/x86/kernel/kprobes/core.c:arch_adjust_kprobe_addr).
    pub(super) fn endbr_bytes(&self) -> u64 {
        insn::endbr_bytes(self.code()) as u64
    }

    /// Whether an offset is the function's entry (kernel/kprobes.c:kprobe_on_func_entry).
    pub(super) fn is_entry(&self, offset: u64) -> bool {
        offset == 0 || offset == self.endbr_bytes()
    }

    /// The offset at which the kernel really places a probe for this offset.
    pub(super) fn effective_offset(&self, offset: u64) -> u64 {
        if offset == 0 { self.endbr_bytes() } else { offset }
    }

    /// That offset as an address.
    pub(super) fn address_of(&self, offset: u64) -> u64 {
        self.start.wrapping_add(self.effective_offset(offset))
    }

    /// How a probe at an offset would be armed: an address that is a call site is armed through
    /// ftrace (kernel/kprobes.c:check_ftrace_location).
    pub(super) fn arming(&self, offset: u64) -> Arming {
        let through_ftrace = self.facts.traceable.is_site(self.address_of(offset));
        if through_ftrace { Arming::Ftrace } else { Arming::Breakpoint }
    }

    /// How it would be armed in the end: see [`super::predicted_arming`].
    pub(super) fn final_arming(&self, offset: u64) -> Arming {
        let at = self.effective_offset(offset);
        let becomes_jump = || self.optimiser().is_some_and(|optimiser| optimiser.makes_jump(at));
        match self.arming(offset) {
            Arming::Breakpoint if becomes_jump() => Arming::Optimised,
            arming => arming,
        }
    }

    /// Whether the definition is of a return probe.
    pub(super) fn is_return(&self) -> bool {
        self.definition.kind == ProbeKind::Return
    }

    /// Addresses of the function.
    pub(super) fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.size)
    }

    /// `FUNCTION+0xOFFSET`, with `MODULE:` before it for modules.
    pub(super) fn location(&self) -> String {
        let module = self.module.map(|module| format!("{module}:")).unwrap_or_default();
        format!("{module}{}+{:#x}", self.function, self.offset)
    }

    /// The unambiguous place of the function, if others have its name.
    pub(super) fn among(&self) -> Option<String> {
        functions::among(self.facts.symbols.locate(self.start)?.symbol, self.facts)
    }

    /// A refusal of this definition's place.
    pub(super) fn refuse(&self, code: Code, message: String) -> Diagnostic {
        refusal(code, message, self.definition.place.span())
    }
}
