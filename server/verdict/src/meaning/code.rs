//! Normalised code: instructions without what differs from build to build although it means the
//! same, such as addresses and what the kernel patches while it runs.
//!
//! Owns the texts that are compared, their checksum, and finding a place in another build. Never
//! decides whether a difference matters.

use serde::{Deserialize, Serialize};

use kprobed_host::insn;
use kprobed_host::kernel::KernelFacts;

/// The code that a meaning depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    /// The function.
    pub function: String,
    /// The place, in bytes from the beginning of the function. Absent if the whole function counts.
    pub place: Option<u32>,
    /// Instructions that count, NOPs left out.
    pub instructions: u32,
    /// A checksum over their texts (CRC-32).
    pub checksum: u32,
    /// Some of them, around the place: for people, and to find the place in another build.
    pub window: Vec<Line>,
}

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Distance from the beginning of the function, in bytes.
    pub offset: u32,
    /// Its text, with names instead of addresses.
    pub text: String,
}

/// Instructions of the window before the place, and after it.
const BEFORE: usize = 8;
const BEHIND: usize = 4;

/// Longer functions are compared up to this size only.
const MAX_BYTES: u64 = 64 << 10;

/// Text for an address without a symbol that is near enough.
const SOMEWHERE: &str = "ADDRESS";

/// Addresses of the code and data of the kernel and its modules
/// (Documentation/arch/x86/x86_64/mm.rst). Lower values are numbers, higher ones negative numbers.
const KERNEL_ADDRESSES: std::ops::Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_ff00_0000;

/// The instructions of the function at `start`, except for those that do nothing.
pub(super) fn lines(facts: &KernelFacts, start: u64, size: u64) -> Vec<Line> {
    let length = usize::try_from(size.min(MAX_BYTES)).unwrap_or_default();
    let code = facts.code(start, length);
    let name = |address: u64| name(facts, start..start.saturating_add(size), address);
    let listing = insn::listing(&code, start, &name);
    let line = |one: insn::Instruction| {
        let address = start.saturating_add(one.offset.into());
        let is_patched = facts.patch_sites.is_jump_label(address);
        let text = if is_patched {
            "STATIC KEY".to_owned()
        } else if facts.patch_sites.static_call_over(address) == Some(address) {
            "STATIC CALL".to_owned()
        } else {
            without_per_cpu_address(&one.text)
        };
        // Padding between instructions, and traps after jumps against speculation.
        let is_nothing =
            ["nop", "endbr", "int3"].iter().any(|word| text.starts_with(word)) || text == "xchg %ax,%ax";
        (!is_nothing).then_some(Line { offset: one.offset, text })
    };
    listing.into_iter().filter_map(line).collect()
}

/// The target of an instruction, by a name that another build has too. Distances in data are not
/// named: the linker places objects without a name of their own after arbitrary symbols.
fn name(facts: &KernelFacts, function: std::ops::Range<u64>, address: u64) -> Option<String> {
    if function.contains(&address) {
        return Some("HERE".to_owned());
    }
    if !KERNEL_ADDRESSES.contains(&address) {
        return None;
    }
    Some(match facts.symbols.locate(address) {
        Some(located) if located.offset == 0 || located.symbol.is_code() => {
            stable(located.symbol.name).to_owned()
        }
        _ => SOMEWHERE.to_owned(),
    })
}

/// A symbol without the number that the compiler has appended to distinguish it from others of the
/// same name (`__key.12`).
fn stable(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((stem, number)) if !stem.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => stem,
        _ => name,
    }
}

/// Per-CPU variables are at distances from `%gs` that every build chooses anew.
fn without_per_cpu_address(text: &str) -> String {
    let Some((before, behind)) = text.split_once("%gs:") else { return text.to_owned() };
    let number = behind.trim_start_matches('-');
    let digits = number.strip_prefix("0x").unwrap_or(number);
    let rest = digits.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    format!("{before}%gs:{SOMEWHERE}{rest}")
}

/// The code of a function from its start to the instruction at `place`. If the place is in the
/// middle of an instruction, up to that one.
pub(super) fn up_to(lines: &[Line], function: &str, place: u32) -> Code {
    // NOPs are left out: the place may be one.
    let at = lines.partition_point(|line| line.offset < place);
    let counted = lines.get(..=at).unwrap_or(lines);
    let window = lines.get(at.saturating_sub(BEFORE)..lines.len().min(at + 1 + BEHIND)).unwrap_or_default();
    Code { place: Some(place), ..fingerprint(counted, window, function) }
}

/// All code of a function.
pub(super) fn whole(lines: &[Line], function: &str) -> Code {
    fingerprint(lines, lines.get(..lines.len().min(BEFORE + 1 + BEHIND)).unwrap_or_default(), function)
}

fn fingerprint(counted: &[Line], window: &[Line], function: &str) -> Code {
    let mut checksum = crc32fast::Hasher::new();
    for line in counted {
        checksum.update(line.text.as_bytes());
        checksum.update(b"\n");
    }
    Code {
        function: function.to_owned(),
        place: None,
        instructions: u32::try_from(counted.len()).unwrap_or(u32::MAX),
        checksum: checksum.finalize(),
        window: window.to_vec(),
    }
}

impl Code {
    /// Whether both are the same instructions up to the same place.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let key = |code: &Self| (code.place, code.instructions, code.checksum);
        key(self) == key(other)
    }

    /// The only place in another build of the function with the same instructions around it: with
    /// as many of them as match at any place, but at least two before it and one after it.
    pub(super) fn found_in(&self, lines: &[Line]) -> Option<u32> {
        const LEAST: (usize, usize) = (2, 1);
        let at = self.window.iter().position(|line| Some(line.offset) == self.place)?;
        let text = |line: &Line| line.text.clone();
        let wanted: Vec<String> = self.window.iter().map(text).collect();
        let there: Vec<String> = lines.iter().map(text).collect();
        let widest = (at, wanted.len().saturating_sub(at + 1));
        let mut around = widest;
        loop {
            let (before, behind) = around;
            let sequence = wanted.get(at - before..=at + behind)?;
            let mut found = there.windows(sequence.len()).enumerate().filter(|(_, here)| *here == sequence);
            match (found.next(), found.next()) {
                (Some((only, _)), None) => return lines.get(only + before).map(|line| line.offset),
                (Some(_), Some(_)) => return None,
                (None, _) => {}
            }
            // The place itself must be distinguished from others: never fewer than this.
            around = match around {
                (before, behind) if before > LEAST.0 => (before - 1, behind),
                (before, behind) if behind > LEAST.1 => (before, behind - 1),
                _ => return None,
            };
        }
    }
}
