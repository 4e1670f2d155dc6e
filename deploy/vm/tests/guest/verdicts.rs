//! Differential test of probe places: the daemon's verdict against the kernel's, without a
//! difference.
//!
//! Functions are drawn anew for each commit; `KPROBED_VM_SEED` repeats a draw.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kprobed_client::api::Verdict;
use kprobed_vm::progress;

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS};
use crate::differential::{Random, compare_errnos, daemon_answers};
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        every_offset_of_random_functions,
        names_of_modules,
    }
    Daemon {
        offsets_around_armed_probes,
    }
};

/// Functions that are drawn for each kernel.
fn drawn() -> usize {
    effort::pick(3, 10)
}

/// The largest that is taken: small ones hold more different things in as many offsets.
const LARGEST_BYTES: u64 = 400;

/// Return probes are tried on this many offsets: none can work after them.
const RETURN_OFFSETS: u64 = 20;

/// A line of `/proc/kallsyms`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol<'a> {
    pub(crate) address: u64,
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
    pub(crate) module: Option<&'a str>,
}

/// The lines of `/proc/kallsyms`.
pub(crate) fn symbols(listed: &str) -> impl Iterator<Item = Symbol<'_>> {
    listed.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let (kind, name) = (words.next()?, words.next()?);
        let module = words.next().map(|module| module.trim_matches(['[', ']']));
        Some(Symbol { address, kind, name, module })
    })
}

/// Code symbols of the guest with their sizes, as far as they are small.
pub(crate) fn functions(guest: &DaemonGuest) -> Result<Vec<(String, u64)>> {
    let text = guest.shell("cat /proc/kallsyms")?;
    let mut symbols: Vec<_> = symbols(&text).filter(|symbol| symbol.module.is_none()).collect();
    symbols.sort_by_key(|symbol| symbol.address);
    let sized = symbols.windows(2).map(|pair| (pair[0], pair[1].address - pair[0].address));
    let small = sized
        .filter(|(symbol, bytes)| matches!(symbol.kind, "t" | "T") && (1..=LARGEST_BYTES).contains(bytes));
    Ok(small.map(|(symbol, bytes)| (symbol.name.to_owned(), bytes)).collect())
}

fn every_offset_of_random_functions(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let mut random = Random::of_theme("verdicts");
    let candidates = functions(&guest)?;
    ensure!(candidates.len() > 10_000, "only {} functions", candidates.len());
    let (mut compared, mut accepted) = (0, 0);
    for draw in 0..drawn() {
        let (name, size) = random.pick(&candidates);
        let entry = (0..size + 2).map(|offset| format!("p:v{draw}/e{offset} {name}+{offset}"));
        let returns = (0..RETURN_OFFSETS).map(|offset| format!("r:v{draw}/r{offset} {name}+{offset}"));
        let (lines, good) = compare_errnos(&guest, entry.chain(returns).collect())?;
        compared += lines;
        accepted += good;
    }
    // A draw of functions that the kernel refuses altogether is possible.
    let (lines, good) = compare_errnos(&guest, offsets("vfs_read"))?;
    compared += lines;
    accepted += good;
    progress::note(format_args!("{compared} offsets compared, {accepted} of them accepted, no difference"));
    ensure!(accepted > 0 && accepted < compared);
    Ok(())
}

/// Offsets that are tried around probes.
const AROUND: usize = 120;

/// How long the kernel may take to replace breakpoints by jumps (kernel/kprobes.c,
/// `OPTIMIZE_DELAY`), with a margin for emulation.
const OPTIMISED_AFTER: Duration = Duration::from_secs(1);

fn offsets(function: &str) -> Vec<String> {
    (0..AROUND).map(|offset| format!("p:v/e{offset} {function}+{offset}")).collect()
}

