//! Linker tables and strings of a kernel image: ftrace call sites, the kprobe blacklist, the
//! version banner, the tracefs `README` (include/asm-generic/vmlinux.lds.h).

use std::ops::Range;

use super::super::{Blacklist, KernelText, SymbolTable, TraceableFunctions};
use super::ImageError;

/// Longer than any text of the kernel that is read here.
const TEXT_MAX_BYTES: usize = 64 << 10;

/// The bytes between two symbols, and the address of the first; none when one of the symbols is
/// missing, or the memory between them.
pub(in crate::kernel) fn between(
    text: &KernelText,
    symbols: &SymbolTable,
    start: &str,
    stop: &str,
) -> Option<(u64, Vec<u8>)> {
    let Range { start, end } = symbols.between(start, stop)?;
    let length = usize::try_from(end.checked_sub(start)?).ok()?;
    Some((start, if length == 0 { Vec::new() } else { text.read(start, length).ok()? }))
}

fn addresses(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).filter_map(|bytes| Some(u64::from_le_bytes(*bytes.first_chunk()?)))
}

/// Call sites of ftrace (kernel/trace/ftrace.c:ftrace_init). Those of code that is gone after boot
/// go with it (ftrace_free_init_mem), and those of weak functions that another one replaced may be
/// 0 (since 6.15).
pub(in crate::kernel) fn traceable(
    text: &KernelText,
    symbols: &SymbolTable,
) -> Result<TraceableFunctions, ImageError> {
    let has_ftrace = ["ftrace_init", "__fentry__"].iter().any(|name| symbols.address(name).is_some());
    let Some((_, bytes)) = between(text, symbols, "__start_mcount_loc", "__stop_mcount_loc") else {
        let missing = ImageError::NoTable { symbol: "__start_mcount_loc" };
        return if has_ftrace { Err(missing) } else { Ok(TraceableFunctions::default()) };
    };
    let core = symbols.address("_stext").unwrap_or(1)..symbols.address("_etext").unwrap_or(u64::MAX);
    Ok(TraceableFunctions::at(addresses(&bytes).filter(|site| core.contains(site)).collect()))
}

/// The functions that the kernel is built not to probe
/// (include/asm-generic/kprobes.h:NOKPROBE_SYMBOL).
pub(in crate::kernel) fn blacklist(
    text: &KernelText,
    symbols: &SymbolTable,
) -> Result<Blacklist, ImageError> {
    let (_, bytes) = between(text, symbols, "__start_kprobe_blacklist", "__stop_kprobe_blacklist")
        .ok_or(ImageError::NoTable { symbol: "__start_kprobe_blacklist" })?;
    Ok(Blacklist::of_functions(addresses(&bytes), symbols))
}

/// `uname -r` and `uname -v` (init/version-timestamp.c:linux_banner).
pub(super) fn release(text: &KernelText, symbols: &SymbolTable) -> Result<(String, String), ImageError> {
    let banner = string(text, symbols, "linux_banner");
    banner.and_then(|banner| words_of_banner(&banner)).ok_or(ImageError::NoTable { symbol: "linux_banner" })
}

/// `Linux version RELEASE (BUILDER) (COMPILER) #NUMBER ...`.
fn words_of_banner(banner: &str) -> Option<(String, String)> {
    let rest = banner.strip_prefix("Linux version ")?;
    let (release, rest) = rest.split_once(' ')?;
    let (_, version) = rest.rsplit_once(" #")?;
    Some((release.to_owned(), format!("#{}", version.trim_end())))
}

/// The text that tracefs shows as `README` (kernel/trace/trace.c:readme_msg).
pub(super) fn readme(text: &KernelText, symbols: &SymbolTable) -> String {
    string(text, symbols, "readme_msg").unwrap_or_default()
}

fn string(text: &KernelText, symbols: &SymbolTable, name: &str) -> Option<String> {
    let bytes = text.read_up_to(symbols.address(name)?, TEXT_MAX_BYTES).ok()?;
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(bytes.get(..end)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::image;
    use proptest::prelude::*;

    const BASE: u64 = 0xffff_ffff_8100_0000;

    #[test]
    fn the_banner_has_release_and_version() {
        let banner = "Linux version 6.1.0-48-cloud-amd64 (builder@host) (gcc-12 (Debian 12.2.0) 12.2.0, GNU ld 2.40) \
                      #1 SMP PREEMPT_DYNAMIC Debian 6.1.172-1 (2026-05-15)\n";
        let (release, version) = words_of_banner(banner).unwrap();
        assert_eq!(release, "6.1.0-48-cloud-amd64");
        assert_eq!(version, "#1 SMP PREEMPT_DYNAMIC Debian 6.1.172-1 (2026-05-15)");
        assert_eq!(words_of_banner("Linux version 6.1"), None);
    }

    #[test]
    fn tables_lie_between_their_symbols() {
        let symbols = SymbolTable::parse(
            "\
ffffffff81000000 T _stext
ffffffff81000010 t f
ffffffff81000040 T _etext
ffffffff81000100 D __start_mcount_loc
ffffffff81000118 D __stop_mcount_loc
ffffffff81000118 D __start_kprobe_blacklist
ffffffff81000120 D __stop_kprobe_blacklist
ffffffff81000120 d readme_msg
ffffffff81000130 t gone
",
        );
        let mut memory = vec![0x90; 0x100];
        memory.extend([BASE + 0x10, BASE + 0x130, 0].iter().flat_map(|address| address.to_le_bytes()));
        memory.extend((BASE + 0x10).to_le_bytes());
        memory.extend(b"mini-HOWTO\0.....");
        let text = image(BASE, &memory);
        let traceable = traceable(&text, &symbols).unwrap();
        assert!(traceable.is_site(BASE + 0x10) && !traceable.is_site(BASE + 0x130));
        let blacklist = blacklist(&text, &symbols).unwrap();
        assert!(blacklist.contains(BASE + 0x3f) && !blacklist.contains(BASE + 0x40));
        assert_eq!(readme(&text, &symbols), "mini-HOWTO");
        assert!(release(&text, &symbols).is_err());
        let none = SymbolTable::parse("ffffffff81000000 T __fentry__\n");
        assert!(super::traceable(&text, &none).is_err(), "there is a table, and its place is not known");
        assert!(super::traceable(&text, &SymbolTable::default()).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn any_banner_is_survived(banner in "(Linux version )?.{0,60}") {
            let _ = words_of_banner(&banner);
        }
    }
}
