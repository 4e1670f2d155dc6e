//! Many changes in one request: each has its own outcome, and all together cost only what the
//! kernel needs.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome;
use kprobed_client::api::{CreateProbeRequest, DeleteProbeRequest, Probe, ProbeState, UpdateProbeRequest};
use kprobed_client::{Client, Error};
use kprobed_vm::{daemon, progress};

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS, creation, deletion, filter_in_kernel, switch};
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        each_has_its_own_outcome,
        hits_of_others_are_told_apart,
    }
    Seldom {
        many_live_and_come_back,
    }
};

/// The reason of a refusal, or the state of the probe, or `deleted`.
fn told(outcome: &Result<Outcome, Error>) -> String {
    match outcome {
        Ok(Outcome::Probe(probe)) => probe.state().as_str_name().to_owned(),
        Ok(Outcome::Deleted(_)) => "deleted".to_owned(),
        Ok(Outcome::Failed(_)) => "failed".to_owned(),
        Err(Error::Rpc(error)) => error.reason.clone(),
        Err(error) => error.to_string(),
    }
}

fn each_has_its_own_outcome(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:old __x64_sys_getpgid")?;
    let apply = |changes: Vec<Change>| -> Result<Vec<String>> {
        let outcomes = guest.wait_for(guest.client.apply_probes(changes))??;
        Ok(outcomes.iter().map(told).collect())
    };
    let mine = || -> Result<Vec<String>> {
        let list = guest.tracefs("kprobe_events")?;
        let names = list.lines().filter_map(|line| Some(line.split([':', ' ']).nth(1)?.to_owned()));
        Ok(names.collect())
    };
    let told = apply(vec![
        Change::Create(creation("p:one __x64_sys_getpgid number=+0x70(%di):u64", "number == 3")),
        Change::Create(creation("p:bad __x64_sys_getpgid+1", "")),
        Change::Create(creation("p:one vfs_read", "")),
        Change::Create(creation("p:filtered __x64_sys_getpgid number=+0x70(%di):u64", "nobody == 3")),
        // Both are given a name, and not the same.
        Change::Create(creation("p __x64_sys_getpgid", "")),
        Change::Create(creation("p __x64_sys_getpgid", "")),
        Change::Create(creation("p:old vfs_read", "")),
        Change::Update(switch("old", false)),
        Change::Update(switch("old", true)),
        Change::Delete(deletion("missing")),
    ])?;
    let expected = [
        "PROBE_STATE_ARMED",
        told.get(1).map_or("", String::as_str),
        "CHANGED_TWICE",
        "BAD_FILTER",
        "PROBE_STATE_ARMED",
        "PROBE_STATE_ARMED",
        "PROBE_EXISTS",
        "PROBE_STATE_DISABLED",
        "CHANGED_TWICE",
        "NO_SUCH_PROBE",
    ];
    ensure!(told == expected && told[1] != "PROBE_STATE_ARMED", "{told:?}");
    let default = "kprobes/p___x64_sys_getpgid_0";
    let expected = ["kprobes/old", "kprobes/one", default, &format!("{default}_2")];
    ensure!(mine()? == expected, "{:?}", mine()?);
    let filter = guest.in_instance("events/kprobes/one/filter")?;
    ensure!(filter.trim() == filter_in_kernel("number == 3", fixture), "{filter}");
    ensure!(guest.in_instance("events/kprobes/old/enable")?.trim() == "0");

    // A deletion goes last, whatever its place is; what was named may be created anew by the next
    // request.
    let told = apply(vec![
        Change::Delete(deletion("one")),
        Change::Delete(deletion("one")),
        Change::Create(creation("p:two __x64_sys_getpgid", "")),
        Change::Update(UpdateProbeRequest { etag: "1-1".to_owned(), ..switch(default, false) }),
        Change::Update(switch("old", true)),
        Change::Delete(deletion("old")),
    ])?;
    let expected = [
        "deleted",
        "NO_SUCH_PROBE",
        "PROBE_STATE_ARMED",
        "ETAG_MISMATCH",
        "PROBE_STATE_ARMED",
        "CHANGED_TWICE",
    ];
    ensure!(told == expected, "{told:?}");
    let expected = ["kprobes/old", default, &format!("{default}_2"), "kprobes/two"];
    ensure!(mine()? == expected, "{:?}", mine()?);

    // Asked for again with the same ids, nothing is done twice.
    let again = || {
        let request_id = |id: &str| format!("again-{id}");
        vec![
            Change::Create(CreateProbeRequest { request_id: request_id("a"), ..creation("p vfs_write", "") }),
            Change::Delete(DeleteProbeRequest { request_id: request_id("b"), ..deletion("kprobes/two") }),
            Change::Update(UpdateProbeRequest { request_id: request_id("c"), ..switch("old", false) }),
        ]
    };
    let (first, before) = (apply(again())?, mine()?);
    ensure!(first == ["PROBE_STATE_ARMED", "deleted", "PROBE_STATE_DISABLED"], "{first:?}");
    ensure!(apply(again())? == first && mine()? == before, "{:?}", mine()?);

    // Only checked, nothing is changed, and what would be done is said.
    let checked = guest.wait_for(guest.client.plan_probes(vec![
        Change::Create(creation("p:new vfs_read", "common_pid > 1")),
        Change::Update(switch("old", true)),
        Change::Delete(deletion(default)),
        Change::Update(switch("kprobes/p_vfs_write_0", true)),
    ]))??;
    let states: Vec<_> = checked.outcomes.iter().map(self::told).collect();
    ensure!(
        states == ["PROBE_STATE_PENDING", "PROBE_STATE_ARMED", "deleted", "PROBE_STATE_ARMED"],
        "{states:?}"
    );
    // `p_vfs_write_0` is on already. The other probes move to another instance, so that the
    // deletion empties no buffer of theirs.
    let both = ["instances/kprobed", "instances/kprobed-next"];
    let [next, ours] = if guest.instance()?.ends_with("-next") { both } else { [both[1], both[0]] };
    let plan: Vec<_> = checked.plan.iter().map(|step| step.command.replace(default, "DEFAULT")).collect();
    let expected = [
        "echo 'p:kprobes/new vfs_read' >> kprobe_events".to_owned(),
        format!("echo 'common_pid > 1' > {ours}/events/kprobes/new/filter"),
        format!("echo 1 > {ours}/events/kprobes/new/enable"),
        format!("echo 1 > {ours}/events/kprobes/old/enable"),
        format!("echo 0 > {ours}/events/DEFAULT/enable"),
    ];
    ensure!(plan.starts_with(&expected), "{plan:#?}");
    let moved = plan.get(expected.len()..).unwrap_or_default();
    ensure!(moved.first().is_some_and(|step| step.starts_with(&format!("mkdir {next};"))), "{plan:#?}");
    ensure!(
        moved.contains(&format!("echo 'common_pid > 1' > {next}/events/kprobes/new/filter")),
        "{plan:#?}"
    );
    ensure!(moved.contains(&format!("echo 1 > {next}/events/kprobes/old/enable")), "{plan:#?}");
    let end = [
        format!("echo 1 > {next}/tracing_on"),
        format!("rmdir {ours}"),
        "echo '-:DEFAULT' >> kprobe_events".to_owned(),
    ];
    ensure!(moved.ends_with(&end), "{plan:#?}");
    ensure!(mine()? == before && guest.in_instance("events/kprobes/old/enable")?.trim() == "0");
    Ok(())
}

