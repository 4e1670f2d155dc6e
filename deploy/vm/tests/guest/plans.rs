//! `--dry-run`: the printed steps against the system calls that the daemon makes for the same
//! request.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::{
    CreateProbeRequest, PlannedStep, ProbeState, ReconcileOutcome, ReconciledProbe, UpdateProbeRequest,
};

use crate::Test;
use crate::crash_acts::apply;
use crate::crash_follower::Follower;
use crate::daemon::{DaemonGuest, TRACEFS, creation, deletion};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        what_is_planned_is_done,
    }
};

/// A step as it is planned, and as it is seen: a system call and its file. Several lines can go
/// into one call.
fn planned(plan: &[PlannedStep]) -> Vec<String> {
    let call = |step: &PlannedStep| {
        let first = step.command.split(';').next().unwrap_or_default();
        match first.rsplit_once(['>', ' ']) {
            Some((call @ ("mkdir" | "rmdir"), path)) => format!("{call} {TRACEFS}/{path}"),
            Some((_, path)) => format!("write {TRACEFS}/{path}"),
            None => first.to_owned(),
        }
    };
    let mut calls: Vec<_> = plan.iter().map(call).collect();
    calls.dedup();
    calls
}

/// What the daemon does meanwhile.
fn seen(guest: &DaemonGuest, act: impl FnOnce() -> Result<()>) -> Result<Vec<String>> {
    let follower = Follower::begin(guest, "pid=$(pidof kprobed)", "kernel", 0)?;
    act()?;
    guest.machine.kill_process(&follower.name)?;
    let seen = follower.said(guest)?;
    let mut calls: Vec<_> =
        seen.lines().filter_map(|line| Some(line.strip_prefix("step ")?.to_owned())).collect();
    calls.dedup();
    Ok(calls)
}

/// How often each event is switched.
fn switches(calls: &[String]) -> BTreeMap<&str, usize> {
    let mut switches = BTreeMap::new();
    for call in calls.iter().filter(|call| call.contains("/instances/") && call.ends_with("/enable")) {
        *switches.entry(call.as_str()).or_default() += 1;
    }
    switches
}

/// All that was planned was done in that order, and no event was switched beside. The daemon does
/// more: it tries filters where nothing is recorded, keeps itself out of a new instance, and waits
/// for handlers to end by writing filters.
fn require_same(plan: &[PlannedStep], seen: &[String]) -> Result<()> {
    let planned = planned(plan);
    let mut rest = seen.iter();
    for step in &planned {
        ensure!(rest.any(|call| call == step), "{step} was not done there: {planned:#?}\n{seen:#?}");
    }
    ensure!(switches(&planned) == switches(seen), "{planned:#?}\n{seen:#?}");
    Ok(())
}

fn create(name: &str, filter: &str, enabled: bool) -> Change {
    let definition = format!("p:plans/{name} __x64_sys_getpgid number=+0x70(%di):u64");
    Change::Create(CreateProbeRequest { enabled, ..creation(&definition, filter) })
}

fn update(name: &str) -> UpdateProbeRequest {
    UpdateProbeRequest { name: format!("plans/{name}"), ..Default::default() }
}

fn delete(name: &str) -> Change {
    Change::Delete(deletion(&format!("plans/{name}")))
}

fn what_is_planned_is_done(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    changes(&guest)?;
    repairs(&guest)?;
    host_events(&guest)
}

fn changes(guest: &DaemonGuest) -> Result<()> {
    let before = [
        create("keep", "number == 3", true),
        create("off", "", false),
        create("changed", "", true),
        create("goes", "", true),
        create("also", "", true),
    ];
    apply(guest, before.into())?;
    // Changes of all kinds, during which the probes that record move to another instance twice;
    // then deletions while nothing else records.
    let again = "p:plans/changed __x64_sys_getpgid again=+0x70(%di):u32";
    let requests = [
        vec![
            create("new", "number == 4", true),
            Change::Update(UpdateProbeRequest { enabled: Some(true), ..update("off") }),
            Change::Update(UpdateProbeRequest { filter: Some("number == 5".to_owned()), ..update("keep") }),
            Change::Update(UpdateProbeRequest { definition: Some(again.to_owned()), ..update("changed") }),
            delete("goes"),
        ],
        vec![Change::Update(UpdateProbeRequest { enabled: Some(false), ..update("keep") }), delete("also")],
        ["keep", "off", "changed", "new"].map(delete).into(),
    ];
    for changes in requests {
        let planned = guest.wait_for(guest.client.plan_probes(changes.clone()))??;
        planned.outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
        ensure!(!planned.plan.is_empty());
        let seen = seen(guest, || apply(guest, changes))?;
        require_same(&planned.plan, &seen)?;
    }
    ensure!(guest.probes()?.is_empty());
    Ok(())
}

