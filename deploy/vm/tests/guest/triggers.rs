//! Triggers of reconciliation: the daemon looks soon after another program has changed something,
//! and never otherwise. The period is so long here that it never ends.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{CheckStatus, ProbeState, ReconcileOutcome, ReconciledProbe, WatchProbesRequest};

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS, config_looking_every};
use crate::effort;
use crate::fixture::Fixture;
use crate::kernel_module::Build;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        a_client_asks_for_a_look,
        switches_of_the_host_are_noticed,
        writes_of_others_are_noticed,
    }
    Seldom {
        modules_that_come_and_go_are_noticed,
        our_own_writes_cause_no_look,
    }
};

/// With a period that never ends.
pub(crate) fn config() -> String {
    config_looking_every(3_600_000) + "\n[log]\nlevel = \"info,kprobed=debug\"\n"
}

/// The reason that the daemon has noted last for a probe, without a look; the name of its state
/// where it has none.
pub(crate) fn noted(guest: &DaemonGuest, name: &str) -> Result<String> {
    // A watch begins with the states that were noticed last.
    let request = WatchProbesRequest { name_glob: format!("*/{name}"), ..Default::default() };
    let mut watch = guest.wait_for(guest.client.watch_probes(request))??;
    let message = guest.wait_for(watch.next())??.message().context("the watch was interrupted")?;
    let probe = message.probe.context("there is no such probe")?;
    Ok(if probe.state_reason.is_empty() { format!("{:?}", probe.state()) } else { probe.state_reason })
}

/// Waits until the daemon has noted a state: it must not be asked for one, for it would look then.
/// Returns how long that took.
pub(crate) fn wait_for_note(guest: &DaemonGuest, name: &str, wanted: &str) -> Result<Duration> {
    guest.until(wanted, || Ok(noted(guest, name)? == wanted))
}

/// Calls are recorded, each of them.
fn records(guest: &DaemonGuest) -> Result<()> {
    let recording = guest.record(|| guest.workload(&["getppid", "7"]).map(drop))?;
    let seen = recording.of("kprobes/calls", "workload").count();
    ensure!(seen == 7, "{seen} of 7\n{}", guest.log());
    Ok(())
}

fn writes_of_others_are_noticed(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config())?;
    guest.add("p:calls __x64_sys_getppid")?;
    let instance = guest.instance()?;
    let off = format!("echo 0 > {instance}/events/enable");
    let set = |file: &str, value: &str| format!("echo {value} > {instance}/{file}");
    let remove = |with: &str| format!("{off}; {with} {TRACEFS}/kprobe_events");
    for (harm, file, mended) in [
        (set("tracing_on", "0"), "tracing_on", "1"),
        (set("trace_clock", "global"), "trace_clock", "[boot]"),
        (set("options/overwrite", "0"), "options/overwrite", "1"),
        (remove("echo '-:kprobes/calls' >>"), "events/kprobes/calls/enable", "1"),
        // Truncated with a write, and by opening it alone.
        (remove("echo >"), "events/kprobes/calls/enable", "1"),
        (remove(": >"), "events/kprobes/calls/enable", "1"),
    ] {
        // As often as it takes: each kind of harm is forgiven.
        guest.wait_for(guest.client.set_enabled("calls", true))??;
        guest.shell(&harm)?;
        let read = format!("cat {instance}/{file} 2>/dev/null || true");
        let is_mended = || Ok(guest.shell(&read)?.contains(mended));
        let took = guest.until(&harm, is_mended)?;
        fixture.note(format_args!("mended {took:.1?} after `{harm}`"));
        records(&guest).context(harm)?;
        wait_for_note(&guest, "calls", "Armed")?;
    }
    // Another size makes no probe wrong: the doctor says it.
    let kib: u64 = guest.in_instance("buffer_size_kb")?.trim().parse()?;
    guest.shell(&format!("echo {} > {instance}/buffer_size_kb", kib / 2))?;
    let found = guest.host_check("buffer_size")?;
    ensure!(found.status() == CheckStatus::Warning && !found.fix.is_empty(), "{found:?}");
    guest.shell(&format!("echo {kib} > {instance}/buffer_size_kb"))?;
    records(&guest)
}

fn switches_of_the_host_are_noticed(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config())?;
    guest.add("p:calls __x64_sys_getppid")?;
    // Two of them: ftrace cannot arm a probe in the middle of a function.
    for (file, reason) in [
        ("/sys/kernel/debug/kprobes/enabled", "KPROBES_OFF"),
        ("/proc/sys/kernel/ftrace_enabled", "FTRACE_OFF"),
    ] {
        for _ in 0..2 {
            guest.shell(&format!("echo 0 > {file}"))?;
            wait_for_note(&guest, "calls", reason)?;
            // Off and on again: the kernel arms by itself what was armed.
            guest.shell(&format!("echo 1 > {file}"))?;
            wait_for_note(&guest, "calls", "Armed")?;
            records(&guest).context(reason)?;
        }
    }
    Ok(())
}

