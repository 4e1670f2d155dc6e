//! Probes of events of the host: recorded like other probes, kept after the daemon was killed, and otherwise unchanged.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::RpcError;
use kprobed_client::api::{ProbeKind, ProbeState};
use kprobed_vm::daemon;

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS, config_looking_every, creation, refused};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        what_can_not_be_recorded_says_why,
        an_event_has_the_verbs_of_a_probe,
        every_event_that_passes_the_filter_arrives,
    }
    Seldom {
        events_survive_the_death_of_the_daemon,
        an_event_that_comes_again_is_recorded_again,
    }
};

/// `getppid`, which nothing in the guest calls but the workload.
const GETPPID: &str = "id == 110";

const SYS_ENTER: &str = "raw_syscalls/sys_enter";

fn refusal(guest: &DaemonGuest, definition: &str, filter: &str) -> Result<RpcError> {
    refused(guest.wait_for(guest.client.create_probe(creation(definition, filter)))?)
        .with_context(|| definition.to_owned())
}

/// How often a system call was recorded while `getppid` was called 500 times.
fn recorded(guest: &DaemonGuest, id: &str) -> Result<usize> {
    let recording = guest.record(|| guest.workload(&["getppid", "500"]).map(drop))?;
    ensure!(recording.losses.is_empty(), "{:?}", recording.losses);
    let events = recording.of(SYS_ENTER, "workload");
    Ok(events.filter(|event| event.field("id") == id).count())
}

fn every_event_that_passes_the_filter_arrives(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let undecodable =
        || -> Result<u64> { Ok(guest.ledger()?.buffers.iter().map(|buffer| buffer.undecodable).sum()) };
    let before = undecodable()?;
    guest.add("p:beside __x64_sys_getppid")?;
    // Another program's filter at the top level, which is not the daemon's to try one in.
    guest.shell(&format!("echo 'id == 7' > {TRACEFS}/events/{SYS_ENTER}/filter"))?;
    let probe = guest.record_filtered("raw_syscalls:sys_enter", GETPPID)?;
    ensure!(probe.name == SYS_ENTER && probe.kind() == ProbeKind::Event, "{probe:?}");
    ensure!(probe.state() == ProbeState::Armed && probe.kernel_definition.is_empty(), "{probe:?}");
    ensure!(probe.schema.as_ref().is_some_and(|schema| schema.fields.len() == 2), "{probe:?}");
    ensure!(probe.hit_cost.is_none(), "its hits are not counted: {probe:?}");
    let top_level = |file: &str| guest.tracefs(&format!("events/{SYS_ENTER}/{file}"));
    ensure!(top_level("enable")?.trim() == "0", "other instances are not touched");
    ensure!(top_level("filter")?.trim() == "id == 7", "nor are their filters");
    ensure!(!guest.shell(&format!("ls {TRACEFS}/instances"))?.contains("temporary"), "an instance is left");

    ensure!(recorded(&guest, "110")? == 500);
    let ledger = guest.ledger_of("kprobes/beside")?;
    ensure!(ledger.loss_is_shared && ledger.not_read == 0, "an event shares the buffers: {ledger:?}");
    let event = guest.ledger_of(SYS_ENTER)?;
    ensure!(event.hits.is_none() && event.read > 0, "its hits are not known: {event:?}");
    ensure!(event.read >= 500 && event.undecodable == 0, "{event:?}");
    ensure!(guest.ctl("hits")?.contains("kprobes/beside"));

    // A filter is changed while it records; one that is refused leaves the last one in force.
    let changed = guest.wait_for(guest.client.set_filter(SYS_ENTER, "nosuch == 1"))?;
    ensure!(refused(changed)?.reason == "BAD_FILTER");
    ensure!(recorded(&guest, "110")? == 500 && guest.probe(SYS_ENTER)?.state() == ProbeState::Armed);
    guest.wait_for(guest.client.set_filter(SYS_ENTER, "id == 111"))??;
    ensure!(recorded(&guest, "110")? == 0);
    guest.wait_for(guest.client.set_filter(SYS_ENTER, GETPPID))??;
    ensure!(recorded(&guest, "110")? == 500);
    guest.wait_for(guest.client.set_enabled(SYS_ENTER, false))??;
    ensure!(recorded(&guest, "110")? == 0 && guest.probe(SYS_ENTER)?.state() == ProbeState::Disabled);
    guest.wait_for(guest.client.set_enabled(SYS_ENTER, true))??;
    ensure!(recorded(&guest, "110")? == 500);

    let instance = guest.instance()?;
    ensure!(guest.delete(SYS_ENTER)?.is_none(), "the kernel counts no hits of it");
    ensure!(guest.instance()? == instance, "it stays in the kernel, so that no other instance is needed");
    let left = guest.in_instance(&format!("events/{SYS_ENTER}/filter"))?;
    ensure!(left.trim() == "none", "{left}");
    ensure!(recorded(&guest, "110")? == 0);
    ensure!(undecodable()? == before, "something of it came after its source had gone");
    guest.shell(&format!("echo 0 > {TRACEFS}/events/{SYS_ENTER}/filter"))?;
    Ok(())
}

