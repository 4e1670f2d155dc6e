//! Registered kprobes of the whole host, and kernel code without their breakpoints and jumps.
//!
//! Owns the list of registered probes (debugfs `kprobes/list`), and undoing their patches in code
//! that was read, as the kernel's own checks do
//! (arch/x86/kernel/kprobes/core.c:recover_probed_instruction). Never writes anything: the original
//! bytes come from the kernel's own copies.

mod originals;
mod table;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use super::recent_facts::FRESH_FOR;
use super::{KernelText, SymbolTable, hex, read_text};

/// All registered probes by address, at one time.
#[derive(Debug, Default)]
struct Registered {
    probes: Vec<Probe>,
    /// Original bytes below breakpoints, by address; read when the first breakpoint is undone.
    opcodes: OnceLock<BTreeMap<u64, u8>>,
}

/// A place with probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probe {
    address: u64,
    /// Whether the kernel has replaced a breakpoint by a jump, is about to, or has not yet taken
    /// the jump back: the flag changes before the code or after it
    /// (kernel/kprobes.c:optimize_kprobe, do_unoptimize_kprobes). What is patched, only the code
    /// tells.
    optimised: bool,
    /// Whether at least one of the probes there is enabled.
    enabled: bool,
}

/// The probes of the running kernel.
#[derive(Debug)]
pub struct ArmedProbes {
    /// Absent for a kernel that does not run.
    list: Option<PathBuf>,
    last: Mutex<Option<(Instant, Arc<Registered>)>>,
}

/// The first byte of an instruction with an armed probe.
const BREAKPOINT: u8 = 0xcc;

/// How often code is read again because probes came or went meanwhile.
const MAX_READINGS: usize = 4;

impl ArmedProbes {
    /// Reads nothing yet.
    pub fn new(debugfs: &Path) -> Self {
        Self { list: Some(debugfs.join("kprobes/list")), last: Mutex::default() }
    }

    /// Of a kernel that was not booted: none.
    pub fn none() -> Self {
        Self { list: None, last: Mutex::default() }
    }

    /// The list as it is now.
    fn read(&self) -> Arc<Registered> {
        // Without debugfs probes are unknown: code is taken as it is.
        let list = self.list.as_ref().and_then(|list| read_text(list).ok());
        let probes = parse(&list.unwrap_or_default());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let registered = match last.take() {
            // What was found out about them stays true.
            Some((_, same)) if same.probes == probes => same,
            _ => Arc::new(Registered { probes, opcodes: OnceLock::new() }),
        };
        *last = Some((Instant::now(), Arc::clone(&registered)));
        registered
    }

    /// The list as it is now, or was a moment ago.
    fn recent(&self) -> Arc<Registered> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match last {
            Some((read, registered)) if read.elapsed() < FRESH_FOR => registered,
            _ => self.read(),
        }
    }

    /// Whether a probe is registered at `address`: another one there is added to it, and nothing is
    /// patched any more (kernel/kprobes.c:register_aggr_kprobe). One that has come or gone in the
    /// last [`FRESH_FOR`] may not be noticed, which does no harm: it was placed where the rules
    /// that it makes superfluous allow it.
    pub fn is_registered(&self, address: u64) -> bool {
        self.recent().probes.binary_search_by_key(&address, |probe| probe.address).is_ok()
    }

    /// Whether an enabled probe is registered at one of these addresses.
    pub fn any_enabled_in(&self, addresses: Range<u64>) -> bool {
        let registered = self.recent();
        let first = registered.probes.partition_point(|probe| probe.address < addresses.start);
        let rest = registered.probes.get(first..).unwrap_or_default();
        rest.iter().take_while(|probe| probe.address < addresses.end).any(|probe| probe.enabled)
    }

    /// Code as it would be without probes: what `read` reads at `start`, with all patches undone.
    /// If something still looks like a patch, the list is read again, until nothing changes.
    pub(super) fn without_patches(
        &self,
        start: u64,
        read: impl Fn() -> Vec<u8>,
        (text, core_text): (&KernelText, &Range<u64>),
        symbols: &SymbolTable,
    ) -> Vec<u8> {
        let mut registered = self.recent();
        let mut code = Vec::new();
        for _ in 0..MAX_READINGS {
            code = read();
            undo(&registered, start, &mut code, text, symbols);
            if !looks_patched(start, &code, core_text) {
                break;
            }
            let now = self.read();
            if Arc::ptr_eq(&now, &registered) {
                break;
            }
            registered = now;
        }
        code
    }
}