fn modules_that_come_and_go_are_noticed(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon_with(&config())?;
    let file = guest.shell("ls /lib/kprobed-guest/modules/*-virtio_rng.ko 2>/dev/null || true")?;
    let file = file.trim();
    let devices = "ls -d /sys/bus/virtio/drivers/virtio_rng/virtio* 2>/dev/null | wc -l";
    let devices: usize = guest.shell(devices)?.trim().parse()?;
    ensure!(!file.is_empty() && devices > 0, "the guest has no module that can be spared");
    guest.shell("rmmod virtio_rng")?;
    let names = ["kprobes/probed", "kprobes/returned", "kprobes/inside"];
    let before = guest.tracefs("kprobe_events")?;
    let probe = guest.add("p:probed virtio_rng:virtrng_probe")?;
    // The kernel would arm each of them while it loads the module, before the daemon could judge the place.
    let is_out = |guest: &DaemonGuest| -> Result<()> {
        let listed = guest.tracefs("kprobe_events")?;
        ensure!(listed == before, "it is in the kernel: {listed}");
        Ok(())
    };
    is_out(&guest)?;
    ensure!(probe.state() == ProbeState::HeldBack && probe.location.is_empty(), "{probe:?}");
    ensure!(noted(&guest, "probed")? == "MODULE_ABSENT", "{}", noted(&guest, "probed")?);
    // The kernel gives this one a number of instances when it registers it, and lists it with that from then on.
    guest.add("r:returned virtio_rng:virtrng_probe")?;
    guest.add(&format!("p:inside virtio_rng:virtrng_probe+{}", Build::of(&guest)?.body_at()))?;
    guest.add("p:missing virtio_rng:no_such_function")?;
    let checked = guest.ctl_says("check 'p virtio_rng:no_such_function'")?.all();
    ensure!(checked.contains("accepted") && checked.contains("`virtio_rng` is not loaded"), "{checked}");
    ensure!(checked.contains("the address is checked, and the probe defined, when"), "{checked}");
    // It is kept, and what is wanted of it changes as with any other.
    guest.wait_for(guest.client.set_enabled("probed", false))??;
    guest.wait_for(guest.client.set_filter("probed", "common_pid > 0"))??;
    let again = guest.wait_for(guest.client.set_enabled("probed", true))??;
    ensure!(again.state() == ProbeState::HeldBack && again.enabled && !again.filter.is_empty(), "{again:?}");
    guest.stop_and_restart()?;
    ensure!(guest.probe("probed")?.state_reason == "MODULE_ABSENT", "{:?}", guest.probe("probed")?);
    is_out(&guest)?;
    let doctor = guest.ctl_says("doctor")?.all();
    ensure!(!doctor.contains("virtio_rng"), "to wait for a module is not a fault: {doctor}");
    for round in 1..=effort::pick(2, 3) {
        let mut took = Duration::ZERO;
        let loading = guest.record(|| {
            guest.shell(&format!("insmod {file}"))?;
            took = wait_for_note(&guest, "probed", "Armed")?;
            Ok(())
        })?;
        fixture.note(format_args!("a probe is armed {took:.1?} after its module was loaded"));
        // The module has found its devices by then.
        ensure!(loading.events.is_empty(), "round {round}: {loading:?}");
        let bind = "cd /sys/bus/virtio/drivers/virtio_rng; for device in virtio*; do echo $device > unbind; echo $device > bind; done";
        let recording = guest.record(|| guest.shell(bind).map(drop))?;
        for name in names {
            let events: Vec<_> = recording.events.iter().filter(|event| event.probe == name).collect();
            ensure!(
                events.len() == devices,
                "round {round}: {name}: {} of {devices}: {recording:?}",
                events.len()
            );
            let is_named =
                |location: &str| location.contains("virtrng_probe+") && location.contains("[virtio_rng]");
            ensure!(events.iter().all(|event| is_named(&event.location)), "round {round}: {recording:?}");
        }
        ensure!(
            guest.probe("probed")?.location == "virtio_rng:virtrng_probe+0x0",
            "{:?}",
            guest.probe("probed")?
        );
        wait_for_note(&guest, "missing", "BAD_PROBE_ADDR")?;
        ensure!(guest.probe("missing")?.state() == ProbeState::HeldBack, "{:?}", guest.probe("missing")?);
        let listed = guest.tracefs("kprobe_events")?;
        ensure!(listed.contains(":kprobes/returned") && !listed.contains("r:kprobes/returned"), "{listed}");
        let asked = reconcile(&guest, false)?;
        let returned = asked.iter().find(|probe| probe.name == "kprobes/returned").context("it is gone")?;
        ensure!(returned.state() == ProbeState::Armed, "round {round}: {returned:?}");
        guest.shell("rmmod virtio_rng")?;
        let took = wait_for_note(&guest, "probed", "MODULE_ABSENT")?;
        fixture.note(format_args!("taken out {took:.1?} after the module had gone"));
        is_out(&guest)?;
    }
    guest.shell(&format!("insmod {file}"))?;
    wait_for_note(&guest, "returned", "Armed")?;
    // It is ours, and goes.
    guest.delete("returned")?;
    let listed = guest.tracefs("kprobe_events")?;
    ensure!(!listed.contains("kprobes/returned") && !listed.contains("kprobes/missing"), "{listed}");
    Ok(())
}

