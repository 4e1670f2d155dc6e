//! Atomic changes: a definition that is replaced, and batches that are made as a whole or not at
//! all.

use anyhow::{Result, ensure};
use kprobed_client::Error;
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::{CreateProbeRequest, Probe, ProbeState, UpdateProbeRequest};

use crate::Test;
use crate::daemon::{self, DaemonGuest, TRACEFS, creation, deletion, filter_in_kernel};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        a_definition_that_is_refused_changes_nothing,
        a_batch_is_made_whole_or_not_at_all,
        a_definition_is_replaced,
    }
};

/// What getpgid() is called with.
const NUMBER: &str = "number=+0x70(%di):u64";

fn define(name: &str, definition: &str) -> UpdateProbeRequest {
    UpdateProbeRequest { definition: Some(definition.to_owned()), ..daemon::update(name) }
}

fn create(definition: &str, filter: &str) -> Change {
    Change::Create(creation(definition, filter))
}

fn switch(name: &str, enabled: bool) -> Change {
    Change::Update(daemon::switch(name, enabled))
}

fn delete(name: &str) -> Change {
    Change::Delete(deletion(name))
}

/// The reason of a refusal; empty for what is done.
fn reason<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Ok(_) => String::new(),
        Err(Error::Rpc(error)) => error.reason.clone(),
        Err(error) => error.to_string(),
    }
}

/// Makes calls that the probes of these tests see.
fn call(guest: &DaemonGuest, times: &str) -> Result<()> {
    guest.workload(&["number", times]).map(drop)
}

fn a_definition_is_replaced(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let other = guest.add(&format!("p:other __x64_sys_getpgid {NUMBER}"))?;
    let request = CreateProbeRequest {
        labels: [("team".to_owned(), "storage".to_owned())].into(),
        owner: "storage".to_owned(),
        ..creation(&format!("p:old __x64_sys_getpgid {NUMBER}"), "common_pid > 1")
    };
    let before = guest.wait_for(guest.client.create_probe(request))??;
    let mut after = None;
    let recording = guest.record(|| {
        call(&guest, "5")?;
        // With what distinguishes it: the same number, under another name and of another
        // size.
        let request = define("old", "p:old __x64_sys_getpgid again=+0x70(%di):u32");
        after = Some(guest.wait_for(guest.client.update_probe(request))??);
        call(&guest, "3")
    })?;
    let Some(after) = after else { anyhow::bail!("it was not replaced") };
    ensure!(after.name == before.name && after.uid > before.uid, "{after:?}");
    ensure!(after.state() == ProbeState::Armed && after.filter == before.filter, "{after:?}");
    ensure!(after.labels == before.labels && after.owner == "storage", "{after:?}");
    let of_old: Vec<_> = recording.of("kprobes/old", "workload").collect();
    let (first, second) = of_old.split_at(5.min(of_old.len()));
    ensure!(first.iter().all(|event| event.field("number") != "(absent)"), "{recording:?}");
    ensure!(
        second.len() == 3 && second.iter().all(|event| event.field("again") != "(absent)"),
        "{recording:?}"
    );
    // It was deleted while the other one recorded: nothing of that is lost.
    ensure!(
        recording.of("kprobes/other", "workload").count() == 8 && recording.losses.is_empty(),
        "{recording:?}"
    );
    let ledger = guest.ledger_of("kprobes/old")?;
    ensure!((ledger.probe_uid, ledger.hits, ledger.read) == (after.uid, Some(3), 3), "{ledger:?}");
    ensure!(guest.ledger_of("kprobes/other")?.probe_uid == other.uid);
    let list = guest.tracefs("kprobe_events")?;
    ensure!(list.lines().filter(|line| line.contains("kprobes/old ")).count() == 1, "{list}");

    // The same definition does not change the kernel's event.
    let again = guest.wait_for(guest.client.update_probe(define("old", &after.definition)))??;
    ensure!(again.uid == after.uid, "{again:?}");
    // Only planned, nothing is done.
    let plan =
        guest.wait_for(guest.client.plan_probes(vec![Change::Update(define("old", "p:old vfs_read"))]))??;
    ensure!(matches!(plan.outcomes.as_slice(), [Ok(_)]), "{plan:?}");
    let of_old = plan.plan.iter().filter(|step| step.event == "kprobes/old");
    let steps: Vec<_> = of_old.map(|step| step.command.replace("-next", "")).collect();
    let expected = [
        "echo 0 > instances/kprobed/events/kprobes/old/enable",
        "echo '-:kprobes/old' >> kprobe_events",
        "echo 'p:kprobes/old vfs_read' >> kprobe_events",
        "echo 'common_pid > 1' > instances/kprobed/events/kprobes/old/filter",
        "echo 1 > instances/kprobed/events/kprobes/old/enable",
    ];
    ensure!(steps == expected, "{plan:?}");
    ensure!(guest.tracefs("kprobe_events")? == list);
    Ok(())
}

