//! Probes in functions that a livepatch redirects: warned of for as long as it does.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{ProbeState, Verdict, WatchProbesRequest};
use kprobed_vm::machine::{Command, Signal};

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;
use crate::kernel_module::{Build, Function};
use crate::triggers::config;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        a_livepatch_is_warned_of_while_it_is_there,
    }
};

const PATCH: &str = "kpd_fix";
const FILE: &str = "/tmp/kpd_fix.ko";

/// What it redirects: a system call, and where `cat` sleeps while it opens a pipe that no program
/// writes to.
const CALLED: &str = "__x64_sys_getpgid";
const SLEPT_IN: &str = "fifo_open";

/// What the new function returns: no process has this number here.
const RETURNED: i32 = 424_242;

const CALLS: usize = 5;

/// Which function runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    TheKernels,
    TheLivepatchs,
}

/// How often each probe was hit, as the kernel counts it.
fn counted(guest: &DaemonGuest) -> Result<BTreeMap<String, usize>> {
    let profile = guest.tracefs("kprobe_profile")?;
    let rows = profile.lines().map(|line| {
        let mut words = line.split_whitespace();
        let (name, hits) = (words.next().context("no name")?, words.next().context("no count")?);
        Ok((name.to_owned(), hits.parse()?))
    });
    rows.collect()
}

/// Calls the function. What it returns shows which one runs; which probes fire, what was recorded
/// and what the kernel counts.
fn calls(guest: &DaemonGuest, runs: Runs) -> Result<()> {
    let is_new = runs == Runs::TheLivepatchs;
    let before = counted(guest)?;
    let mut returned = Vec::new();
    let recording = guest.record(|| {
        returned = guest.workload(&["pgid", &CALLS.to_string()])?;
        Ok(())
    })?;
    let after = counted(guest)?;
    let new = RETURNED.to_string();
    ensure!(
        returned.len() == CALLS && returned.iter().all(|value| (*value == new) == is_new),
        "{returned:?}"
    );
    let inner = if is_new { 0 } else { CALLS };
    for (name, hits) in [("entry", CALLS), ("back", CALLS), ("inner", inner)] {
        let recorded = recording.of(&format!("kprobes/{name}"), "workload").count();
        let counted = after.get(name).context("no count")? - before.get(name).context("no count")?;
        ensure!((recorded, counted) == (hits, hits), "{name}: {recorded} and {counted}, and not {hits}");
    }
    let values: Vec<_> = recording.of("kprobes/back", "workload").map(|event| event.field("ret")).collect();
    ensure!(values == returned, "{values:?}, and {returned:?} was returned");
    Ok(())
}

/// A task that cannot be switched, and keeps the livepatch from being through.
fn begin_to_sleep(guest: &DaemonGuest) -> Result<()> {
    guest.shell("mkfifo /tmp/pipe")?;
    guest.machine.spawn("sleeper", &Command::shell("exec cat /tmp/pipe"))?;
    let sleeps = format!("for task in $(pidof cat); do grep -s {SLEPT_IN} /proc/$task/stack; done; true");
    guest.until("that cat sleeps", || Ok(!guest.shell(&sleeps)?.is_empty())).map(drop)
}

/// What the answer about an armed probe says of the livepatch: message and hint.
fn warning(guest: &DaemonGuest, name: &str) -> Result<Option<(String, String)>> {
    let probe = guest.probe(name)?;
    ensure!(probe.state() == ProbeState::Armed, "{probe:?}");
    let warning = probe.warnings.into_iter().find(|warning| warning.code == "LIVEPATCHED");
    Ok(warning.map(|warning| (warning.message, warning.hint)))
}