/// What probes do to the code must not change what is said about it: every second place is armed,
/// one of them by another program, and all offsets are compared before the kernel makes jumps of
/// breakpoints, after that, and with some probes switched off again.
fn offsets_around_armed_probes(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let mut compared = 0;
    // With little effort one of them; kernels that are tested together take different ones.
    let first = Random::of_theme("armed").below(2) + usize::from(fixture.is_older_than(6, 12));
    for function in ["vfs_read", "do_sys_openat2"].iter().cycle().skip(first).take(effort::pick(1, 2)) {
        let answers = daemon_answers(&guest, &offsets(function))?;
        let places = (0..AROUND).zip(answers).filter(|(_, answer)| answer.verdict() == Verdict::Accepted);
        let places: Vec<_> = places.map(|(offset, _)| offset).collect();
        ensure!(places.len() > 20, "{places:?}");
        let mut ours = Vec::new();
        for (index, offset) in places.iter().enumerate().filter(|(index, _)| index % 2 == 1) {
            if index == 3 {
                let event = format!("{TRACEFS}/events/foreign/one/enable");
                guest.shell(&format!(
                    "echo 'p:foreign/one {function}+{offset}' >> {TRACEFS}/kprobe_events; echo 1 > {event}"
                ))?;
            } else {
                ours.push(guest.add(&format!("p:at{offset} {function}+{offset}"))?.name);
            }
            if index > 7 {
                break;
            }
        }
        // Some wait to become jumps now, and some are so close to others that they never will.
        compared += compare_errnos(&guest, offsets(function))?.0;
        for name in ours.iter().step_by(2) {
            guest.wait_for(guest.client.set_enabled(name, false))??;
        }
        compared += compare_errnos(&guest, offsets(function))?.0;
        let alone = format!("p:alone {function}+{}", places[places.len() - 2]);
        guest.add(&alone)?;
        let since = Instant::now();
        while !guest.shell("cat /sys/kernel/debug/kprobes/list")?.contains("[OPTIMIZED]")
            && since.elapsed() < OPTIMISED_AFTER
        {
            thread::sleep(Duration::from_millis(100));
        }
        compared += compare_errnos(&guest, offsets(function))?.0;
        let list = guest.shell("cat /sys/kernel/debug/kprobes/list")?;
        ensure!(list.contains("[OPTIMIZED]"), "no jump was tested: {list}");
        guest.shell(&format!("echo 0 > {TRACEFS}/events/foreign/one/enable"))?;
        guest.delete_all()?;
    }
    progress::note(format_args!("{compared} offsets compared around armed probes, no difference"));
    Ok(())
}

/// Names that are tried of each kind.
const NAMES: usize = 40;

/// Kernels differ in which symbols of modules they count: names that only modules have, names that the kernel has
/// too, each with and without the module.
fn names_of_modules(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.shell("for file in /lib/kprobed-guest/modules/*.ko; do insmod $file 2> /dev/null; done; true")?;
    let text = guest.shell("cat /proc/kallsyms")?;
    // Functions that eBPF has loaded are shown with a name in brackets too.
    let code = symbols(&text).filter(|one| matches!(one.kind, "t" | "T") && one.module != Some("bpf"));
    let (kernel, modules): (Vec<_>, Vec<_>) = code.partition(|symbol| symbol.module.is_none());
    let kernel: HashSet<&str> = kernel.into_iter().map(|symbol| symbol.name).collect();
    let (mut shared, mut own): (Vec<_>, Vec<_>) =
        modules.into_iter().partition(|symbol| kernel.contains(symbol.name));
    let mut random = Random::of_theme("modules");
    let mut lines = Vec::new();
    for names in [&mut shared, &mut own] {
        ensure!(!names.is_empty(), "no name of a module, or none that the kernel has too");
        for _ in 0..NAMES.min(names.len()) {
            let Symbol { name, module, .. } = names.swap_remove(random.below(names.len()));
            let index = lines.len();
            lines.push(format!("p:m/n{index} {name}"));
            lines.push(format!("p:m/m{index} {}:{name}", module.unwrap_or_default()));
        }
    }
    let (compared, accepted) = compare_errnos(&guest, lines)?;
    progress::note(format_args!("{compared} names compared, {accepted} of them accepted, no difference"));
    ensure!(accepted > 0);
    Ok(())
}