/// How often the daemon has looked since it was started.
fn looks(guest: &DaemonGuest) -> Result<usize> {
    Ok(guest.whole_log()?.matches("looked at the probes").count())
}

fn our_own_writes_cause_no_look(fixture: &Fixture) -> Result<()> {
    let guest = fixture.new_daemon(&config())?;
    guest.add("p:calls __x64_sys_getppid")?;
    for round in 0..5 {
        guest.add(&format!("p:goes{round} __x64_sys_getpgid"))?;
        guest.wait_for(guest.client.set_filter("calls", &format!("common_pid > {round}")))??;
        // The last one of these makes another instance, and the files of that one are followed.
        guest.delete(&format!("goes{round}"))?;
    }
    guest.wait_for(guest.client.set_enabled("calls", false))??;
    guest.wait_for(guest.client.set_enabled("calls", true))??;
    // A write that changes nothing is one all the same: it is what ends the wait.
    let instance = guest.instance()?;
    guest.shell(&format!("echo 1 > {instance}/tracing_on"))?;
    guest.until("a write", || Ok(looks(&guest)? > 0))?;
    ensure!(looks(&guest)? == 1, "{}", guest.log());
    // Reading is none.
    guest.shell(&format!("cat {TRACEFS}/kprobe_events {instance}/tracing_on {instance}/trace_clock"))?;
    guest.shell(&format!("echo 1 > {instance}/tracing_on"))?;
    guest.until("a write", || Ok(looks(&guest)? > 1))?;
    ensure!(looks(&guest)? == 2, "{}", guest.log());
    // A program that writes without a pause causes few looks.
    let writes = 400;
    let begun = Instant::now();
    guest.shell(&format!("for i in $(seq {writes}); do echo 1 > {instance}/tracing_on; done"))?;
    guest.until("a write", || Ok(looks(&guest)? > 2))?;
    let (more, most) = (looks(&guest)? - 2, 1 + begun.elapsed().as_millis() / 100);
    ensure!(u128::try_from(more)? <= most, "{more} looks, and no more than {most} are due\n{}", guest.log());
    records(&guest)
}

fn reconcile(guest: &DaemonGuest, force: bool) -> Result<Vec<ReconciledProbe>> {
    Ok(guest.wait_for(guest.client.reconcile_probes(force))??)
}

/// With an interval of 0 the daemon never looks by itself, and does when it is asked.
fn a_client_asks_for_a_look(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:calls __x64_sys_getppid")?;
    guest.add("p:other __x64_sys_getpgid")?;
    let outcomes = |force| -> Result<Vec<(String, String, ReconcileOutcome, ProbeState)>> {
        let probes = reconcile(&guest, force)?.into_iter();
        let told =
            |one: ReconciledProbe| (one.name.clone(), one.found_reason.clone(), one.outcome(), one.state());
        Ok(probes.map(told).collect())
    };
    let expected = |reason: &str, outcome, state| {
        let well = (String::new(), ReconcileOutcome::AsWanted, ProbeState::Armed);
        let of = |name: &str, (reason, outcome, state)| (name.to_owned(), reason, outcome, state);
        vec![of("kprobes/calls", (reason.to_owned(), outcome, state)), of("kprobes/other", well)]
    };
    ensure!(outcomes(false)? == expected("", ReconcileOutcome::AsWanted, ProbeState::Armed));
    let event = format!("{}/events/kprobes/calls", guest.instance()?);
    let harm = format!("echo 0 > {event}/enable");
    guest.shell(&harm)?;
    ensure!(outcomes(false)? == expected("SWITCHED_OFF", ReconcileOutcome::Repaired, ProbeState::Armed));
    records(&guest)?;
    // The next one has to wait, unless it is requested.
    guest.shell(&harm)?;
    let waits = expected("SWITCHED_OFF", ReconcileOutcome::NotDue, ProbeState::Drifted);
    ensure!(outcomes(false)? == waits, "{:?}", outcomes(false)?);
    let shown = guest.ctl_says("doctor --repair")?;
    ensure!(shown.code == 1 && shown.stdout.contains("not-due"), "{shown:?}");
    let shown = guest.ctl("doctor --repair --force")?;
    ensure!(shown.contains("repaired") && !shown.contains("not-due"), "{shown}");
    records(&guest)?;
    // What only others can do something about says so.
    guest.shell("echo 0 > /proc/sys/kernel/ftrace_enabled")?;
    let found = reconcile(&guest, true)?;
    let stuck = |one: &ReconciledProbe| {
        one.outcome() == ReconcileOutcome::NotRepaired
            && one.found_reason == "FTRACE_OFF"
            && !one.message.is_empty()
    };
    ensure!(found.len() == 2 && found.iter().all(stuck), "{found:?}");
    guest.shell("echo 1 > /proc/sys/kernel/ftrace_enabled")?;
    ensure!(outcomes(false)? == expected("", ReconcileOutcome::AsWanted, ProbeState::Armed));
    Ok(())
}