/// The kernel ignores the probe inside of the function, and that is said wherever probes are.
fn says_so_everywhere(guest: &DaemonGuest, inner: &str) -> Result<()> {
    let (message, hint) = warning(guest, "inner")?.context("no warning")?;
    ensure!(message.contains(PATCH) && message.contains(CALLED), "{message}");
    ensure!(hint.contains(&format!("kprobectl functions --module {PATCH}")), "{hint}");
    let shown = guest.ctl("get inner")?;
    ensure!(shown.contains(&message), "{shown}");
    let found = guest.ctl_says("doctor")?.all();
    ensure!(found.contains(&message), "{found}");
    for name in ["entry", "back"] {
        ensure!(warning(guest, name)?.is_some_and(|(_, hint)| hint.is_empty()), "{name}");
    }
    // Before a probe is made, and when it is made.
    let checked = guest.wait_for(guest.client.check_probe(format!("p {inner}").as_str()))??;
    let warning = checked.diagnostics.iter().find(|found| found.code == "LIVEPATCHED");
    let warning = warning.with_context(|| format!("{checked:?}"))?;
    ensure!(checked.verdict() == Verdict::Accepted && warning.message.contains(PATCH), "{checked:?}");
    let other = guest.wait_for(guest.client.check_probe("p __x64_sys_getppid"))??;
    ensure!(other.diagnostics.is_empty(), "{other:?}");
    let late = guest.ctl_says(&format!("add 'p:late {inner}'"))?.all();
    ensure!(late.contains(PATCH), "{late}");
    // The hint leads to a probe that fires.
    let new = guest.ctl(&format!("symbols --module {PATCH} -o json"))?;
    ensure!(new.contains("kpd_getpgid"), "{new}");
    guest.add(&format!("p:new {PATCH}:kpd_getpgid"))?;
    calls(guest, Runs::TheLivepatchs)?;
    let counts = counted(guest)?;
    ensure!((counts.get("new"), counts.get("late")) == (Some(&CALLS), Some(&0)), "{counts:?}");
    guest.delete("late")?;
    guest.delete("new")?;
    Ok(())
}

fn a_livepatch_is_warned_of_while_it_is_there(fixture: &Fixture) -> Result<()> {
    let guest = fixture.own_daemon("livepatch", &config())?;
    let replacements = [
        (CALLED, Function::returning("kpd_getpgid", RETURNED)),
        (SLEPT_IN, Function::returning("kpd_open", -5)),
    ];
    guest.machine.put(FILE, 0o644, &Build::of(&guest)?.livepatch(PATCH, &replacements)?)?;
    // After the ftrace call site of the function, which each call passes.
    let inner = guest.place_from(CALLED, 5)?;
    guest.add(&format!("p:entry {CALLED}"))?;
    guest.add(&format!("r:back {CALLED} ret=$retval:s64"))?;
    guest.add(&format!("p:inner {inner}"))?;
    let mut watch = guest.wait_for(guest.client.watch_probes(WatchProbesRequest::default()))??;
    calls(&guest, Runs::TheKernels)?;

    begin_to_sleep(&guest)?;
    guest.shell(&format!("insmod {FILE}"))?;
    let is_under_way = guest.shell(&format!("cat /sys/kernel/livepatch/{PATCH}/transition"))?;
    ensure!(is_under_way.trim() == "1", "nothing keeps it from being through");
    let (message, _) = warning(&guest, "inner")?.context("no warning")?;
    ensure!(message.contains("only tasks that it has not reached yet"), "{message}");
    // Tasks that have been switched run the new function.
    calls(&guest, Runs::TheLivepatchs)?;

    guest.machine.signal("sleeper", Signal::SIGKILL)?;
    let is_through =
        format!("until [ $(cat /sys/kernel/livepatch/{PATCH}/transition) = 0 ]; do sleep 0.05; done");
    guest.shell(&is_through)?;
    calls(&guest, Runs::TheLivepatchs)?;
    says_so_everywhere(&guest, &inner)?;

    guest.shell(&format!("echo 0 > /sys/kernel/livepatch/{PATCH}/enabled"))?;
    guest.until("it is switched off", || Ok(warning(&guest, "inner")?.is_none()))?;
    calls(&guest, Runs::TheKernels)?;
    ensure!(warning(&guest, "entry")?.is_none());
    // A watcher received the warning with the look that the module caused, and that it is over with the next look.
    guest.ctl("doctor --repair --force")?;
    let mut warned = BTreeMap::from([("kprobes/inner", Vec::new()), ("kprobes/entry", Vec::new())]);
    while warned.values().any(|warned| *warned != [false, true, false]) {
        let message = guest.wait_for(watch.next())??.message();
        let Some(probe) = message.and_then(|message| message.probe) else { continue };
        if let Some(warned) = warned.get_mut(probe.name.as_str()) {
            ensure!(probe.state() == ProbeState::Armed, "{probe:?}");
            warned.push(probe.warnings.iter().any(|warning| warning.code == "LIVEPATCHED"));
            warned.dedup();
            ensure!([false, true, false].starts_with(warned), "{warned:?}");
        }
    }
    guest.shell(&format!("until rmmod {PATCH}; do sleep 0.05; done"))?;
    Ok(())
}
