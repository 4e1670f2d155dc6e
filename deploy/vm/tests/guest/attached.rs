//! Attached events: recorded beside probes, kept after the daemon was killed, and otherwise
//! unchanged.

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_client::api::{AttachedEvent, AttachedEventState};
use kprobed_vm::daemon;

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        every_event_that_passes_the_filter_arrives,
    }
    Daemon {
        attached_events_survive_the_death_of_the_daemon,
        what_can_not_be_attached_says_why,
    }
};

/// `getppid`, which nothing in the guest calls but the workload.
const GETPPID: &str = "id == 110";

const SYS_ENTER: &str = "raw_syscalls/sys_enter";

fn attach(guest: &DaemonGuest, name: &str, filter: &str) -> Result<AttachedEvent> {
    Ok(guest.wait_for(guest.client.attach_event(name, filter))??)
}

/// The reason of a refusal.
fn refusal(guest: &DaemonGuest, name: &str, filter: &str) -> Result<String> {
    match guest.wait_for(guest.client.attach_event(name, filter))? {
        Err(kprobed_client::Error::Rpc(error)) => Ok(error.reason),
        Err(error) => bail!("{name}: {error}"),
        Ok(event) => bail!("{} was attached", event.name),
    }
}

/// How often `getppid` was recorded while it was called 500 times.
fn recorded(guest: &DaemonGuest) -> Result<usize> {
    let recording = guest.record(|| guest.workload(&["getppid", "500"]).map(drop))?;
    ensure!(recording.losses.is_empty(), "{:?}", recording.losses);
    let events = recording.of(SYS_ENTER, "workload");
    Ok(events.filter(|event| event.field("id") == "110").count())
}

fn every_event_that_passes_the_filter_arrives(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let undecodable =
        || -> Result<u64> { Ok(guest.ledger()?.buffers.iter().map(|buffer| buffer.undecodable).sum()) };
    let before = undecodable()?;
    guest.add("p:beside __x64_sys_getppid")?;
    let attached = attach(&guest, SYS_ENTER, GETPPID)?;
    ensure!(attached.uid < 0 && attached.state() == AttachedEventState::Recording, "{attached:?}");
    ensure!(attached.schema.as_ref().is_some_and(|schema| schema.fields.len() == 2), "{attached:?}");
    let top_level = || guest.tracefs(&format!("events/{SYS_ENTER}/enable"));
    ensure!(top_level()?.trim() == "0", "other instances are not touched");

    ensure!(recorded(&guest)? == 500);
    let ledger = guest.ledger_of("kprobes/beside")?;
    ensure!(
        ledger.loss_is_shared && ledger.not_read == 0,
        "an attached event shares the buffers: {ledger:?}"
    );
    let ledger = guest.ledger()?;
    let attached =
        ledger.probes.iter().find(|probe| probe.probe == SYS_ENTER).context("not in the ledger")?;
    ensure!(attached.hits.is_none() && attached.read > 0, "its hits are not known: {attached:?}");

    let last = guest.wait_for(guest.client.detach_event(SYS_ENTER))??;
    ensure!(last.read >= 500 && last.undecodable == 0, "{last:?}");
    ensure!(recorded(&guest)? == 0);
    ensure!(undecodable()? == before, "something of it came after its source had gone");
    Ok(())
}

fn attached_events_survive_the_death_of_the_daemon(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    // Of another tool, and gone when the daemon comes back.
    guest.shell("echo p:theirs/one vfs_read >> /sys/kernel/tracing/kprobe_events")?;
    attach(&guest, "theirs/one", "")?;
    attach(&guest, SYS_ENTER, GETPPID)?;
    attach(&guest, "raw_syscalls/sys_exit", "")?;
    guest.wait_for(guest.client.detach_event("raw_syscalls/sys_exit"))??;
    let instance = guest.instance()?;
    guest.kill()?;
    guest.shell(&format!(
        "echo 0 > {instance}/events/theirs/enable && echo -:theirs/one >> {TRACEFS}/kprobe_events"
    ))?;
    guest.restart(daemon::DEFAULT_CONFIG)?;

    let all = guest.wait_for(guest.client.attached_events())??;
    let states: Vec<_> =
        all.iter().map(|event| (event.name.as_str(), event.state(), event.filter.as_str())).collect();
    let expected = [
        (SYS_ENTER, AttachedEventState::Recording, GETPPID),
        ("theirs/one", AttachedEventState::Waiting, ""),
    ];
    ensure!(states == expected, "{all:?}\n{}", guest.log());
    ensure!(all[1].state_reason.contains("no event"), "{all:?}");
    ensure!(recorded(&guest)? == 500);

    // It is tried again when it is there again.
    ensure!(refusal(&guest, "theirs/one", "")? == "NO_SUCH_EVENT");
    guest.shell("echo p:theirs/one vfs_read >> /sys/kernel/tracing/kprobe_events")?;
    ensure!(attach(&guest, "theirs/one", "")?.state() == AttachedEventState::Recording);
    guest.wait_for(guest.client.detach_event("theirs/one"))??;
    ensure!(guest.tracefs("kprobe_events")?.contains("theirs/one"), "its definition stays");
    Ok(())
}

fn what_can_not_be_attached_says_why(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:mine vfs_read")?;
    for (name, filter, reason) in [
        ("kprobes/mine", "", "OWN_PROBE"),
        ("no/event", "", "NO_SUCH_EVENT"),
        ("ftrace/print", "", "EVENT_HAS_NO_SWITCH"),
        ("../x", "", "BAD_ARGUMENT"),
        (SYS_ENTER, "nosuch == 1", "BAD_FILTER"),
        (SYS_ENTER, "id ==", "BAD_FILTER"),
    ] {
        let answer = refusal(&guest, name, filter)?;
        ensure!(answer == reason, "{name} {filter}: {answer}");
    }
    ensure!(guest.wait_for(guest.client.attached_events())??.is_empty(), "nothing of that stays");
    let left = guest.in_instance(&format!("events/{SYS_ENTER}/filter"))?;
    ensure!(left.trim() == "none", "{left}");
    attach(&guest, SYS_ENTER, GETPPID)?;
    ensure!(refusal(&guest, SYS_ENTER, "")? == "EVENT_ATTACHED");
    guest.wait_for(guest.client.detach_event(SYS_ENTER))??;
    Ok(())
}