/// What another program keeps armed is hit while it is disabled: these hits are known, however many
/// probes are switched at once.
fn hits_of_others_are_told_apart(fixture: &Fixture) -> Result<()> {
    const PROBES: usize = 70;
    let guest = fixture.daemon()?;
    let names: Vec<_> = (0..PROBES).map(|number| format!("many/p{number}")).collect();
    let creations = names.iter().map(|name| creation(&format!("p:{name} __x64_sys_getpgid"), ""));
    probes(&guest, creations.map(Change::Create))?;
    let theirs = format!("{TRACEFS}/instances/theirs");
    guest.shell(&format!("mkdir {theirs}; echo 1 > {theirs}/events/many/enable"))?;
    let call = || guest.workload(&["number", "10"]).map(drop);
    let switch = |enabled| -> Result<()> {
        let updates = names.iter().map(|name| switch(name, enabled));
        probes(&guest, updates.map(Change::Update)).map(drop)
    };
    call()?;
    switch(false)?;
    call()?;
    switch(true)?;
    call()?;
    let ledger = guest.ledger()?;
    for name in &names {
        let found = ledger.probes.iter().find(|probe| probe.probe == *name).context("not in the ledger")?;
        ensure!((found.hits, found.disabled, found.read) == (Some(30), 10, 20), "{found:?}");
        ensure!(found.own == Some(0), "{found:?}");
    }
    guest.shell(&format!("echo 0 > {theirs}/events/enable; rmdir {theirs}"))?;
    Ok(())
}

