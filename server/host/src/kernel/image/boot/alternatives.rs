//! Alternative instructions: the table of `struct alt_instr` (arch/x86/include/asm/alternative.h).
//!
//! An entry has 13 bytes (to 5.12), 12 (to 6.2) or 14 (since 6.3). No symbol tells which: only the
//! right length finds code, and replacements that fit, in every entry.

use std::ops::Range;

use super::super::super::patch_sites::{entries, self_relative};
use super::super::super::{KernelText, SymbolTable};
use super::super::tables;
use super::padded;

/// Possible lengths of an entry.
const ENTRY_BYTES: [usize; 3] = [14, 12, 13];

/// Set if a feature must be absent: in the number of the feature, or in the flags after it.
const NOT_IN_NUMBER: u16 = 1 << 15;
const NOT_IN_FLAGS: u16 = 1;

/// Every processor has it (arch/x86/include/asm/cpufeatures.h:X86_FEATURE_ALWAYS).
const ALWAYS: u16 = 3 * 32 + 21;

/// Guests of Xen without hardware virtualisation (X86_FEATURE_XENPV): never the host of a probe.
const XEN_PV: u16 = 8 * 32 + 16;

/// Whether boot makes a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    Always,
    Never,
    /// That depends on the processor.
    Maybe,
}

/// One replacement for some code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Alternative {
    pub(super) chosen: Chosen,
    /// Address and length of the replacement.
    replacement: (u64, u8),
}

/// All alternatives, each with the beginning and length of the code that it replaces, in the order
/// in which boot goes through them.
pub(super) fn read(text: &KernelText, symbols: &SymbolTable) -> Vec<(u64, u8, Alternative)> {
    let (start, table) =
        tables::between(text, symbols, "__alt_instructions", "__alt_instructions_end").unwrap_or_default();
    parse(start, &table, &symbols.core())
}

fn parse(start: u64, table: &[u8], kernel: &Range<u64>) -> Vec<(u64, u8, Alternative)> {
    let of_length = |bytes: &usize| {
        let all: Option<Vec<_>> =
            entries(start, table, *bytes).map(|(at, entry)| one(at, entry, kernel)).collect();
        all.filter(|_| table.len().is_multiple_of(*bytes))
    };
    ENTRY_BYTES.iter().find_map(of_length).unwrap_or_default()
}

fn one(at: u64, entry: &[u8], kernel: &Range<u64>) -> Option<(u64, u8, Alternative)> {
    let code = self_relative(at, entry)?;
    let replacement = self_relative(at.wrapping_add(4), entry.get(4..)?)?;
    let number = u16::from_le_bytes(*entry.get(8..)?.first_chunk()?);
    let (feature, not, lengths) = if entry.len() == 14 {
        let flags = u16::from_le_bytes(*entry.get(10..)?.first_chunk()?);
        (number, flags & NOT_IN_FLAGS != 0, entry.get(12..)?)
    } else {
        (number & !NOT_IN_NUMBER, number & NOT_IN_NUMBER != 0, entry.get(10..)?)
    };
    let (&bytes, &replaced) = (lengths.first()?, lengths.get(1)?);
    let fits = bytes > 0 && replaced <= bytes && kernel.contains(&code);
    if !fits || replaced > 0 && !kernel.contains(&replacement) {
        return None;
    }
    let chosen = match (feature, not) {
        (ALWAYS, false) | (XEN_PV, true) => Chosen::Always,
        (ALWAYS, true) | (XEN_PV, false) => Chosen::Never,
        _ => Chosen::Maybe,
    };
    Some((code, bytes, Alternative { chosen, replacement: (replacement, replaced) }))
}

