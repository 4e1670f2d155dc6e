//! Code of a kernel image that boot may rewrite: alternatives, retpolines, returns, paravirt calls.
//!
//! Owns where such code is, and what each place may hold after boot, from the tables in the image
//! that boot itself uses (arch/x86/kernel/alternative.c:alternative_instructions). What a kernel
//! chooses depends on the processor, the hypervisor and the command line, which no image knows:
//! every possibility is given, the likeliest first, which is that of processors that need no detour
//! for returns and indirect branches. Whole instructions replace whole instructions, so that the
//! code after a site has the same boundaries whatever was chosen. Jump labels, static calls and
//! ftrace's call sites are not here: their places have rules of their own.
//!
//! Two changes are left out because they move no boundary and change no opcode: LOCK prefixes,
//! which kernels with one processor replace (alternatives_smp_unlock), and constants that are known
//! at boot (since 6.11).

mod alternatives;
mod nops;
mod paravirt;
mod retpolines;

use std::collections::BTreeMap;
use std::ops::Range;

use alternatives::{Alternative, Chosen};
use nops::NopStyle;
use paravirt::PatchSite;

use super::super::patch_sites::{entries, self_relative};
use super::super::text::overlay;
use super::super::{KernelText, SymbolTable};
use super::tables;
use crate::insn;

/// Code that boot may rewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootSite {
    /// What boot may rewrite there, in words, with its article.
    pub what: &'static str,
    /// The addresses of the code.
    pub range: Range<u64>,
}

/// All code of a kernel that boot may rewrite. None for a kernel that runs: it has.
#[derive(Debug, Default)]
pub struct BootSites {
    /// By their beginnings.
    sites: BTreeMap<u64, Vec<Site>>,
    style: NopStyle,
}

#[derive(Debug)]
struct Site {
    bytes: u8,
    rewrite: Rewrite,
}

#[derive(Debug)]
enum Rewrite {
    /// Alternatives, for processors with or without a feature, in the order of their table; a call that a hypervisor
    /// may replace; or both.
    Alternatives { paravirt: Option<PatchSite>, of: Vec<Alternative> },
    /// An indirect call or jump, which some processors need a detour for.
    Retpoline,
    /// A return, for the same reason.
    Return,
}

/// No site is longer, so none that begins farther away reaches an address.
const SITE_MAX_BYTES: u64 = 255;

/// `ret`, and traps up to the length of the jump that stands there in the image.
const RETURN: [u8; 5] = [0xc3, 0xcc, 0xcc, 0xcc, 0xcc];

impl BootSites {
    /// Reads the tables of an image.
    pub(in crate::kernel) fn read(text: &KernelText, symbols: &SymbolTable) -> Self {
        let mut sites: BTreeMap<u64, Vec<Site>> = BTreeMap::new();
        let mut groups: BTreeMap<u64, (u8, Option<PatchSite>, Vec<Alternative>)> = BTreeMap::new();
        for site in paravirt::sites(text, symbols) {
            let group = groups.entry(site.start).or_default();
            (group.0, group.1) = (group.0.max(site.bytes), Some(site));
        }
        for (start, bytes, alternative) in alternatives::read(text, symbols) {
            let group = groups.entry(start).or_default();
            group.0 = group.0.max(bytes);
            group.2.push(alternative);
        }
        for (start, (bytes, paravirt, of)) in groups {
            sites
                .entry(start)
                .or_default()
                .push(Site { bytes, rewrite: Rewrite::Alternatives { paravirt, of } });
        }
        for start in addresses(text, symbols, "__retpoline_sites", "__retpoline_sites_end") {
            let length =
                text.read_up_to(start, insn::MAX_INSTRUCTION_BYTES).ok().and_then(|code| first_length(&code));
            if let Some(bytes) = length {
                sites.entry(start).or_default().push(Site { bytes, rewrite: Rewrite::Retpoline });
            }
        }
        for start in addresses(text, symbols, "__return_sites", "__return_sites_end") {
            let bytes = u8::try_from(RETURN.len()).unwrap_or_default();
            sites.entry(start).or_default().push(Site { bytes, rewrite: Rewrite::Return });
        }
        Self { sites, style: NopStyle::of(symbols) }
    }

    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Site)> {
        let candidates = self.sites.range(start.saturating_sub(SITE_MAX_BYTES)..end);
        let all = candidates.flat_map(|(at, sites)| sites.iter().map(|site| (*at, site)));
        all.filter(move |(at, site)| at.saturating_add(site.bytes.into()) > start)
    }

    /// The sites that have `address` as one of their bytes, each with what it may hold after boot.
    pub fn over(
        &self,
        address: u64,
        text: &KernelText,
        symbols: &SymbolTable,
    ) -> Vec<(BootSite, Vec<Vec<u8>>)> {
        let sites = self.overlapping(address, address.saturating_add(1));
        let described = sites.map(|(start, site)| {
            let what = match site.rewrite {
                Rewrite::Alternatives { .. } => "an alternative",
                Rewrite::Retpoline => "an indirect branch",
                Rewrite::Return => "a return",
            };
            let range = start..start.saturating_add(site.bytes.into());
            (BootSite { what, range }, self.possible(start, site, text, symbols))
        });
        described.collect()
    }

    /// Writes into `code`, which begins at `start`, what is likeliest to be there after boot.
    pub(in crate::kernel) fn foresee(
        &self,
        start: u64,
        code: &mut [u8],
        text: &KernelText,
        symbols: &SymbolTable,
    ) {
        for (at, site) in self.overlapping(start, start.saturating_add(code.len() as u64)) {
            let Some(likeliest) = self.possible(at, site, text, symbols).into_iter().next() else { continue };
            overlay(code, start, at, &likeliest);
        }
    }

    /// What a site may hold after boot, the likeliest first. Empty when the image does not have the
    /// site.
    fn possible(&self, start: u64, site: &Site, text: &KernelText, symbols: &SymbolTable) -> Vec<Vec<u8>> {
        let Ok(image) = text.read(start, site.bytes.into()) else { return Vec::new() };
        let mut states = match &site.rewrite {
            Rewrite::Return => vec![RETURN.to_vec(), image],
            Rewrite::Retpoline => retpolines::possible(start, image, self.style, symbols),
            Rewrite::Alternatives { paravirt, of } => {
                let mut states = match paravirt {
                    Some(site) => paravirt::possible(&image, site.inline),
                    None => vec![image.clone()],
                };
                for alternative in of {
                    let replaced = alternative.replacements(start, &image, text, symbols);
                    match alternative.chosen {
                        Chosen::Never => {}
                        Chosen::Always => states = replaced,
                        Chosen::Maybe => states.extend(replaced),
                    }
                }
                states.into_iter().flat_map(|state| self.style.optimised(&state)).collect()
            }
        };
        let mut seen: Vec<Vec<u8>> = Vec::new();
        states.retain(|state| {
            let is_new = !seen.contains(state);
            if is_new {
                seen.push(state.clone());
            }
            is_new
        });
        states
    }
}