fn a_definition_that_is_refused_changes_nothing(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let before = guest.record_filtered(&format!("p:old __x64_sys_getpgid {NUMBER}"), "number == 7")?;
    let list = guest.tracefs("kprobe_events")?;
    for (definition, expected) in [
        ("p:new __x64_sys_getpgid", "BAD_ARGUMENT"),
        ("p:mine/old __x64_sys_getpgid", "BAD_ARGUMENT"),
        ("p:old __x64_sys_getpgid+1", "BAD_INSN_BNDRY"),
        ("p:old nosuchfunction", "BAD_PROBE_ADDR"),
        // The kernel takes it, and then not the filter: what was deleted for it comes back.
        ("p:old __x64_sys_getpgid another=%di:u64", "BAD_FILTER"),
    ] {
        let refused = reason(guest.wait_for(guest.client.update_probe(define("old", definition)))?);
        ensure!(refused == expected, "{definition}: {refused}");
        let probe = guest.probe("old")?;
        ensure!(probe.state() == ProbeState::Armed && probe.uid == before.uid, "{definition}: {probe:?}");
        ensure!(
            probe.etag == before.etag && probe.definition == before.definition,
            "{definition}: {probe:?}"
        );
        ensure!(guest.tracefs("kprobe_events")? == list, "{definition}");
        let filter = guest.in_instance("events/kprobes/old/filter")?;
        ensure!(filter.trim() == filter_in_kernel("number == 7", fixture), "{definition}: {filter}");
    }
    // It is in use by another program, which keeps it from being deleted.
    let theirs = format!("{TRACEFS}/instances/theirs");
    guest.shell(&format!("mkdir {theirs}; echo 1 > {theirs}/events/kprobes/old/enable"))?;
    let refused =
        reason(guest.wait_for(guest.client.update_probe(define("old", "p:old __x64_sys_getpgid")))?);
    ensure!(refused == "IN_USE", "{refused}");
    guest.shell(&format!("echo 0 > {theirs}/events/enable; rmdir {theirs}"))?;
    let probe = guest.probe("old")?;
    ensure!(probe.state() == ProbeState::Armed && probe.uid == before.uid, "{probe:?}");
    Ok(())
}

fn a_batch_is_made_whole_or_not_at_all(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add(&format!("p:changed __x64_sys_getpgid {NUMBER}"))?;
    guest.add(&format!("p:replaced __x64_sys_getpgid {NUMBER}"))?;
    guest.add("p:deleted __x64_sys_getpgid")?;
    let picture = || -> Result<Vec<Probe>> {
        let mut probes = guest.probes()?;
        // An event that was defined again is the same probe, and has another schema.
        for probe in &mut probes {
            (probe.schema, probe.state_time) = (None, None);
        }
        Ok(probes)
    };
    let events = || -> Result<Vec<String>> {
        let mut lines: Vec<_> = guest.tracefs("kprobe_events")?.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        Ok(lines)
    };
    let batch = |last: Change| {
        vec![
            create("p:one __x64_sys_getpgid", ""),
            Change::Update(UpdateProbeRequest {
                filter: Some("number == 1".to_owned()),
                set_labels: [("team".to_owned(), "net".to_owned())].into(),
                ..daemon::switch("changed", false)
            }),
            Change::Update(define("replaced", "p:replaced __x64_sys_getpgid again=+0x70(%di):u32")),
            delete("deleted"),
            last,
        ]
    };
    let apply = |changes: Vec<Change>| -> Result<Vec<String>> {
        let outcomes = guest.wait_for(guest.client.apply_all_or_nothing(changes))??;
        Ok(outcomes.into_iter().map(reason).collect())
    };
    let theirs = format!("{TRACEFS}/instances/theirs");
    guest.add("p:busy __x64_sys_getpgid")?;
    guest.shell(&format!("mkdir {theirs}; echo 1 > {theirs}/events/kprobes/busy/enable"))?;
    let (before, listed) = (picture()?, events()?);
    for (last, expected) in [
        // Refused before anything is done; by the kernel, when all others are made; and at the very
        // end.
        (create("p:bad __x64_sys_getpgid+1", ""), "BAD_INSN_BNDRY"),
        (create("p:bad __x64_sys_getpgid", "nobody == 3"), "BAD_FILTER"),
        (delete("busy"), "IN_USE"),
    ] {
        let told = apply(batch(last))?;
        let mut all = vec!["BATCH_FAILED"; 4];
        all.push(expected);
        ensure!(told == all, "{told:?}");
        ensure!(picture()? == before, "{expected}: {:?}\n{before:?}", picture()?);
        ensure!(events()? == listed, "{expected}: {:?}", events()?);
        // All of it records again.
        let recording = guest.record(|| call(&guest, "4"))?;
        for probe in ["changed", "replaced", "deleted", "busy"] {
            let count = recording.of(&format!("kprobes/{probe}"), "workload").count();
            ensure!(count == 4, "{expected}: {probe}: {count}\n{recording:?}");
        }
    }
    guest.shell(&format!("echo 0 > {theirs}/events/enable; rmdir {theirs}"))?;
    let told = apply(batch(switch("busy", false)))?;
    ensure!(told.iter().all(String::is_empty), "{told:?}");
    let after = picture()?;
    let names: Vec<_> = after.iter().map(|probe| (probe.name.as_str(), probe.enabled)).collect();
    let expected = [
        ("kprobes/busy", false),
        ("kprobes/changed", false),
        ("kprobes/one", true),
        ("kprobes/replaced", true),
    ];
    ensure!(names == expected, "{names:?}");
    Ok(())
}