impl Alternative {
    /// Code that boot may write at `start` in place of the bytes of the image: one, or several if a
    /// hypervisor or the kernel's release decides. Empty when the replacement is not in the image.
    pub(super) fn replacements(
        &self,
        start: u64,
        image: &[u8],
        text: &KernelText,
        symbols: &SymbolTable,
    ) -> Vec<Vec<u8>> {
        let (at, bytes) = self.replacement;
        let read = if bytes == 0 { Ok(Vec::new()) } else { text.read(at, bytes.into()) };
        let Ok(mut code) = read else { return Vec::new() };
        let direct = is_direct_call(image, &code);
        move_branch(&mut code, at, start);
        let call = padded(code, image.len());
        if !direct {
            let short = short_jumps(&call);
            return [call].into_iter().chain(short).collect();
        }
        // A function that does nothing is not called (alt_replace_call). Which function it is, a
        // hypervisor may change.
        let nothing = padded(Vec::new(), image.len());
        if calls_nothing(start, image, text, symbols) { vec![nothing, call] } else { vec![call, nothing] }
    }
}

/// Whether a call through memory becomes the call of what the memory holds (ALT_FLAG_DIRECT_CALL,
/// since 6.8).
fn is_direct_call(image: &[u8], replacement: &[u8]) -> bool {
    image.starts_with(&[0xff, 0x15]) && replacement.len() == 5 && replacement.first() == Some(&0xe8)
}

/// Whether the pointer that the call goes through leads to a function that does nothing.
fn calls_nothing(start: u64, image: &[u8], text: &KernelText, symbols: &SymbolTable) -> bool {
    const CALL_BYTES: u64 = 6;
    let pointer = || {
        let distance = i32::from_le_bytes(*image.get(2..)?.first_chunk()?);
        let slot = start.wrapping_add(CALL_BYTES).wrapping_add_signed(distance.into());
        Some(u64::from_le_bytes(*text.read(slot, 8).ok()?.first_chunk()?))
    };
    let nothing = symbols.address("nop_func");
    nothing.is_some() && pointer() == nothing
}

/// A near call or jump leads to where it led before it was moved.
fn move_branch(code: &mut [u8], from: u64, to: u64) {
    if let [0xe8 | 0xe9, rest @ ..] = code
        && let Some(distance) = rest.first_chunk_mut()
    {
        let [a, b, c, d, ..] = from.wrapping_sub(to).to_le_bytes();
        let by = i32::from_le_bytes([a, b, c, d]);
        *distance = i32::from_le_bytes(*distance).wrapping_add(by).to_le_bytes();
    }
}

/// A jump whose target is near has two bytes after boot. What was the rest of it is a NOP
/// (arch/x86/kernel/alternative.c:recompute_jump) or, in newer kernels, are traps (apply_relocation).
fn short_jumps(code: &[u8]) -> Vec<Vec<u8>> {
    const JUMP: u8 = 0xe9;
    const SHORT_JUMP: u8 = 0xeb;
    /// By which the next instruction begins earlier.
    const SAVED: i32 = 3;
    let Some(([JUMP, distance @ ..], behind)) = code.split_first_chunk::<5>() else { return Vec::new() };
    let Ok(short) = i8::try_from(i32::from_le_bytes(*distance).saturating_add(SAVED)) else {
        return Vec::new();
    };
    let jump = |rest: [u8; 3]| [&[SHORT_JUMP, short.cast_unsigned()][..], &rest, behind].concat();
    vec![jump([0x0f, 0x1f, 0x00]), jump([0xcc; 3])]
}

#[cfg(test)]
mod tests {
    use super::Chosen::{Always, Maybe, Never};
    use super::*;
    use crate::samples::image;
    use proptest::prelude::*;

    const BASE: u64 = 0xffff_ffff_8100_0000;
    const TABLE: u64 = BASE + 0x1000;

