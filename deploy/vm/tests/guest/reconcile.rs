//! Reconciliation: what other programs do to the daemon's probes is repaired. A probe that a
//! program keeps changing is left alone in the end.

use anyhow::{Result, ensure};
use kprobed_client::api::{Probe, ProbeState};
use kprobed_vm::machine::{Command, Signal};

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS, config_looking_every};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        what_others_do_is_repaired,
    }
    Seldom {
        a_neighbour_who_insists_is_left_alone,
    }
};

/// Waits until a probe is as it should be.
fn wait_until(guest: &DaemonGuest, name: &str, is: impl Fn(&Probe) -> bool) -> Result<Probe> {
    guest.until(name, || Ok(is(&guest.probe(name)?)))?;
    guest.probe(name)
}

fn what_others_do_is_repaired(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config_looking_every(100))?;
    let filtered = guest.add("p:filtered __x64_sys_getppid pad=%di:u64")?;
    guest.wait_for(guest.client.set_filter(&filtered.name, "common_pid > 1"))??;
    guest.add("p:off __x64_sys_getppid")?;
    guest.wait_for(guest.client.set_enabled("off", false))??;
    let instance = guest.instance()?;
    let ours = format!("{instance}/events/kprobes");
    let uid = filtered.uid;
    // The daemon may switch it on again in between, and then the kernel refuses to delete it.
    let delete = format!(
        "echo 0 > {ours}/filtered/enable; until echo '-:kprobes/filtered' >> {TRACEFS}/kprobe_events; do echo 0 > {ours}/filtered/enable; done"
    );
    let delete_all = format!(
        "echo 0 > {instance}/events/enable; until echo > {TRACEFS}/kprobe_events; do echo 0 > {instance}/events/enable; done"
    );
    for harm in [
        format!("echo 0 > {ours}/filtered/enable"),
        format!("echo 0 > {ours}/filtered/filter"),
        format!("echo 'common_pid == 1' > {ours}/filtered/filter"),
        format!("echo 1 > {ours}/off/enable"),
        format!("echo 0 > {instance}/tracing_on"),
        delete.clone(),
        delete_all,
    ] {
        // As often as it takes: each kind of harm is forgiven.
        for name in ["filtered", "off"] {
            let enabled = name == "filtered";
            guest.wait_for(guest.client.set_enabled(name, enabled))??;
        }
        guest.shell(&harm)?;
        let probe = wait_until(&guest, "filtered", |probe| {
            probe.state() == ProbeState::Armed
                && guest
                    .in_instance("events/kprobes/filtered/filter")
                    .is_ok_and(|text| text.trim() == "common_pid > 1")
        })?;
        ensure!(probe.uid == uid, "{harm}: {probe:?}");
        wait_until(&guest, "off", |probe| probe.state() == ProbeState::Disabled)?;
        let recording = guest.record(|| guest.workload(&["getppid", "7"]).map(drop))?;
        ensure!(recording.of("kprobes/filtered", "workload").count() == 7, "{harm}: {recording:?}");
        ensure!(recording.of("kprobes/off", "workload").count() == 0, "{harm}: {recording:?}");
    }

    // An event that another program defines under the daemon's name is foreign.
    guest.shell(&format!("{delete}; echo 'p:kprobes/filtered vfs_statx' >> {TRACEFS}/kprobe_events"))?;
    let probe = wait_until(&guest, "filtered", |probe| probe.state() == ProbeState::Failed)?;
    ensure!(probe.state_message.contains("another program's"), "{probe:?}");
    guest.add("p:more __x64_sys_getppid")?;
    guest.shell(&format!("echo 0 > {ours}/more/enable"))?;
    // A look has gone by.
    wait_until(&guest, "more", |probe| probe.state() == ProbeState::Armed)?;
    ensure!(guest.tracefs("kprobe_events")?.contains("p:kprobes/filtered vfs_statx\n"), "it was touched");
    guest.shell(&format!("echo '-:kprobes/filtered' >> {TRACEFS}/kprobe_events"))?;
    wait_until(&guest, "filtered", |probe| probe.state() == ProbeState::Armed)?;
    Ok(())
}

fn a_neighbour_who_insists_is_left_alone(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config_looking_every(100))?;
    guest.add("p:fought __x64_sys_getppid")?;
    guest.add("p:other __x64_sys_getpgid")?;
    let switch = format!("{}/events/kprobes/fought/enable", guest.instance()?);
    let insist = format!("while :; do echo 0 > {switch}; busybox usleep 20000; done");
    guest.machine.spawn("neighbour", &Command::shell(&insist))?;
    let left = wait_until(&guest, "fought", |probe| {
        probe.state() == ProbeState::Failed && probe.state_message.contains("repaired 5 times")
    })?;
    ensure!(!left.state_hint.is_empty(), "{left:?}");
    ensure!(wait_until(&guest, "other", |_| true)?.state() == ProbeState::Armed);
    guest.machine.signal("neighbour", Signal::SIGKILL)?;
    // The daemon does not repair it until it is asked to.
    ensure!(wait_until(&guest, "fought", |_| true)?.state() == ProbeState::Failed);
    let enabled = guest.wait_for(guest.client.set_enabled("fought", true))??;
    ensure!(enabled.state() == ProbeState::Armed && enabled.state_reason.is_empty(), "{enabled:?}");
    // And then it is repaired again.
    guest.shell(&format!("echo 0 > {switch}"))?;
    wait_until(&guest, "fought", |probe| probe.state() == ProbeState::Armed)?;
    Ok(())
}
