//! Foreign events: listed, left unchanged, and adopted on request; also the daemon's own after its
//! database was lost.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{
    AdoptProbeRequest, AdoptProbeResponse, ForeignEvent, ProbeState, UpdateProbeRequest,
};
use kprobed_vm::daemon;

use crate::Test;
use crate::daemon::{DaemonGuest, Recording, TRACEFS, switch};
use crate::differential::Random;
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        a_foreign_event_is_adopted_as_it_is,
        foreign_events_are_listed_and_left_alone,
    }
    Seldom {
        an_adopted_event_survives,
        what_was_lost_with_the_database_is_adopted,
    }
};

/// The argument of the system call that `workload numbers` makes.
const NUMBERS: &str = "__x64_sys_getsid n=+0x70(%di):s32";

fn foreign(guest: &DaemonGuest) -> Result<Vec<ForeignEvent>> {
    Ok(guest.wait_for(guest.client.foreign_probes(""))??)
}

fn named(guest: &DaemonGuest, name: &str) -> Result<ForeignEvent> {
    let found = foreign(guest)?.into_iter().find(|event| event.name == name);
    found.with_context(|| format!("`{name}` is not listed"))
}

fn adopt(guest: &DaemonGuest, request: &AdoptProbeRequest) -> Result<AdoptProbeResponse> {
    let response = guest.wait_for(guest.client.adopt_probe(request.clone()))?;
    response.with_context(|| format!("{request:?}\n{}", guest.log()))
}

/// Why an event is not adopted: the reason, and the obstacle.
fn refused(guest: &DaemonGuest, request: AdoptProbeRequest) -> Result<(String, String)> {
    let error = crate::daemon::refused(guest.wait_for(guest.client.adopt_probe(request))?)?;
    let obstacle = error.metadata.into_iter().find(|(key, _)| key == "obstacle");
    Ok((error.reason, obstacle.map(|(_, code)| code).unwrap_or_default()))
}

fn request(name: &str) -> AdoptProbeRequest {
    AdoptProbeRequest { name: name.to_owned(), ..Default::default() }
}

/// The numbers that a probe has recorded.
fn numbers(recording: &Recording, probe: &str) -> Vec<String> {
    recording.of(probe, "workload").map(|event| event.field("n").to_owned()).collect()
}