/// Another tool removes its event, and defines it anew with other fields.
fn an_event_that_comes_again_is_recorded_again(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config_looking_every(500))?;
    let define = |argument: &str| {
        guest.shell(&format!("echo 'p:theirs/one __x64_sys_getppid {argument}' >> {TRACEFS}/kprobe_events"))
    };
    define("a=%di")?;
    guest.record_filtered("theirs/one", "common_pid > 1")?;
    let fields = || -> Result<Vec<String>> {
        let schema = guest.probe("theirs/one")?.schema.context("no schema")?;
        Ok(schema.fields.into_iter().map(|field| field.name).collect())
    };
    ensure!(fields()?.contains(&"a".to_owned()), "{:?}", fields()?);
    // While it is recorded, the kernel does not let its owner remove it.
    let removal = format!("echo '-:theirs/one' >> {TRACEFS}/kprobe_events");
    ensure!(guest.shell(&format!("{removal} 2>/dev/null && echo removed || true"))?.is_empty());
    for round in 0..7 {
        let instance = guest.instance()?;
        guest.shell(&format!("echo 0 > {instance}/events/theirs/one/enable && {removal}"))?;
        guest.until("it waits", || Ok(guest.probe("theirs/one")?.state() == ProbeState::HeldBack))?;
        let waiting = guest.probe("theirs/one")?;
        ensure!(waiting.state_reason == "EVENT_ABSENT", "{waiting:?}");
        let argument = if round % 2 == 0 { "b" } else { "a" };
        define(&format!("{argument}=%di"))?;
        // More often than the daemon repairs what others change: this is no quarrel.
        guest
            .until("it is recorded again", || Ok(guest.probe("theirs/one")?.state() == ProbeState::Armed))?;
        ensure!(fields()?.contains(&argument.to_owned()), "{:?}", fields()?);
    }
    ensure!(guest.in_instance("events/theirs/one/filter")?.trim() == "common_pid > 1");
    let recording = guest.record(|| guest.workload(&["getppid", "20"]).map(drop))?;
    ensure!(recording.of("theirs/one", "workload").count() == 20);
    guest.delete("theirs/one")?;
    ensure!(guest.tracefs("kprobe_events")?.contains("theirs/one"), "its definition stays");
    guest.shell(&removal)?;
    Ok(())
}

fn events_survive_the_death_of_the_daemon(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    // Of another tool, and gone when the daemon comes back.
    guest.shell("echo p:theirs/one vfs_read >> /sys/kernel/tracing/kprobe_events")?;
    guest.record_filtered("theirs/one", "")?;
    guest.record_filtered(SYS_ENTER, GETPPID)?;
    guest.record_filtered("raw_syscalls/sys_exit", "")?;
    guest.delete("raw_syscalls/sys_exit")?;
    let instance = guest.instance()?;
    guest.kill()?;
    guest.shell(&format!(
        "echo 0 > {instance}/events/theirs/enable && echo -:theirs/one >> {TRACEFS}/kprobe_events"
    ))?;
    guest.restart(daemon::DEFAULT_CONFIG)?;

    let all = guest.probes()?;
    let states: Vec<_> =
        all.iter().map(|probe| (probe.name.as_str(), probe.state(), probe.filter.as_str())).collect();
    let expected = [(SYS_ENTER, ProbeState::Armed, GETPPID), ("theirs/one", ProbeState::HeldBack, "")];
    ensure!(states == expected, "{all:?}\n{}", guest.log());
    ensure!(all[1].state_message.contains("does not have its event"), "{all:?}");
    ensure!(recorded(&guest, "110")? == 500);

    // It is tried again when it is there again.
    let absent = guest.wait_for(guest.client.set_enabled("theirs/one", true))??;
    ensure!(absent.state() == ProbeState::HeldBack, "{absent:?}");
    guest.shell("echo p:theirs/one vfs_read >> /sys/kernel/tracing/kprobe_events")?;
    let came = guest.probe("theirs/one")?;
    ensure!(came.state() == ProbeState::Drifted && came.state_reason == "EVENT_IS_NEW", "{came:?}");
    let armed = guest.wait_for(guest.client.set_enabled("theirs/one", true))??;
    ensure!(armed.state() == ProbeState::Armed, "{armed:?}");
    guest.delete("theirs/one")?;
    ensure!(guest.tracefs("kprobe_events")?.contains("theirs/one"), "its definition stays");

    // A daemon that stops leaves what it has not made.
    guest.shell("echo p:theirs/two vfs_write >> /sys/kernel/tracing/kprobe_events")?;
    guest.record_filtered("theirs/two", "")?;
    guest.stop()?;
    ensure!(guest.tracefs("kprobe_events")?.contains("theirs/two"), "its definition stays");
    guest.restart(daemon::DEFAULT_CONFIG)?;
    ensure!(guest.probe("theirs/two")?.state() == ProbeState::Armed && recorded(&guest, "110")? == 500);
    guest.delete("theirs/two")?;
    for event in ["one", "two"] {
        guest.shell(&format!("echo -:theirs/{event} >> {TRACEFS}/kprobe_events"))?;
    }
    Ok(())
}