/// What every outcome is, if all are good.
fn all<T>(outcomes: Vec<Result<T, Error>>) -> Result<Vec<T>> {
    Ok(outcomes.into_iter().collect::<Result<Vec<_>, _>>()?)
}

/// The probes that changes have made, each of which is taken.
fn probes(guest: &DaemonGuest, changes: impl Iterator<Item = Change>) -> Result<Vec<Probe>> {
    let outcomes = all(guest.wait_for(guest.client.apply_probes(changes.collect()))??)?;
    let probe = |outcome| match outcome {
        Outcome::Probe(probe) => Ok(*probe),
        other => anyhow::bail!("{other:?}"),
    };
    outcomes.into_iter().map(probe).collect()
}

/// Probes are defined, enabled, disabled, brought back after a restart, and deleted, many at once;
/// the kernel alone does the same.
fn many_live_and_come_back(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    let idle = restart(&mut guest)?;
    // With `KPROBED_VM_CHANGES=10,100,1000`, more than the checks need, to see what they cost.
    for size in effort::numbers("KPROBED_VM_CHANGES", &[24])? {
        let places = places(&guest, size)?;
        let ours = live(&mut guest, &places, idle)?;
        guest.machine.put("/tmp/places", 0o644, places.join("\n").as_bytes())?;
        let raw = guest.workload(&["cycle", TRACEFS, "/tmp/places"])?;
        let raw: BTreeMap<_, f64> = raw
            .iter()
            .filter_map(|line| line.split_once(' ').and_then(|(what, time)| Some((what, time.parse().ok()?))))
            .collect();
        let raw_of = |what: &str| raw.get(what).copied().unwrap_or_default();
        for (what, seconds) in ours {
            // What the kernel takes for the same writes.
            let floor = match what {
                "bring back" => raw_of("define") + raw_of("enable"),
                // They are on when they are deleted.
                "stop" | "delete" => raw_of("disable") + raw_of("delete"),
                what => raw_of(what),
            };
            progress::note(format_args!(
                "{}: {size} probes: {what} {seconds:.2} s, the kernel alone {floor:.2} s: {:.2} times",
                fixture.series(),
                seconds / floor
            ));
        }
    }
    Ok(())
}