/// Another program has switched off one event, and removed another one.
fn repairs(guest: &DaemonGuest) -> Result<()> {
    apply(guest, vec![create("keep", "number == 3", true), create("goes", "number == 4", true)])?;
    ensure!(guest.wait_for(guest.client.plan_reconcile(true))??.plan.is_empty());
    let ours = format!("{}/events/plans", guest.instance()?);
    ensure!(guest.probes()?.iter().all(|probe| probe.state() == ProbeState::Armed));
    guest.shell(&format!(
        "echo 0 > {ours}/keep/enable; echo 0 > {ours}/goes/enable; echo '-:plans/goes' >> {TRACEFS}/dynamic_events"
    ))?;
    // The list of events was read before, and another program has written since: through the file
    // that takes events of all kinds.
    ensure!(guest.probes()?.iter().all(|probe| probe.state() != ProbeState::Armed), "{:?}", guest.probes()?);
    let planned = guest.wait_for(guest.client.plan_reconcile(true))??;
    let outcomes: Vec<_> = planned.probes.iter().map(ReconciledProbe::outcome).collect();
    ensure!(outcomes == [ReconcileOutcome::WouldRepair; 2] && planned.plan.len() == 4, "{planned:?}");
    ensure!(!guest.tracefs("kprobe_events")?.contains("plans/goes"));
    let done = || Ok(guest.wait_for(guest.client.reconcile_probes(true))?.map(drop)?);
    require_same(&planned.plan, &seen(guest, done)?)?;
    ensure!(guest.probes()?.iter().all(|probe| probe.state() == ProbeState::Armed));
    for name in ["keep", "goes"] {
        guest.delete(&format!("plans/{name}"))?;
    }
    Ok(())
}

fn host_events(guest: &DaemonGuest) -> Result<()> {
    let (event, filter) = ("raw_syscalls/sys_enter", "id == 110");
    let record = |filter: &str| Change::Create(creation(event, filter));
    let planned = guest.wait_for(guest.client.plan_probes(vec![record(filter)]))??;
    planned.outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
    let plan = planned.plan;
    let instance = guest.instance()?;
    let name = instance.rsplit('/').next().context("an instance has a name")?;
    let commands: Vec<_> = plan.iter().map(|step| step.command.as_str()).collect();
    let expected = [
        format!("echo '{filter}' > instances/{name}/events/{event}/filter"),
        format!("echo 1 > instances/{name}/events/{event}/enable"),
    ];
    ensure!(commands == expected && plan.iter().all(|step| step.event == event), "{plan:?}");
    ensure!(guest.probes()?.is_empty());
    ensure!(guest.in_instance(&format!("events/{event}/filter"))?.trim() == "none");
    let bad = guest.wait_for(guest.client.plan_probes(vec![record("nosuch == 1")]))??.outcomes.remove(0);
    ensure!(bad.is_err_and(|error| error.rpc().is_some_and(|error| error.reason == "BAD_FILTER")));
    let recorded = seen(guest, || apply(guest, vec![record(filter)]))?;
    require_same(&plan, &recorded)?;
    let delete = Change::Delete(deletion(event));
    let plan = guest.wait_for(guest.client.plan_probes(vec![delete.clone()]))??.plan;
    ensure!(plan.len() == 2, "{plan:?}");
    let left = seen(guest, || apply(guest, vec![delete]))?;
    require_same(&plan, &left)
}
