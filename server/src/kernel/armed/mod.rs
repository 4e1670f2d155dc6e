//! What kprobes, whoever placed them, have done to the kernel's code.
//!
//! Owns the list of registered probes (debugfs `kprobes/list`) and undoing their patches in code that was read, as the kernel's own checks
//! do (arch/x86/kernel/kprobes/core.c:recover_probed_instruction). Never writes anything: the originals are found in the copies that the
//! kernel executes.

mod originals;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use super::recent::FRESH_FOR;
use super::{KernelText, SymbolTable, read_text};

/// What is at the address of a probe now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patch {
    /// Nothing of kprobes: it is disabled, or ftrace calls it.
    None,
    /// A breakpoint in place of the first byte.
    Breakpoint,
    /// A jump in place of the first five bytes.
    Jump,
}

/// All registered probes by address, at one time.
#[derive(Debug, Default)]
struct Registered {
    probes: Vec<(u64, Patch)>,
    /// Pages with copies of single instructions, looked for when the first breakpoint is to be undone.
    pages: OnceLock<Vec<u64>>,
}

/// The probes of the running kernel. Read again when the last reading is older than [`FRESH_FOR`].
#[derive(Debug)]
pub struct ArmedProbes {
    list: PathBuf,
    kallsyms: PathBuf,
    last: Mutex<Option<(Instant, Arc<Registered>)>>,
}

impl ArmedProbes {
    /// Reads nothing yet.
    pub fn new(procfs: &Path, debugfs: &Path) -> Self {
        Self { list: debugfs.join("kprobes/list"), kallsyms: procfs.join("kallsyms"), last: Mutex::default() }
    }

    fn current(&self) -> Arc<Registered> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read, registered)) = last.as_ref()
            && read.elapsed() < FRESH_FOR
        {
            return Arc::clone(registered);
        }
        // Without debugfs there is no way to know: code is taken as it is.
        let registered = Arc::new(parse(&read_text(&self.list).unwrap_or_default()));
        *last = Some((Instant::now(), Arc::clone(&registered)));
        registered
    }

    /// Whether a probe is registered at `address`: another one there is added to it, and nothing is patched any more
    /// (kernel/kprobes.c:register_aggr_kprobe).
    pub fn is_registered(&self, address: u64) -> bool {
        self.current().probes.binary_search_by_key(&address, |(at, _)| *at).is_ok()
    }

    /// Undoes all patches in `code`, which was read at `start`.
    pub(super) fn undo(&self, start: u64, code: &mut [u8], text: &KernelText, symbols: &SymbolTable) {
        let registered = self.current();
        let first = registered.probes.partition_point(|(address, _)| *address < start);
        for (address, patch) in registered.probes.get(first..).unwrap_or_default() {
            let Some(patched) =
                usize::try_from(address - start).ok().and_then(|offset| code.get_mut(offset..))
            else {
                break;
            };
            let original = match (patch, patched.first()) {
                (Patch::Jump, Some(&originals::JUMP)) => {
                    originals::behind_jump(*address, patched, text, symbols)
                }
                (Patch::Breakpoint, Some(&originals::BREAKPOINT)) => {
                    let pages = registered.pages.get_or_init(|| self.copy_pages());
                    originals::below_breakpoint(*address, patched, pages, text)
                }
                _ => None,
            };
            for (byte, original) in patched.iter_mut().zip(original.unwrap_or_default()) {
                *byte = original;
            }
        }
    }

    /// Pages of copied instructions, which kallsyms shows as of a module that does not exist (kernel/kprobes.c:kprobe_cache_get_kallsym,
    /// since 5.8).
    fn copy_pages(&self) -> Vec<u64> {
        let kallsyms = read_text(&self.kallsyms).unwrap_or_default();
        let pages = kallsyms.lines().filter(|line| line.contains("kprobe_insn_page\t[__builtin__kprobes]"));
        pages.filter_map(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok()).collect()
    }
}

/// Parses lines of the form `ADDRESS k|r SYMBOL+0xOFFSET [MODULE] [FLAGS]...`. Probes whose code has gone are left out.
fn parse(list: &str) -> Registered {
    let probe = |line: &str| {
        let address = line.split_ascii_whitespace().next()?;
        let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).ok()?;
        let has = |flag| line.contains(flag);
        let patch = if has("[DISABLED]") || has("[FTRACE]") {
            Patch::None
        } else if has("[OPTIMIZED]") {
            Patch::Jump
        } else {
            Patch::Breakpoint
        };
        Some((address, patch)).filter(|_| !has("[GONE]"))
    };
    let mut probes: Vec<_> = list.lines().filter_map(probe).collect();
    // Several probes at one address are listed one by one; an armed one decides.
    probes.sort_unstable_by_key(|(address, patch)| (*address, *patch == Patch::None));
    probes.dedup_by_key(|(address, _)| *address);
    Registered { probes, pages: OnceLock::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn flags_say_what_is_patched() {
        let list = "\
ffffffff81000100  k  f+0x0    [DISABLED]
ffffffff81000100  r  f+0x0
ffffffff81000000  k  g+0x0    [FTRACE]
ffffffff81000200  k  h+0x10    [OPTIMIZED]
ffffffffc0000000  k  m+0x0  mod [GONE]
";
        let base = 0xffff_ffff_8100_0000;
        let expected = [(base, Patch::None), (base + 0x100, Patch::Breakpoint), (base + 0x200, Patch::Jump)];
        assert_eq!(parse(list).probes, expected);
    }

    proptest! {
        #[test]
        fn any_list_is_survived(list in ".{0,80}") {
            let _ = parse(&list);
        }
    }
}