    /// An entry of `bytes` bytes for three bytes of code, whose replacement begins 0x100 after
    /// them.
    fn entry(index: usize, bytes: usize, feature: u16, not: bool) -> Vec<u8> {
        let at = TABLE + (index * bytes) as u64;
        let code = BASE + 16 * index as u64;
        let distance =
            |from: u64, to: u64| i32::try_from(to.wrapping_sub(from).cast_signed()).unwrap().to_le_bytes();
        let mut entry = [distance(at, code), distance(at + 4, code + 0x100)].concat();
        if bytes == 14 {
            entry.extend([feature.to_le_bytes(), u16::from(not).to_le_bytes()].concat());
        } else {
            entry.extend((feature | u16::from(not) << 15).to_le_bytes());
        }
        entry.extend([3, 2, 0]);
        entry.truncate(bytes);
        entry
    }

    #[test]
    fn every_length_of_entries_is_found_out() {
        for bytes in ENTRY_BYTES {
            let features = [(ALWAYS, false), (9 * 32, true), (XEN_PV, true), (XEN_PV, false), (7, false)];
            let table: Vec<u8> = (0..)
                .zip(features)
                .flat_map(|(index, (feature, not))| entry(index, bytes, feature, not))
                .collect();
            let found = parse(TABLE, &table, &(BASE..TABLE));
            let chosen: Vec<_> = found.iter().map(|(_, _, one)| one.chosen).collect();
            assert_eq!(chosen, [Always, Maybe, Always, Never, Maybe], "{bytes}");
            assert_eq!((found[1].0, found[1].1), (BASE + 16, 3), "{bytes}");
            assert_eq!(found[1].2.replacement, (BASE + 0x110, 2), "{bytes}");
        }
    }

    #[test]
    fn calls_lead_to_the_same_function() {
        let mut memory = vec![0; 0x40];
        memory[0x20..0x25].copy_from_slice(&[0xe8, 0x0b, 0, 0, 0]);
        let text = image(BASE, &memory);
        let symbols = SymbolTable::default();
        let alternative = Alternative { chosen: Maybe, replacement: (BASE + 0x20, 5) };
        let at = |start, code: &[u8]| alternative.replacements(start, code, &text, &symbols);
        assert_eq!(at(BASE, &[0x90; 6]), [[0xe8, 0x2b, 0, 0, 0, 0x90]], "to +0x30 from either place");
        assert_eq!(at(BASE, &[0xff, 0x15, 0, 0, 0, 0]), [[0xe8, 0x2b, 0, 0, 0, 0x90], [0x90; 6]]);
        let symbols = SymbolTable::parse("ffffffff81000030 t nop_func\n");
        memory[0x10..0x18].copy_from_slice(&(BASE + 0x30).to_le_bytes());
        let text = image(BASE, &memory);
        let first = alternative.replacements(BASE, &[0xff, 0x15, 0x0a, 0, 0, 0], &text, &symbols);
        assert_eq!(first[0], [0x90; 6], "what does nothing is not called");
    }

    #[test]
    fn jumps_that_have_become_near_may_be_short() {
        let mut memory = vec![0; 0x200];
        let alternative = Alternative { chosen: Maybe, replacement: (BASE + 0x100, 5) };
        let mut jumps = |distance: i32| {
            memory[0x100] = 0xe9;
            memory[0x101..0x105].copy_from_slice(&(distance - 0x100).to_le_bytes());
            let text = image(BASE, &memory);
            alternative.replacements(BASE, &[0x90; 6], &text, &SymbolTable::default())
        };
        let near = [
            [0xe9, 0x10, 0, 0, 0, 0x90],
            [0xeb, 0x13, 0x0f, 0x1f, 0x00, 0x90],
            [0xeb, 0x13, 0xcc, 0xcc, 0xcc, 0x90],
        ];
        assert_eq!(jumps(0x10), near);
        assert_eq!(jumps(124).len(), 3);
        assert_eq!(jumps(125), [[0xe9, 125, 0, 0, 0, 0x90]]);
    }

    proptest! {
        #[test]
        fn any_table_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), start: u64) {
            prop_assert!(parse(start, &bytes, &(0..u64::MAX)).len() <= bytes.len() / 12);
        }
    }
}