fn what_can_not_be_recorded_says_why(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:mine vfs_read")?;
    for (definition, filter, reason) in [
        ("kprobes/mine", "", "PROBE_EXISTS"),
        ("no/event", "", "NO_SUCH_EVENT"),
        ("ftrace/print", "", "EVENT_HAS_NO_SWITCH"),
        ("../x", "", "BAD_GROUP_NAME"),
        ("sched/sched_switch prev_comm", "", "UNEXPECTED_TOKEN"),
        (SYS_ENTER, "nosuch == 1", "BAD_FILTER"),
        (SYS_ENTER, "id ==", "BAD_FILTER"),
    ] {
        let answer = refusal(&guest, definition, filter)?;
        ensure!(answer.reason == reason, "{definition} {filter}: {answer:?}");
        if filter.is_empty() {
            let checked = guest.wait_for(guest.client.check_probe(definition))??;
            ensure!(checked.rule == reason, "{checked:?}");
        }
    }
    let near = refusal(&guest, "raw_syscall:sys_enter", "")?;
    ensure!(
        near.diagnostics
            .as_ref()
            .is_some_and(|found| found.diagnostics[0].hint == "did you mean `raw_syscalls/sys_enter`?"),
        "{near:?}"
    );
    let checked = guest.wait_for(guest.client.check_probe(SYS_ENTER))??;
    let fields = checked.schema.as_ref().map(|schema| schema.fields.len());
    ensure!(checked.rule.is_empty() && checked.name == SYS_ENTER && fields == Some(2), "{checked:?}");
    ensure!(guest.probes()?.len() == 1, "nothing of that stays");
    let left = guest.in_instance(&format!("events/{SYS_ENTER}/filter"))?;
    ensure!(left.trim() == "none", "{left}");
    guest.record_filtered(SYS_ENTER, GETPPID)?;
    let again = refusal(&guest, "raw_syscalls:sys_enter", "")?;
    ensure!(again.reason == "PROBE_EXISTS" && again.message.contains("one filter"), "{again:?}");
    guest.delete(SYS_ENTER)?;
    Ok(())
}

/// Labels, a lease, a file that declares it, and a trace.
fn an_event_has_the_verbs_of_a_probe(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.ctl("add syscalls/sys_enter_getppid --label of=host --lease 1h")?;
    guest.ctl_shows("list -l of=host", &["event", "armed", "59m"])?;
    ensure!(
        guest
            .ctl("get syscalls/sys_enter_getppid -o yaml")?
            .contains("definition: syscalls/sys_enter_getppid")
    );
    let hits = guest.ctl_says("hits")?;
    ensure!(hits.all().contains("does not count hits of events"), "{hits:?}");
    guest.ctl("delete syscalls/sys_enter_getppid")?;
    let traced = guest.shell("kprobectl trace syscalls/sys_enter_getppid -n 3 -- workload getppid 10")?;
    ensure!(traced.matches("syscalls/sys_enter_getppid").count() >= 3, "{traced}");
    ensure!(guest.probes()?.is_empty(), "{:?}", guest.probes()?);
    Ok(())
}
