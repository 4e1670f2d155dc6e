//! Jump optimisation: whether the kernel would replace a breakpoint by a jump
//! (arch/x86/kernel/kprobes/opt.c:arch_prepare_optimized_kprobe, arch_check_optimized_kprobe).
//!
//! Owns this prediction, which never changes the kernel's verdict: the kernel may lack memory for
//! the copies, and later probes may undo it. Whether the kernel may ever do it is another question
//! than whether it would do it now: the former decides about harm (`objection`). Lock prefixes that
//! alternatives replace are not considered: they matter only if a kernel for several processors
//! found one.

use std::cell::OnceCell;

use super::case::{Case, MAX_FUNCTION_BYTES};
use super::{instruction, rules};
use kprobed_host::insn::{self, KernelOpcode};
use kprobed_host::kernel::KernelFacts;

/// Bytes of a near jump.
pub(super) const JUMP_BYTES: u64 = 5;

/// Bytes of a page of memory.
const PAGE_BYTES: u64 = 4096;

/// A function in which breakpoints may become jumps.
pub(super) struct Optimiser<'a> {
    facts: &'a KernelFacts,
    start: u64,
    size: u64,
    /// Whether it is the last function of a module: where that ends only the kernel knows
    /// (kernel/module/kallsyms.c:find_kallsyms_symbol).
    is_last: bool,
    /// Whether the kernel, which decodes such a function to the end of its pages, reads behind them.
    reads_behind_module: bool,
    code: Vec<u8>,
    /// Targets of the function's direct jumps, ascending.
    targets: Vec<u64>,
    /// Targets of its jump labels that are jumps now, ascending.
    label_targets: Vec<u64>,
    /// Whether the kernel optimises now.
    enabled: OnceCell<bool>,
}

impl<'a> Optimiser<'a> {
    /// Decodes the whole function of a case. None if no place of it can ever get a jump: the kernel
    /// has no optimisation, the function does not decode to its end, an instruction of it may fault,
    /// or it may have a jump table.
    pub(super) fn new(case: &Case<'a>) -> Option<Self> {
        let facts = case.facts;
        let start = case.start;
        // The case may have been cut to what is shown.
        let size = facts.symbols.locate(start)?.size;
        let next = facts.symbols.locate(start.saturating_add(size)).map(|located| located.symbol);
        let next = next.filter(|next| next.address != start);
        let is_last =
            case.module.is_some() && !next.is_some_and(|next| next.is_code() && next.module == case.module);
        if !facts.optimisation.is_built || size > MAX_FUNCTION_BYTES && !is_last {
            return None;
        }
        let size = if is_last && next.is_none() { MAX_FUNCTION_BYTES } else { size.min(MAX_FUNCTION_BYTES) };
        let length = usize::try_from(size).ok()?.checked_add(insn::MAX_INSTRUCTION_BYTES)?;
        let code = facts.code(start, length);
        let (targets, label_targets, enabled) = Default::default();
        let mut optimiser = Self {
            facts,
            start,
            size,
            is_last,
            reads_behind_module: false,
            code,
            targets,
            label_targets,
            enabled,
        };
        let mut offset = 0;
        while offset < size && !(is_last && optimiser.is_behind_zeros(offset)) {
            optimiser.reads_behind_module |= is_last && optimiser.is_last_zero(offset);
            let opcode = match optimiser.opcode(offset) {
                Some(opcode) => opcode,
                None if is_last => break,
                None => return None,
            };
            let jumps_to = opcode.jump_target;
            let into_thunk = |target: u64| {
                let thunks = &facts.optimisation.thunks;
                // The kernel counts the byte after them as well.
                !thunks.is_empty() && (thunks.start..=thunks.end).contains(&target)
            };
            let indirect = jumps_indirectly(&opcode) || jumps_to.is_some_and(into_thunk);
            if facts.patch_sites.may_fault(start + offset)
                || facts.optimisation.indirect_jumps_matter && indirect
            {
                return None;
            }
            let is_label = facts.patch_sites.is_jump_label(start + offset);
            let targets = if is_label { &mut optimiser.label_targets } else { &mut optimiser.targets };
            targets.extend(jumps_to);
            offset += u64::from(opcode.length);
        }
        optimiser.targets.sort_unstable();
        optimiser.label_targets.sort_unstable();
        Some(optimiser)
    }

