//! How the daemon says that a probe would be armed against how the kernel arms it: no difference allowed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{Arming, ProbeKind};
use kprobed_vm::progress;

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = &[("every_place_is_armed_as_predicted", every_place_is_armed_as_predicted)];

/// Functions of varied code that every kernel has; the last one has entries in the exception table.
const FUNCTIONS: [&str; 5] = ["vfs_read", "vfs_write", "do_sys_openat2", "kernel_clone", "strncpy_from_user"];

/// Probes that are armed together are at least this many instructions apart, and so bytes: more than a jump and the instruction that its
/// last byte cuts.
const APART: usize = 20;

/// The kernel says at once what it will make a jump of; this leaves it time to finish where no jump shows that it has.
const SETTLED_AFTER: Duration = Duration::from_millis(500);

/// Places, and how the daemon says that they are armed.
fn predictions(guest: &DaemonGuest, function: &str) -> Result<Vec<(String, Arming)>> {
    let answer = guest.wait_for(guest.client.disassemble_function(function, ProbeKind::Entry))??;
    let behind_endbr = answer.instructions.iter().any(|one| one.entry && one.offset > 0);
    let probeable = answer.instructions.iter().filter(|one| one.probeable);
    // On a function with ENDBR, its first byte is another way to write what is behind that.
    let places = probeable.filter(|one| !(behind_endbr && one.offset == 0));
    Ok(places.map(|one| (format!("{function}+{:#x}", one.offset), one.arming())).collect())
}

/// How the kernel armed its probes, by place.
fn armed(list: &str) -> BTreeMap<String, Arming> {
    let how = |line: &str| {
        let place = line.split_ascii_whitespace().nth(2)?.to_owned();
        let arming = if line.contains("[FTRACE]") {
            Arming::Ftrace
        } else if line.contains("[OPTIMIZED]") {
            Arming::Optimised
        } else {
            Arming::Breakpoint
        };
        Some((place, arming))
    };
    list.lines().filter_map(how).collect()
}

fn every_place_is_armed_as_predicted(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let mut places = Vec::new();
    for function in FUNCTIONS {
        places.push(predictions(&guest, function)?);
    }
    let mut counts = BTreeMap::new();
    let mut differences = String::new();
    for batch in 0..APART {
        let chosen: Vec<_> =
            places.iter().flat_map(|places| places.iter().skip(batch).step_by(APART)).collect();
        let (mut lines, mut removals) = (String::new(), String::new());
        for (index, (place, _)) in chosen.iter().enumerate() {
            writeln!(lines, "p:opt/e{index} {place}")?;
            writeln!(removals, "-:opt/e{index}")?;
        }
        guest.shell(&format!(
            "echo '{lines}' >> {TRACEFS}/kprobe_events && echo 1 > {TRACEFS}/events/opt/enable"
        ))?;
        // The kernel makes all jumps at once.
        let jumps = |places: &BTreeMap<String, Arming>| {
            chosen.iter().any(|(_, predicted)| *predicted == Arming::Optimised)
                && chosen.iter().all(|(place, predicted)| {
                    *predicted != Arming::Optimised || places.get(place) == Some(predicted)
                })
        };
        let since = Instant::now();
        let list = loop {
            let list = guest.shell("cat /sys/kernel/debug/kprobes/list")?;
            if jumps(&armed(&list)) || since.elapsed() > SETTLED_AFTER {
                break list;
            }
        };
        guest.shell(&format!(
            "echo 0 > {TRACEFS}/events/opt/enable && echo '{removals}' >> {TRACEFS}/kprobe_events"
        ))?;
        let armed = armed(&list);
        for (place, predicted) in chosen {
            let found = *armed.get(place).with_context(|| format!("{place} is not in the list:\n{list}"))?;
            *counts.entry(found.as_str_name()).or_insert(0) += 1;
            if found != *predicted {
                writeln!(differences, "{place}: {predicted:?} was predicted, the kernel has {found:?}")?;
            }
        }
    }
    ensure!(differences.is_empty(), "{differences}");
    ensure!(counts.len() == 3, "not every way was tested: {counts:?}");
    progress::note(format_args!("armed as predicted: {counts:?}"));
    Ok(())
}