/// Entries of functions that can be probed.
fn places(guest: &DaemonGuest, size: usize) -> Result<Vec<String>> {
    let functions = guest.tracefs("available_filter_functions")?;
    let mut seen = BTreeMap::<&str, usize>::new();
    for function in functions.lines().filter(|line| !line.contains(' ') && !line.contains('.')) {
        *seen.entry(function).or_default() += 1;
    }
    // What is hit all the time is left out: what it costs is another question.
    let quiet =
        |name: &str| ["ext4_", "proc_", "sysfs_", "acpi_"].iter().any(|prefix| name.starts_with(prefix));
    let candidates: Vec<_> =
        seen.iter().filter(|(name, count)| **count == 1 && quiet(name)).map(|(name, _)| *name).collect();
    let mut places = Vec::with_capacity(size);
    for names in candidates.chunks(Client::CHANGES_AT_ONCE) {
        let checks = names.iter().map(|name| CreateProbeRequest {
            validate_only: true,
            ..creation(&format!("p:many/{name} {name}"), "")
        });
        let outcomes = guest.wait_for(guest.client.apply_probes(checks.map(Change::Create).collect()))??;
        let accepted = names.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_ok());
        places.extend(accepted.map(|(name, _)| (*name).to_owned()).take(size - places.len()));
        if places.len() == size {
            return Ok(places);
        }
    }
    anyhow::bail!("only {} of {size} functions can be probed", places.len())
}

/// Restarts the daemon. How many seconds it took to stop, and to start.
fn restart(guest: &mut DaemonGuest) -> Result<(f64, f64)> {
    let begun = Instant::now();
    guest.stop()?;
    let stopped = Instant::now();
    guest.restart(daemon::DEFAULT_CONFIG)?;
    Ok(((stopped - begun).as_secs_f64(), stopped.elapsed().as_secs_f64()))
}

/// Seconds of each part of the life of these probes. `idle` is what it takes to restart the daemon
/// without any.
fn live(guest: &mut DaemonGuest, places: &[String], idle: (f64, f64)) -> Result<Vec<(&'static str, f64)>> {
    let mut times = Vec::new();
    let names: Vec<_> = places.iter().map(|place| format!("many/{place}")).collect();
    let mut time = |what, work: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let begun = Instant::now();
        work()?;
        times.push((what, begun.elapsed().as_secs_f64()));
        Ok(())
    };
    let are = |probes: &[Probe], state: ProbeState| probes.iter().all(|probe| probe.state() == state);
    time("define", &mut || {
        for places in places.chunks(Client::CHANGES_AT_ONCE) {
            let requests = places.iter().map(|place| CreateProbeRequest {
                enabled: false,
                ..creation(&format!("p:many/{place} {place}"), "")
            });
            let made = probes(guest, requests.map(Change::Create))?;
            ensure!(are(&made, ProbeState::Disabled), "{made:?}");
        }
        Ok(())
    })?;
    for (what, enabled, state) in
        [("enable", true, ProbeState::Armed), ("disable", false, ProbeState::Disabled)]
    {
        time(what, &mut || {
            for names in names.chunks(Client::CHANGES_AT_ONCE) {
                let requests = names.iter().map(|name| switch(name, enabled));
                let changed = probes(guest, requests.map(Change::Update))?;
                ensure!(are(&changed, state), "{changed:?}");
            }
            Ok(())
        })?;
    }
    for names in names.chunks(Client::CHANGES_AT_ONCE) {
        let requests = names.iter().map(|name| switch(name, true));
        probes(guest, requests.map(Change::Update))?;
    }
    let (stop, start) = restart(guest)?;
    times.extend([("stop", stop - idle.0), ("bring back", start - idle.1)]);
    let back = guest.probes()?;
    ensure!(back.len() == names.len() && are(&back, ProbeState::Armed), "{} are back", back.len());
    let begun = Instant::now();
    for names in names.chunks(Client::CHANGES_AT_ONCE) {
        let requests = names.iter().map(|name| deletion(name)).collect();
        all(guest.wait_for(guest.client.delete_probes(requests))??)?;
    }
    times.push(("delete", begun.elapsed().as_secs_f64()));
    ensure!(guest.probes()?.is_empty() && !guest.tracefs("kprobe_events")?.contains("many/"));
    Ok(times)
}