fn foreign_events_are_listed_and_left_alone(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:ours __x64_sys_getppid")?;
    guest.add(&format!("p:shared {NUMBERS}"))?;
    let address = guest.shell("grep ' __x64_sys_getpgid$' /proc/kallsyms | cut -d' ' -f1")?;
    guest.shell(&format!(
        "cd {TRACEFS}
         echo 'p:theirs/numbers {NUMBERS}' >> kprobe_events
         echo 'r4:theirs/returns __x64_sys_getsid ret=$retval:s64' >> kprobe_events
         echo 'p:theirs/two vfs_statx' >> kprobe_events; echo 'p:theirs/two vfs_write' >> kprobe_events
         echo 'p:theirs/address 0x{}' >> kprobe_events
         mkdir instances/theirs; echo 1 > instances/theirs/events/theirs/numbers/enable
         echo 1 > events/theirs/returns/enable",
        address.trim()
    ))?;
    guest.workload(&["numbers", "1", "5"])?;
    let before = guest.tracefs("kprobe_events")?;
    let events = foreign(&guest)?;
    let told: Vec<_> = events
        .iter()
        .map(|event| (event.name.as_str(), event.obstacle.as_str(), event.enabled_in.join(",")))
        .collect();
    let expected = [
        ("theirs/address", "ADDRESS", String::new()),
        ("theirs/numbers", "", "theirs".to_owned()),
        // The one at the top has no name.
        ("theirs/returns", "", String::new()),
        ("theirs/two", "SEVERAL_PLACES", String::new()),
    ];
    ensure!(told == expected, "{events:?}");
    let numbers = named(&guest, "theirs/numbers")?;
    ensure!(numbers.hits == Some(5) && numbers.nmissed == Some(0) && !numbers.made_by_kprobed, "{numbers:?}");
    ensure!(numbers.definition == format!("p:theirs/numbers {NUMBERS}"), "{numbers:?}");
    let returns = named(&guest, "theirs/returns")?;
    ensure!(returns.enabled_in == [""] && returns.hits >= Some(5) && !returns.made_by_kprobed, "{returns:?}");
    ensure!(named(&guest, "theirs/two")?.kernel_definitions.len() == 2);
    // Pages of one follow each other.
    let mut page = kprobed_client::api::ListForeignProbesRequest { page_size: 1, ..Default::default() };
    let mut names = Vec::new();
    loop {
        let mut response = guest.wait_for(guest.client.foreign_probes_page(page.clone()))??;
        ensure!(response.events.len() == 1, "{response:?}");
        names.extend(response.events.pop().map(|event| event.name));
        if response.next_page_token.is_empty() {
            break;
        }
        page.page_token = response.next_page_token;
    }
    ensure!(names == expected.clone().map(|(name, ..)| name.to_owned()), "{names:?}");
    // The command shows the same.
    let shown = guest.ctl("list --foreign -o wide")?;
    ensure!(expected.iter().all(|(name, ..)| shown.contains(name)) && !shown.contains("kprobes/"), "{shown}");

    // What cannot be adopted says why, and nothing was written.
    ensure!(refused(&guest, request("theirs/two"))?.1 == "SEVERAL_PLACES");
    ensure!(refused(&guest, request("theirs/address"))?.1 == "ADDRESS");
    ensure!(refused(&guest, request("kprobes/ours"))?.1 == "NAME_OF_PROBE");
    ensure!(refused(&guest, request("sched/sched_switch"))?.1 == "NOT_A_KPROBE");
    ensure!(refused(&guest, request("no/event"))?.0 == "NO_SUCH_EVENT");
    ensure!(refused(&guest, request("theirs"))?.0 == "BAD_ARGUMENT");
    let bad = AdoptProbeRequest { filter: Some("nosuch == 1".to_owned()), ..request("theirs/numbers") };
    ensure!(refused(&guest, bad)?.0 == "BAD_FILTER");
    guest.add("theirs/numbers")?;
    ensure!(named(&guest, "theirs/numbers")?.obstacle == "NAME_OF_PROBE");
    ensure!(refused(&guest, request("theirs/numbers"))?.1 == "NAME_OF_PROBE");
    guest.delete("theirs/numbers")?;
    let dry = AdoptProbeRequest { validate_only: true, enabled: Some(true), ..request("theirs/numbers") };
    let planned = adopt(&guest, &dry)?;
    let instance = guest.instance()?;
    let step = format!("echo 1 > {instance}/events/theirs/numbers/enable");
    let plan: Vec<_> = planned.plan.iter().map(|step| step.command.as_str()).collect();
    ensure!(plan == [step.replace(&format!("{TRACEFS}/"), "")], "{planned:?}");
    ensure!(planned.enabled_in == ["theirs"], "{planned:?}");
    ensure!(guest.tracefs("kprobe_events")? == before && guest.probes()?.len() == 2);
    ensure!(guest.tracefs("instances/theirs/events/theirs/numbers/enable")?.trim() == "1");
    ensure!(guest.tracefs("events/theirs/returns/enable")?.trim() == "1");
    ensure!(guest.in_instance("events/theirs/numbers/enable")?.trim() == "0");
    guest.shell(&format!(
        "cd {TRACEFS}; echo 0 > events/theirs/returns/enable; echo 0 > instances/theirs/events/theirs/numbers/enable
         rmdir instances/theirs
         for event in numbers returns two address; do echo \"-:theirs/$event\" >> kprobe_events; done"
    ))?;
    Ok(())
}