    /// Whether a breakpoint at the instruction at `offset` would become a jump now.
    pub(super) fn makes_jump(&self, offset: u64) -> bool {
        let address = self.start.wrapping_add(offset);
        let neighbours = |covered| self.facts.armed.any_enabled_in(address + 1..address + covered);
        *self.enabled.get_or_init(|| self.facts.optimisation.enabled())
            && !is_jumped_into(&self.label_targets, address)
            && self.may_cover(offset).is_some_and(|covered| !neighbours(covered))
    }

    /// Bytes of the instructions that a jump at `offset` would replace. None if the kernel would
    /// never put one there. What changes while a kernel runs does not count: the switch, probes at
    /// the next instructions, and jump labels, which are jumps only while they are on.
    pub(super) fn may_cover(&self, offset: u64) -> Option<u64> {
        let address = self.start.wrapping_add(offset);
        let fits = self.is_last || self.size.saturating_sub(offset) >= JUMP_BYTES;
        if !fits
            || self.facts.optimisation.entry_text.contains(&address)
            || is_jumped_into(&self.targets, address)
        {
            return None;
        }
        self.copied(offset).filter(|covered| !self.is_reserved(address, *covered))
    }

    /// Bytes of the instructions that a jump at `offset` would replace, if all of them can be
    /// copied (copy_optimized_instructions).
    fn copied(&self, offset: u64) -> Option<u64> {
        let mut covered = 0;
        while covered < JUMP_BYTES {
            let opcode = self.opcode(offset + covered)?;
            let with_groups = self.facts.behaviour.traps_are_no_boundary;
            if instruction::uncopyable(&opcode).is_some() || !insn::boostable(&opcode, with_groups) {
                return None;
            }
            covered += u64::from(opcode.length);
        }
        Some(covered)
    }

    /// Whether ftrace, a static call or a jump label rewrites one of these bytes.
    fn is_reserved(&self, address: u64, bytes: u64) -> bool {
        let sites = &self.facts.patch_sites;
        let labels = || (address..address + bytes).any(|address| self.is_jump_label(address));
        self.facts.traceable.touches(address, bytes) || sites.static_call_in(address, bytes) || labels()
    }

    fn is_jump_label(&self, address: u64) -> bool {
        let code_from = |label: u64| {
            let offset = usize::try_from(label.checked_sub(self.start)?).ok()?;
            self.code.get(offset..)
        };
        let mut labels = self.facts.patch_sites.jump_labels_near(address);
        labels.any(|label| address - label < rules::jump_label_bytes(code_from(label)))
    }

    /// Whether the kernel crashes because it looks for the rest of an instruction behind the pages of the
    /// module. What is left of the last page is zero, and two zeros are an instruction.
    pub(super) fn reads_behind_module(&self) -> bool {
        self.reads_behind_module
    }

    /// Whether the byte at `offset` is zero and the last one of a page.
    fn is_last_zero(&self, offset: u64) -> bool {
        let is_end = self.start.wrapping_add(offset).wrapping_add(1).is_multiple_of(PAGE_BYTES);
        is_end && usize::try_from(offset).is_ok_and(|offset| self.code.get(offset) == Some(&0))
    }

    /// Whether a page begins at `offset`, behind one that ends with zero: the pages of the module end there, and those
    /// of another one may begin.
    fn is_behind_zeros(&self, offset: u64) -> bool {
        offset.checked_sub(1).is_some_and(|last| self.is_last_zero(last))
    }

    fn opcode(&self, offset: u64) -> Option<KernelOpcode> {
        let code = self.code.get(usize::try_from(offset).ok()?..)?;
        KernelOpcode::parse(code, self.start.wrapping_add(offset))
    }
}

/// Whether one of these targets is in the bytes behind a breakpoint. The kernel counts the first
/// byte after the jump as well (insn_jump_into_range).
fn is_jumped_into(targets: &[u64], address: u64) -> bool {
    let first = targets.partition_point(|target| *target <= address);
    targets.get(first).is_some_and(|target| *target <= address + JUMP_BYTES)
}

/// An indirect jump, near or far, or a direct far one (__insn_is_indirect_jump).
fn jumps_indirectly(opcode: &KernelOpcode) -> bool {
    opcode.first == 0xff && opcode.reg() & 6 == 4 || opcode.first == 0xea
}
