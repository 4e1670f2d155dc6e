//! How a probe is armed (breakpoint, jump, ftrace): the daemon's prediction against the kernel,
//! without a difference.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{Arming, ProbeKind};
use kprobed_vm::progress;

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        every_place_is_armed_as_predicted,
    }
};

/// Functions of varied code that every kernel has; the last one has entries in the exception table.
const FUNCTIONS: [&str; 5] = ["vfs_read", "vfs_write", "do_sys_openat2", "kernel_clone", "strncpy_from_user"];

/// Probes of a function that are armed together are at least this many bytes apart: a jump has 5,
/// and the instruction that its last byte cuts at most 15.
const BYTES_APART: u32 = 20;

/// The kernel says at once what it will make a jump of; this leaves it time to finish if no jump
/// shows that it has.
const SETTLED_AFTER: Duration = Duration::from_millis(500);

/// A place, and how the daemon says that it is armed.
struct Predicted {
    place: String,
    offset: u32,
    arming: Arming,
}

/// Every place of a function that can be probed, by its offset.
fn predictions(guest: &DaemonGuest, function: &str) -> Result<Vec<Predicted>> {
    let answer = guest.wait_for(guest.client.disassemble_function(function, ProbeKind::Entry))??;
    let behind_endbr = answer.instructions.iter().any(|one| one.entry && one.offset > 0);
    let probeable = answer.instructions.iter().filter(|one| one.probeable);
    // On a function with ENDBR, its first byte is another way to write the place after it.
    let places = probeable.filter(|one| !(behind_endbr && one.offset == 0));
    let predicted = |offset, arming| Predicted { place: format!("{function}+{offset:#x}"), offset, arming };
    Ok(places.map(|one| predicted(one.offset, one.arming())).collect())
}

/// Puts the places into few batches. The kernel needs about a second to make the jumps of a batch,
/// since it waits until no task can still be in the old code. A batch takes a place of a function
/// when the last one that it took there is far enough away.
fn batches(functions: Vec<Vec<Predicted>>) -> Vec<Vec<Predicted>> {
    let mut batches: Vec<Vec<Predicted>> = Vec::new();
    for places in functions {
        let mut free_from: Vec<u32> = Vec::new();
        for place in places {
            let batch = free_from.iter().position(|free| *free <= place.offset).unwrap_or(free_from.len());
            if batch == free_from.len() {
                free_from.push(0);
            }
            if batch == batches.len() {
                batches.push(Vec::new());
            }
            free_from[batch] = place.offset + BYTES_APART;
            batches[batch].push(place);
        }
    }
    batches
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
    // It also waits for a grace period when it removes a probe. How long these are matters to
    // nothing here.
    let expedite = |on: u8| guest.shell(&format!("echo {on} > /sys/kernel/rcu_expedited"));
    expedite(1)?;
    let outcome = compare(&guest, places);
    expedite(0)?;
    outcome
}

/// Defines probes at all places, and looks how the kernel has armed them.
fn compare(guest: &DaemonGuest, places: Vec<Vec<Predicted>>) -> Result<()> {
    let mut counts = BTreeMap::new();
    let mut differences = String::new();
    for chosen in batches(places) {
        let (mut lines, mut removals) = (String::new(), String::new());
        for (index, Predicted { place, .. }) in chosen.iter().enumerate() {
            writeln!(lines, "p:opt/e{index} {place}")?;
            writeln!(removals, "-:opt/e{index}")?;
        }
        guest.shell(&format!(
            "echo '{lines}' >> {TRACEFS}/kprobe_events && echo 1 > {TRACEFS}/events/opt/enable"
        ))?;
        // The kernel makes all jumps at once.
        let jumps = |places: &BTreeMap<String, Arming>| {
            let mut predicted = chosen.iter().filter(|one| one.arming == Arming::Optimised).peekable();
            predicted.peek().is_some() && predicted.all(|one| places.get(&one.place) == Some(&one.arming))
        };
        let since = Instant::now();
        let list = loop {
            let list = guest.shell("cat /sys/kernel/debug/kprobes/list")?;
            if jumps(&armed(&list)) || since.elapsed() > SETTLED_AFTER {
                break list;
            }
            thread::sleep(Duration::from_millis(50));
        };
        guest.shell(&format!(
            "echo 0 > {TRACEFS}/events/opt/enable && echo '{removals}' >> {TRACEFS}/kprobe_events"
        ))?;
        let armed = armed(&list);
        for Predicted { place, arming: predicted, .. } in chosen {
            let found = *armed.get(&place).with_context(|| format!("{place} is not in the list:\n{list}"))?;
            *counts.entry(found.as_str_name()).or_insert(0) += 1;
            if found != predicted {
                writeln!(differences, "{place}: {predicted:?} was predicted, the kernel has {found:?}")?;
            }
        }
    }
    ensure!(differences.is_empty(), "{differences}");
    ensure!(counts.len() == 3, "not every way was tested: {counts:?}");
    progress::note(format_args!("armed as predicted: {counts:?}"));
    Ok(())
}