fn a_foreign_event_is_adopted_as_it_is(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:other __x64_sys_getppid")?;
    guest.shell(&format!(
        "cd {TRACEFS}; echo 'p:theirs/numbers {NUMBERS}' >> kprobe_events
         mkdir instances/theirs; echo 1 > instances/theirs/events/theirs/numbers/enable"
    ))?;
    guest.workload(&["numbers", "1", "30"])?;
    let listed = guest.tracefs("kprobe_events")?;
    let id = guest.tracefs("events/theirs/numbers/id")?;

    // Without more words it is not recorded.
    let adopted =
        adopt(&guest, &AdoptProbeRequest { request_id: "a".to_owned(), ..request("theirs/numbers") })?;
    let probe = adopted.probe.context("no probe")?;
    ensure!(probe.state() == ProbeState::Disabled && !probe.enabled, "{probe:?}");
    ensure!(adopted.enabled_in == ["theirs"] && probe.definition.ends_with(NUMBERS), "{probe:?}");
    ensure!(probe.schema.is_some() && probe.spec.is_some(), "{probe:?}");
    // The same request again finds the outcome of the first.
    let again =
        adopt(&guest, &AdoptProbeRequest { request_id: "a".to_owned(), ..request("theirs/numbers") })?;
    ensure!(again.probe.is_some_and(|again| again.uid == probe.uid));
    ensure!(refused(&guest, request("theirs/numbers"))?.1 == "NAME_OF_PROBE");
    ensure!(foreign(&guest)?.is_empty(), "{:?}", foreign(&guest)?);
    guest.workload(&["numbers", "1", "10"])?;
    let recording = guest.record(|| guest.workload(&["numbers", "100", "5"]).map(drop))?;
    ensure!(recording.of("theirs/numbers", "workload").count() == 0, "{recording:?}");

    // From here on it is recorded, with exact values, as the same event.
    let update = UpdateProbeRequest { filter: Some("n >= 202".to_owned()), ..switch("theirs/numbers", true) };
    let probe = guest.wait_for(guest.client.update_probe(update))??;
    ensure!(probe.state() == ProbeState::Armed, "{probe:?}");
    let recording = guest.record(|| guest.workload(&["numbers", "200", "6"]).map(drop))?;
    ensure!(numbers(&recording, "theirs/numbers") == ["202", "203", "204", "205"], "{recording:?}");
    ensure!(guest.tracefs("kprobe_events")? == listed && guest.tracefs("events/theirs/numbers/id")? == id);
    let profile = guest.wait_for(guest.client.hits("theirs/*"))??;
    ensure!(profile.len() == 1 && profile[0].hits == 51, "{profile:?}");
    // The ledger begins where it was adopted.
    let ledger = guest.ledger_of("theirs/numbers")?;
    ensure!(ledger.hits == Some(21) && ledger.read == 4, "{ledger:?}");
    ensure!(ledger.disabled == 15 && ledger.not_read == 17, "{ledger:?}");

    // Theirs goes on, and as long as it does the event cannot be removed.
    ensure!(guest.tracefs("instances/theirs/events/theirs/numbers/enable")?.trim() == "1");
    let theirs = guest.shell(&format!("grep -c 'workload-.*numbers:' {TRACEFS}/instances/theirs/trace"))?;
    ensure!(theirs.trim() == "51", "{theirs}");
    ensure!(guest.delete("theirs/numbers").is_err(), "it was removed though others use it");
    guest.shell(&format!(
        "cd {TRACEFS}; echo 0 > instances/theirs/events/theirs/numbers/enable; rmdir instances/theirs"
    ))?;
    let last = guest.delete("theirs/numbers")?.context("no counts")?;
    ensure!(last.hits == 51 && !guest.tracefs("kprobe_events")?.contains("theirs/"), "{last:?}");
    Ok(())
}