/// Whether there is a byte that could be a breakpoint, or one that could be the jump of an
/// optimised probe: those lead out of the kernel's code.
fn looks_patched(start: u64, code: &[u8], core_text: &Range<u64>) -> bool {
    let leads_out = |offset: usize| {
        let target = originals::jump_target(start.wrapping_add(offset as u64), code.get(offset..)?)?;
        Some(!core_text.contains(&target))
    };
    code.iter().enumerate().any(|(offset, byte)| match *byte {
        BREAKPOINT => true,
        originals::JUMP => leads_out(offset).unwrap_or(false),
        _ => false,
    })
}

/// Undoes all patches in `code`, which was read at `start`.
fn undo(registered: &Registered, start: u64, code: &mut [u8], text: &KernelText, symbols: &SymbolTable) {
    let first = registered.probes.partition_point(|probe| probe.address < start);
    for &Probe { address, optimised, .. } in registered.probes.get(first..).unwrap_or_default() {
        let Some(patched) = usize::try_from(address - start).ok().and_then(|offset| code.get_mut(offset..))
        else {
            break;
        };
        match patched.first_mut() {
            Some(&mut originals::JUMP) if optimised => {
                let original = originals::behind_jump(address, patched, text, symbols);
                for (byte, original) in patched.iter_mut().zip(original.unwrap_or_default()) {
                    *byte = original;
                }
            }
            Some(byte @ &mut BREAKPOINT) => {
                let opcodes = registered.opcodes.get_or_init(|| table::opcodes(text, symbols));
                *byte = opcodes.get(&address).copied().unwrap_or(BREAKPOINT);
            }
            _ => {}
        }
    }
}

/// Parses lines of the form `ADDRESS k|r SYMBOL+0xOFFSET [MODULE] [FLAGS]...`. Probes whose code
/// has gone are left out.
fn parse(list: &str) -> Vec<Probe> {
    let probe = |line: &str| {
        let address = hex(line.split_ascii_whitespace().next()?)?;
        let probe =
            Probe { address, optimised: line.contains("[OPTIMIZED]"), enabled: !line.contains("[DISABLED]") };
        Some(probe).filter(|_| !line.contains("[GONE]"))
    };
    let mut probes: Vec<_> = list.lines().filter_map(probe).collect();
    // Several probes at one address are listed one by one; what is said of one holds for all.
    probes.sort_unstable_by_key(|probe| probe.address);
    probes.dedup_by(|next, kept| {
        let same = next.address == kept.address;
        if same {
            kept.optimised |= next.optimised;
            kept.enabled |= next.enabled;
        }
        same
    });
    probes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_place_is_listed_once() {
        let list = "\
ffffffff81000100  k  f+0x0    [DISABLED]
ffffffff81000100  r  f+0x0
ffffffff81000000  k  g+0x0    [FTRACE]
ffffffff81000200  k  h+0x10    [DISABLED]
ffffffff81000200  k  h+0x10    [OPTIMIZED]
ffffffff81000300  k  i+0x0    [DISABLED]
ffffffffc0000000  k  m+0x0  mod [GONE]
";
        let base = 0xffff_ffff_8100_0000;
        let expected = [(0, false, true), (0x100, false, true), (0x200, true, true), (0x300, false, false)];
        let probe = |(offset, optimised, enabled): (u32, bool, bool)| Probe {
            address: base + u64::from(offset),
            optimised,
            enabled,
        };
        assert_eq!(parse(list), expected.map(probe));
    }

    proptest! {
        #[test]
        fn any_list_is_survived(list in ".{0,80}") {
            let _ = parse(&list);
        }
    }
}
