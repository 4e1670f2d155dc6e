//! Landings: places in the middle of a function to which code leads that the kernel does not look at
//! before it replaces a breakpoint by a jump.
//!
//! The kernel replaces the five bytes at a breakpoint if no jump of the same function leads into
//! them (arch/x86/kernel/kprobes/opt.c:can_optimize). Other code may: the part of the function that
//! the compiler split off (`FUNCTION.cold` is a symbol of its own), another function, an instruction
//! of another function that may fault, a call, or a jump label, which is a NOP while it is off.
//! Whatever leads there then executes the middle of the jump. Owns finding such places. Never
//! decides whether a probe harms one of them.
//!
//! The kernel's own text is searched once, when a place first needs it, and the text of a module
//! once after each change of modules, if a place in that module needs it. Bytes that may be a near
//! jump or a call out of their function come first; then all instructions of the few functions that
//! have such bytes. Short jumps between neighbours are searched around each place. The search of a
//! kernel takes 0.09 to 0.15 s of processor time for images of 12 to 19 MiB, built with little
//! optimisation (`cargo test -p kprobed-host --bench landings`): in an emulated guest, the first
//! check that needs it took 0.15 s. What is found takes 0.3 to 0.6 MiB.
//!
//! What is not found: a jump through a table from one symbol to another, which only kernels without
//! retpolines and IBT have; what only the tables of a module say if its sections in sysfs cannot be
//! read; and a jump below a breakpoint of another program, if the kernel does not show what the
//! breakpoint replaced (no CONFIG_KALLSYMS_ALL).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::facts::KernelFacts;
use super::patch_sites::Lead;
use crate::insn;

/// A place to which code leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Landing {
    /// Its address.
    pub to: u64,
    /// The instruction that leads there.
    pub from: u64,
    /// How.
    pub way: Way,
}

/// How an instruction leads somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// It jumps there, or calls it.
    Branch,
    /// It is a jump label, and jumps there while it is on.
    JumpLabel,
    /// The kernel continues there if the instruction faults.
    Fixup,
}

/// The landings that were searched so far.
#[derive(Debug, Default)]
pub(super) struct Landings {
    /// Those in the kernel itself, whose text stays.
    of_kernel: Arc<OnceLock<Vec<Landing>>>,
    of_modules: Mutex<HashMap<String, Arc<Vec<Landing>>>>,
}

/// Text that is read at once, at least.
const BATCH_BYTES: u64 = 1 << 20;

/// Bytes of a near jump or call, without the first one of a conditional jump.
const BRANCH_BYTES: usize = 5;

/// Bytes of code, at most, for which the beginnings of functions are known by a bit each.
const TEXT_MAX_BYTES: u64 = 256 << 20;

/// Bytes of a short jump.
const SHORT_BYTES: u64 = 2;

/// How far a short jump leads at most, from its first byte.
const SHORT_REACH_BYTES: u64 = SHORT_BYTES + 127;

impl Landings {
    /// Those of the kernel itself: the modules may be others now.
    pub(super) fn without_modules(&self) -> Self {
        Self { of_kernel: Arc::clone(&self.of_kernel), of_modules: Mutex::default() }
    }
}

impl KernelFacts {
    /// The first landing in a range of addresses, all of them behind the first byte of the function
    /// that the range begins in: the beginning of a function is no landing.
    pub fn landing_in(&self, addresses: &Range<u64>) -> Option<Landing> {
        let located = self.symbols.locate(addresses.start)?;
        let far = match located.symbol.module {
            None => first_in(self.landings.of_kernel.get_or_init(|| find(self, None)), addresses),
            Some(module) => {
                let mut known = self.landings.of_modules.lock().unwrap_or_else(PoisonError::into_inner);
                let known = known.entry(module.to_owned());
                first_in(known.or_insert_with(|| Arc::new(find(self, Some(module)))), addresses)
            }
        };
        far.or_else(|| find_near(self, &located.range(), addresses))
    }
}