fn what_was_lost_with_the_database_is_adopted(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    guest.add(&format!("p:numbers {NUMBERS}"))?;
    guest.wait_for(guest.client.set_filter("numbers", "n > 2"))??;
    guest.add("p:calls __x64_sys_getppid")?;
    guest
        .add("r:group/off do_sys_openat2 fd=$retval:s32 name=+0($arg2):string")
        .or_else(|_| guest.add("r:group/off do_sys_openat2 fd=$retval:s32"))?;
    guest.wait_for(guest.client.set_enabled("off", false))??;
    guest.workload(&["numbers", "1", "10"])?;
    guest.workload(&["getppid", "100"])?;
    let listed = guest.tracefs("kprobe_events")?;
    guest.lose_database("rm -r ./*")?;
    guest.workload(&["getppid", "20"])?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    ensure!(guest.probes()?.is_empty() && guest.tracefs("kprobe_events")? == listed, "{}", guest.log());
    guest.workload(&["getppid", "3"])?;
    let events = foreign(&guest)?;
    ensure!(events.len() == 3 && events.iter().all(|event| event.obstacle.is_empty()), "{events:?}");
    // Those that record are recognised by that, and the others by what only the daemon adds, if
    // they have it.
    for (name, own) in [("kprobes/numbers", true), ("kprobes/calls", true)] {
        ensure!(named(&guest, name)?.made_by_kprobed == own, "{events:?}");
    }
    ensure!(!named(&guest, "kprobes/numbers")?.definition.contains("__kpd_"), "{events:?}");
    let shown = guest.ctl_says("adopt --all-own --dry-run")?.all();
    ensure!(shown.contains("nothing was changed") && guest.probes()?.is_empty(), "{shown}");
    guest.ctl("adopt --all-own --label from=lost")?;
    if foreign(&guest)?.iter().any(|event| event.name == "group/off") {
        // Nothing tells whose it is: it reads no memory, and is switched off.
        guest.ctl("adopt group/off")?;
    }
    ensure!(foreign(&guest)?.is_empty() && guest.tracefs("kprobe_events")? == listed);
    let states: Vec<_> = guest
        .probes()?
        .into_iter()
        .map(|probe| (probe.name.clone(), probe.state(), probe.filter, probe.labels.contains_key("from")))
        .collect();
    ensure!(
        states[..2]
            == [
                ("group/off".to_owned(), ProbeState::Disabled, String::new(), states[0].3),
                ("kprobes/calls".to_owned(), ProbeState::Armed, String::new(), true),
            ],
        "{states:?}"
    );
    ensure!(states[2].1 == ProbeState::Armed && states[2].2 == "n > 2", "{states:?}");
    // Hits are counted on, values are exact, and the ledger begins here.
    let recording = guest.record(|| {
        guest.workload(&["numbers", "1", "5"])?;
        guest.workload(&["getppid", "7"]).map(drop)
    })?;
    ensure!(numbers(&recording, "kprobes/numbers") == ["3", "4", "5"], "{recording:?}");
    ensure!(recording.of("kprobes/calls", "workload").count() == 7, "{recording:?}");
    let hits = |name: &str| -> Result<u64> {
        let found = guest.wait_for(guest.client.hits(name))??;
        Ok(found.first().context("no counts")?.hits)
    };
    ensure!(hits("kprobes/numbers")? == 15, "{}", hits("kprobes/numbers")?);
    // Others of the guest call it as well, while it boots and runs commands.
    ensure!((130..200).contains(&hits("kprobes/calls")?), "{}", hits("kprobes/calls")?);
    let ledger = guest.ledger_of("kprobes/numbers")?;
    ensure!(ledger.hits == Some(5) && ledger.read == 3, "{ledger:?}");
    let ledger = guest.ledger_of("kprobes/calls")?;
    ensure!(ledger.not_read == 0 && (7..60).contains(&ledger.read), "{ledger:?}");
    // They are probes like all others: they survive the next end, and go with a clean one.
    guest.kill_and_restart()?;
    ensure!(guest.probes()?.len() == 3 && guest.tracefs("kprobe_events")? == listed, "{}", guest.log());
    guest.stop()?;
    ensure!(guest.tracefs("kprobe_events")?.is_empty(), "{}", guest.tracefs("kprobe_events")?);
    Ok(())
}

/// A daemon that ends right after it has adopted an event does not take it from its owner: it is a
/// probe, or what it was.
fn an_adopted_event_survives(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    let line = format!("p:theirs/numbers {NUMBERS}");
    guest.shell(&format!("echo '{line}' >> {TRACEFS}/kprobe_events"))?;
    // Killed at different moments of the call; with little effort at one, which the commit decides.
    let moments = [0, 30, 100, 400];
    let first = Random::of_theme("foreign").below(moments.len());
    for pause_ms in moments.into_iter().skip(effort::pick(first, 0)).take(effort::pick(1, moments.len())) {
        let adopting = guest.start_ctl("adopt theirs/numbers --enable")?;
        thread::sleep(Duration::from_millis(pause_ms));
        guest.kill()?;
        drop(adopting);
        guest.restart(daemon::DEFAULT_CONFIG)?;
        let (probes, foreign) = (guest.probes()?, foreign(&guest)?);
        ensure!(guest.tracefs("kprobe_events")?.trim() == line, "{pause_ms}: {}", guest.log());
        ensure!(probes.len() + foreign.len() == 1, "{pause_ms}: {probes:?} {foreign:?}");
        if let Some(probe) = probes.first() {
            ensure!(probe.state() == ProbeState::Armed, "{pause_ms}: {probe:?}");
            break;
        }
    }
    if guest.probes()?.is_empty() {
        adopt(&guest, &AdoptProbeRequest { enabled: Some(true), ..request("theirs/numbers") })?;
    }
    let recording = guest.record(|| guest.workload(&["numbers", "7", "3"]).map(drop))?;
    ensure!(numbers(&recording, "theirs/numbers") == ["7", "8", "9"], "{recording:?}");
    // After a clean stop it is defined again, now with what tells faults from values.
    guest.stop_and_restart()?;
    let probe = guest.probe("theirs/numbers")?;
    ensure!(probe.state() == ProbeState::Armed, "{probe:?}");
    let recording = guest.record(|| guest.workload(&["numbers", "7", "3"]).map(drop))?;
    ensure!(numbers(&recording, "theirs/numbers") == ["7", "8", "9"], "{recording:?}");
    Ok(())
}