/// The addresses in a table of distances from each entry to some code.
fn addresses(text: &KernelText, symbols: &SymbolTable, start: &str, stop: &str) -> Vec<u64> {
    const ENTRY_BYTES: usize = 4;
    let (first, table) = tables::between(text, symbols, start, stop).unwrap_or_default();
    entries(first, &table, ENTRY_BYTES).filter_map(|(at, entry)| self_relative(at, entry)).collect()
}

/// Bytes of the first instruction.
fn first_length(code: &[u8]) -> Option<u8> {
    u8::try_from(insn::boundaries(code).next()?.end).ok()
}

/// `code` with one-byte NOPs up to `length`.
fn padded(mut code: Vec<u8>, length: usize) -> Vec<u8> {
    const NOP: u8 = 0x90;
    code.resize(length.max(code.len()), NOP);
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::image;

    const BASE: u64 = 0xffff_ffff_8100_0000;

    fn distance(from: u64, to: u64) -> [u8; 4] {
        i32::try_from(to.wrapping_sub(from).cast_signed()).unwrap().to_le_bytes()
    }

    /// Three NOPs that a feature replaces by CLAC, at +0x10; a jump to the return thunk at +0x20;
    /// tables at +0x40.
    fn kernel() -> (KernelText, SymbolTable) {
        let mut memory = vec![0x55; 0x40];
        memory[0x10..0x13].copy_from_slice(&[0x90; 3]);
        memory[0x20..0x25].copy_from_slice(&[0xe9, 0, 0, 0, 0]);
        memory[0x30..0x33].copy_from_slice(&[0x0f, 0x01, 0xca]);
        memory.extend(distance(BASE + 0x40, BASE + 0x10));
        memory.extend(distance(BASE + 0x44, BASE + 0x30));
        memory.extend([0x34, 0x01, 3, 3]);
        memory.extend(distance(BASE + 0x4c, BASE + 0x20));
        let symbols = SymbolTable::parse(
            "\
ffffffff81000000 T _stext
ffffffff8100003f T _etext
ffffffff81000040 R __alt_instructions
ffffffff8100004c R __alt_instructions_end
ffffffff8100004c R __return_sites
ffffffff81000050 R __return_sites_end
ffffffff81000060 R _end
",
        );
        (image(BASE, &memory), symbols)
    }

    #[test]
    fn every_possibility_is_given() {
        let (text, symbols) = kernel();
        let sites = BootSites::read(&text, &symbols);
        assert_eq!(sites.sites.values().map(Vec::len).sum::<usize>(), 2);
        let over = |offset: u64| sites.over(BASE + offset, &text, &symbols);
        assert!(over(0xf).is_empty() && over(0x13).is_empty() && over(0x25).is_empty());
        for offset in 0x10..0x13 {
            let found = over(offset);
            let [(site, states)] = found.as_slice() else { panic!("{found:?}") };
            assert_eq!((site.what, site.range.clone()), ("an alternative", BASE + 0x10..BASE + 0x13));
            assert_eq!(*states, [vec![0x0f, 0x1f, 0x00], vec![0x0f, 0x01, 0xca]], "one NOP, or CLAC");
        }
        let returns = over(0x24);
        assert_eq!(returns[0].1, [RETURN.to_vec(), vec![0xe9, 0, 0, 0, 0]]);
        assert!(BootSites::default().over(BASE + 0x10, &text, &symbols).is_empty());
    }

    #[test]
    fn the_likeliest_is_foreseen_wherever_code_begins() {
        let (text, symbols) = kernel();
        let sites = BootSites::read(&text, &symbols);
        let mut code = text.read(BASE + 0x11, 4).unwrap();
        sites.foresee(BASE + 0x11, &mut code, &text, &symbols);
        assert_eq!(code, [0x1f, 0x00, 0x55, 0x55]);
        let mut code = text.read(BASE + 0xf, 2).unwrap();
        sites.foresee(BASE + 0xf, &mut code, &text, &symbols);
        assert_eq!(code, [0x55, 0x0f]);
    }
}