fn first_in(landings: &[Landing], addresses: &Range<u64>) -> Option<Landing> {
    let first = landings.partition_point(|landing| landing.to < addresses.start);
    landings.get(first).filter(|landing| landing.to < addresses.end).copied()
}

/// All landings in a module, or in the kernel itself, without those of short jumps: for each place
/// one instruction that leads there. A module leads to its own functions, and to the beginnings of
/// others.
fn find(facts: &KernelFacts, module: Option<&str>) -> Vec<Landing> {
    let mut functions = facts.symbols.functions(module);
    if module.is_none() {
        functions.retain(|function| facts.core_text.contains(&function.start));
    }
    let functions = Functions::new(functions);
    let sites = &facts.patch_sites;
    let labels = sites.jump_labels().iter().map(|label| (label, Way::JumpLabel));
    let fixups = sites.exceptions().iter().map(|exception| (exception, Way::Fixup));
    let of_tables = labels.chain(fixups).filter(|(lead, way)| {
        let from = functions.of(lead.from);
        // A function with an instruction that may fault is never optimised.
        let matters = *way != Way::Fixup || from != functions.of(lead.to);
        from.is_some() && matters && functions.has_middle(lead.to)
    });
    let of_tables = of_tables.map(|(&Lead { from, to }, way)| Landing { to, from, way });
    let mut found: Vec<_> = of_tables.collect();
    let (mut batch, mut code) = (0..0, Vec::new());
    for own in &functions.ranges {
        if own.end > batch.end {
            batch = own.start..own.end.max(own.start.saturating_add(BATCH_BYTES));
            code = facts.code(batch.start, usize::try_from(batch.end - batch.start).unwrap_or_default());
        }
        // What cannot be read is not executed either.
        let [start, end] = [own.start, own.end]
            .map(|at| usize::try_from(at - batch.start).unwrap_or(usize::MAX).min(code.len()));
        found.extend(functions.branches_out(own, code.get(start..end).unwrap_or_default()));
    }
    found.sort_unstable();
    found.dedup_by_key(|landing| landing.to);
    found.shrink_to_fit();
    found
}

/// Some functions.
struct Functions {
    /// In the order of their addresses.
    ranges: Vec<Range<u64>>,
    /// A bit for each address from that of the first function: whether a function begins there. Nearly
    /// every call leads to one, and needs no search then.
    beginnings: Vec<u64>,
}

impl Functions {
    /// These functions, in the order of their addresses.
    fn new(ranges: Vec<Range<u64>>) -> Self {
        let first = ranges.first().map_or(0, |function| function.start);
        let mut beginnings = Vec::new();
        for (word, bit) in ranges.iter().map_while(|function| bit_of(function.start - first)) {
            beginnings.resize(beginnings.len().max(word + 1), 0);
            beginnings.last_mut().into_iter().for_each(|bits| *bits |= bit);
        }
        Self { ranges, beginnings }
    }

    /// The function that an address lies in.
    fn of(&self, address: u64) -> Option<&Range<u64>> {
        // Most numbers that are no address are far away.
        if address < self.ranges.first()?.start || address >= self.ranges.last()?.end {
            return None;
        }
        let after = self.ranges.partition_point(|function| function.start <= address);
        self.ranges.get(after.checked_sub(1)?).filter(|function| function.contains(&address))
    }

    /// Whether an address lies in a function, and is not its beginning.
    fn has_middle(&self, address: u64) -> bool {
        !self.is_beginning(address) && self.of(address).is_some_and(|function| function.start != address)
    }

    /// Whether a function begins at an address, as far as `beginnings` knows.
    fn is_beginning(&self, address: u64) -> bool {
        let offset = self.ranges.first().and_then(|first| address.checked_sub(first.start));
        let bit = offset.and_then(bit_of);
        bit.is_some_and(|(word, bit)| self.beginnings.get(word).is_some_and(|bits| bits & bit != 0))
    }

    /// Whether a branch of the function `own` leads to where the kernel does not expect it: it knows
    /// the jumps of the function itself.
    fn is_landing(&self, own: &Range<u64>, target: u64, is_call: bool) -> bool {
        (is_call || !own.contains(&target)) && self.has_middle(target)
    }

    /// The landings of the branches of a function, given its code.
    fn branches_out(&self, own: &Range<u64>, code: &[u8]) -> Vec<Landing> {
        let suspects = self.suspects(own, code);
        if suspects.is_empty() {
            return Vec::new();
        }
        let (branches, decoded) = insn::branches(code, own.start);
        let certain =
            branches.into_iter().filter(|branch| self.is_landing(own, branch.target, branch.is_call));
        let certain = certain.map(|branch| (branch.offset, branch.target));
        // Bytes that do not decode are data: code may follow them.
        let possible = suspects.into_iter().filter(|(offset, _)| *offset >= decoded);
        let landing =
            |(offset, to)| Landing { to, from: own.start.wrapping_add(offset as u64), way: Way::Branch };
        certain.chain(possible).map(landing).collect()
    }

    /// Bytes of a function that may be a near branch to a landing: their offset, and the target. This
    /// looks at every byte of a kernel.
    fn suspects(&self, own: &Range<u64>, code: &[u8]) -> Vec<(usize, u64)> {
        let mut found = Vec::new();
        let mut before = 0;
        for (offset, &[opcode, ref distance @ ..]) in code.array_windows::<BRANCH_BYTES>().enumerate() {
            let is_conditional = opcode & 0xf0 == 0x80 && before == 0x0f;
            before = opcode;
            if opcode & 0xfe != 0xe8 && !is_conditional {
                continue;
            }
            let end = own.start.wrapping_add((offset + BRANCH_BYTES) as u64);
            let target = end.wrapping_add_signed(i32::from_le_bytes(*distance).into());
            if self.is_landing(own, target, opcode == 0xe8) {
                found.push((offset, target));
            }
        }
        found
    }
}

/// The word and the bit in it for an address so many bytes behind the first one; absent if it is farther
/// away than the text of a kernel is long.
fn bit_of(offset: u64) -> Option<(usize, u64)> {
    let word = usize::try_from(offset / 64).ok()?;
    (offset < TEXT_MAX_BYTES).then_some((word, 1 << (offset % 64)))
}

/// A landing of a short jump of a function before or behind the function `own`.
fn find_near(facts: &KernelFacts, own: &Range<u64>, addresses: &Range<u64>) -> Option<Landing> {
    let before = addresses.start.saturating_sub(SHORT_REACH_BYTES)..own.start;
    let behind = own.end..addresses.end.saturating_add(SHORT_REACH_BYTES);
    [before, behind].into_iter().filter(|side| !side.is_empty()).find_map(|side| {
        let code = facts.code(side.start, usize::try_from(side.end - side.start).ok()?);
        (side.start..).zip(code.windows(2)).find_map(|(opcode, bytes)| {
            let &[0x70..=0x7f | 0xe0..=0xe3 | 0xeb, distance] = bytes else { return None };
            let end = opcode.wrapping_add(SHORT_BYTES);
            let to = end.wrapping_add_signed(distance.cast_signed().into());
            let from = addresses.contains(&to).then(|| jump_at(facts, opcode, to)).flatten()?;
            Some(Landing { to, from, way: Way::Branch })
        })
    })
}

/// The beginning of the instruction with an opcode at `opcode` that jumps to `target`, if there is
/// one.
fn jump_at(facts: &KernelFacts, opcode: u64, target: u64) -> Option<u64> {
    let start = facts.symbols.locate(opcode)?.symbol.address;
    let offset = usize::try_from(opcode - start).ok()?;
    let (branches, decoded) = insn::branches(&facts.code(start, offset + insn::MAX_INSTRUCTION_BYTES), start);
    let real = branches.iter().rev().find(|branch| branch.target == target).map(|branch| branch.offset);
    // Bytes that do not decode are data: code may follow them.
    let found = real.or_else(|| (offset >= decoded).then_some(offset))?;
    Some(start.wrapping_add(found as u64))
}
