//! Leases: probes that end after a time, or when their client disconnects, and never before.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::{CreateProbeRequest, Lease, Probe, ProbeState, UpdateProbeRequest};
use kprobed_client::event::StreamRequest;
use kprobed_vm::daemon;
use kprobed_vm::machine::{Command, PATIENCE};
use kprobed_vm::protocol::Status;
use serde_json::Value;

use crate::Test;
use crate::crash_plans;
use crate::daemon::{
    DaemonGuest, FIRST, NUMBERS, config, config_looking_every, creation, events_among_others, refused, update,
};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        trace_shows_every_event_and_leaves_nothing,
        a_trace_that_is_refused_defines_nothing,
        a_killed_trace_leaves_nothing,
        a_lease_ends_though_others_hold_on_to_the_probe,
    }
    Seldom {
        leases_end_while_no_daemon_runs,
        a_hold_does_not_survive_the_daemon,
        the_wall_clock_does_not_matter,
        a_lease_ends_on_a_full_disk,
        a_lease_ends_and_can_be_renewed,
        what_is_held_goes_with_its_holder,
    }
};

/// A short lease, in seconds: an emulated guest does in it what is to be done before it ends.
const LEASE_S: i64 = 6;

/// Makes a probe that records and has a lease of so many seconds.
fn lease(guest: &DaemonGuest, definition: &str, seconds: i64) -> Result<Probe> {
    let lease = Some(crash_plans::lease(seconds));
    let request = CreateProbeRequest { lease, ..creation(definition, "") };
    Ok(guest.wait_for(guest.client.create_probe(request))??)
}

fn state(guest: &DaemonGuest, name: &str) -> Result<ProbeState> {
    Ok(guest.probe(name)?.state())
}

/// Seconds since the boot of the guest.
fn uptime(guest: &DaemonGuest) -> Result<f64> {
    let text = guest.shell("cat /proc/uptime")?;
    text.split(' ').next().and_then(|first| first.parse().ok()).with_context(|| text.clone())
}

/// Seconds since 1970 by the guest's wall clock.
fn wall(guest: &DaemonGuest) -> Result<i64> {
    Ok(guest.shell("date +%s")?.trim().parse()?)
}

fn call(guest: &DaemonGuest, count: i64) -> Result<()> {
    guest.call(FIRST, count)
}

/// The numbers from the first one.
fn numbers(count: i64) -> Vec<i64> {
    (FIRST..FIRST + count).collect()
}

/// Probe and number of each event that was printed as JSON. Whatever else was printed is that of
/// another program.
fn printed(output: &str) -> Vec<(String, Option<i64>)> {
    let named = |event: &Value| {
        let probe = event["probe"].as_str().unwrap_or_default().to_owned();
        (probe, event["fields"]["n"].as_i64())
    };
    events_among_others(output).iter().map(named).collect()
}

fn of(probe: &str, count: i64) -> Vec<(String, Option<i64>)> {
    numbers(count).into_iter().map(|number| (probe.to_owned(), Some(number))).collect()
}

/// Nothing of a probe is left: not in the kernel, and not in the daemon.
fn ensure_clean(guest: &DaemonGuest) -> Result<()> {
    let (kernel, probes) = (guest.tracefs("kprobe_events")?, guest.probes()?);
    ensure!(kernel.is_empty() && probes.is_empty(), "left behind: {kernel}\n{probes:?}\n{}", guest.log());
    Ok(())
}

fn trace_shows_every_event_and_leaves_nothing(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let trace = |arguments: &str, count: i64| -> Result<String> {
        let script =
            format!("kprobectl trace {arguments} -o json -- workload numbers {FIRST} {count} 2> /tmp/said");
        guest.shell(&script).with_context(|| guest.shell("cat /tmp/said").unwrap_or_default())
    };
    // As long as a program runs: the first event and the last one, each once, in their order.
    for count in [1, 100] {
        let shown = printed(&trace(&format!("'{NUMBERS}'"), count)?);
        ensure!(shown == of("kprobes/numbers", count), "{shown:?}");
        ensure_clean(&guest)?;
    }
    let said = guest.shell("cat /tmp/said")?;
    ensure!(said.contains("observing 1 probe") && said.contains("100 recorded, 100 shown, 0 lost"), "{said}");
    // Two probes, in the order of time.
    let both = printed(&trace(&format!("'{NUMBERS}' 'r:done __x64_sys_getsid'"), 20)?);
    let expected = of("kprobes/numbers", 20).into_iter();
    let expected: Vec<_> = expected.flat_map(|one| [one, ("kprobes/done".to_owned(), None)]).collect();
    ensure!(both == expected, "{both:?}");
    ensure_clean(&guest)?;
    // Up to a number of events; and what is selected of them.
    let three = printed(&trace(&format!("-n 3 '{NUMBERS}'"), 10)?);
    ensure!(three == of("kprobes/numbers", 3), "{three:?}");
    ensure_clean(&guest)?;
    let selected = printed(&trace(&format!("--filter 'n == {}' '{NUMBERS}'", FIRST + 7), 10)?);
    ensure!(selected == [("kprobes/numbers".to_owned(), Some(FIRST + 7))], "{selected:?}");
    // The name of a function alone, beside a probe of the same place that stays.
    guest.add("p:stays __x64_sys_getsid")?;
    let entries = printed(&trace("-q __x64_sys_getsid", 5)?);
    ensure!(entries.len() == 5 && entries.iter().all(|(probe, _)| probe != "kprobes/stays"), "{entries:?}");
    ensure!(guest.tracefs("kprobe_events")?.trim() == "p:kprobes/stays __x64_sys_getsid");
    // `observe` can do so too, beside probes that are there.
    let observed = guest.observe(&format!("-q -n 6 -o json kprobes/stays -p '{NUMBERS}'"), || {
        // It has subscribed, and enables its probe then.
        guest.until("the probe records", || Ok(state(&guest, "numbers")? == ProbeState::Armed))?;
        call(&guest, 3)
    })?;
    let observed = printed(&observed);
    let own = observed.iter().filter(|(probe, _)| probe == "kprobes/numbers").count();
    ensure!((observed.len(), own) == (6, 3), "{observed:?}");
    guest.delete("stays")?;
    ensure_clean(&guest)?;
    // Ctrl-C is how it ends: what was recorded by then is shown.
    let mut tracer = guest.start_observing(&format!("trace -o json '{NUMBERS}'"))?;
    call(&guest, 50)?;
    let said = tracer.end_by_interrupt()?;
    ensure!(printed(&said.stdout) == of("kprobes/numbers", 50), "{said:?}");
    ensure_clean(&guest)?;
    // And the time.
    let begun = uptime(&guest)?;
    guest.ctl(&format!("trace -q --for 1s '{NUMBERS}'"))?;
    ensure!(uptime(&guest)? - begun >= 1.0);
    ensure_clean(&guest)
}

fn a_trace_that_is_refused_defines_nothing(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    for (arguments, expected) in [
        (format!("'{NUMBERS}' 'p:other nosuchfunction'"), "nosuchfunction"),
        ("kernel_clome".to_owned(), "did you mean `kernel_clone`"),
        (format!("'{NUMBERS}' '{NUMBERS}'"), "numbers"),
        (format!("--fields nosuch '{NUMBERS}'"), "nosuch"),
        (format!("'{NUMBERS}' -- /nonexistent"), "cannot run `/nonexistent`"),
    ] {
        let said = guest.ctl_says(&format!("trace {arguments}"))?;
        ensure!(said.code == 1 && said.stderr.contains(expected), "{arguments}: {said:?}");
        // What was made goes with the connection.
        guest.until("all is gone", || Ok(guest.tracefs("kprobe_events")?.is_empty()))?;
        ensure_clean(&guest)?;
    }
    Ok(())
}

fn a_killed_trace_leaves_nothing(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let tracer = guest.start_observing(&format!("trace '{NUMBERS}'"))?;
    let probe = guest.probe("numbers")?;
    let holder = probe.lease.map(|lease| lease.holder).unwrap_or_default();
    ensure!(probe.state == i32::from(ProbeState::Armed) && holder.starts_with("hold-"), "{holder}");
    guest.ctl_shows("list", &["LEASE", "held"])?;
    // What others see of a hold is not its key: they cannot lease a probe with it.
    let lease = Some(Lease { holder, ..Lease::default() });
    let definition = "p:guest vfs_read".to_owned();
    let request = CreateProbeRequest { definition, lease, ..CreateProbeRequest::default() };
    let error = refused(guest.wait_for(guest.client.create_probe(request))?)?;
    ensure!(error.reason == "NO_SUCH_HOLD", "{error:?}");
    // Another client follows the probe: nothing of what it recorded is lost to that one.
    let mut stream = guest.subscribe(StreamRequest::new().probe("kprobes/numbers"))?;
    guest.started(&mut stream)?;
    call(&guest, 200)?;
    drop(tracer);
    guest.until("the probe is gone", || Ok(guest.tracefs("kprobe_events")?.is_empty()))?;
    let seen = guest.receive(&mut stream, 200)?;
    ensure!(seen == 200, "{seen}");
    guest.until("the daemon has forgotten it", || Ok(guest.probes()?.is_empty()))?;
    ensure_clean(&guest)
}

fn what_is_held_goes_with_its_holder(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add(NUMBERS)?;
    let mut stream = guest.subscribe(StreamRequest::new().probe("kprobes/numbers"))?;
    guest.started(&mut stream)?;
    // More than are taken out at a time, while another probe records.
    let hold = guest.wait_for(guest.client.hold())??;
    let create = |number: usize| CreateProbeRequest {
        definition: format!("p:held/h{number} __x64_sys_getppid"),
        lease: Some(hold.lease()),
        ..CreateProbeRequest::default()
    };
    let made =
        guest.wait_for(guest.client.apply_probes((0..300).map(create).map(Change::Create).collect()))??;
    ensure!(made.iter().all(Result::is_ok) && guest.probes()?.len() == 301, "{made:?}");
    call(&guest, 100)?;
    drop(hold);
    // Meanwhile others are served, and what is hit is recorded.
    guest.until("all are gone", || Ok(guest.probes()?.len() == 1))?;
    call(&guest, 100)?;
    guest.receive(&mut stream, 200)?;
    ensure!(guest.tracefs("kprobe_events")?.lines().count() == 1);
    // A connection has so many holds, and other connections have theirs.
    let mut holds = Vec::new();
    let refusal = loop {
        match guest.wait_for(guest.client.hold())? {
            Ok(hold) => holds.push(hold),
            Err(error) => break refused::<()>(Err(error))?,
        }
        ensure!(holds.len() < 1000, "no end of holds");
    };
    ensure!((refusal.reason.as_str(), holds.len()) == ("TOO_MANY_HOLDS", 64), "{refusal:?}");
    guest.shell(&format!(
        "kprobectl trace -q -n 1 '{}' -- workload numbers {FIRST} 1",
        NUMBERS.replace("numbers", "more")
    ))?;
    drop(holds);
    // The daemon notices the end of each in its own time.
    guest.until("a hold is free", || Ok(guest.wait_for(guest.client.hold())?.is_ok()))?;
    // An update can hang a probe on a hold too.
    let hold = guest.wait_for(guest.client.hold())??;
    let request = UpdateProbeRequest { lease: Some(hold.lease()), ..update("numbers") };
    guest.wait_for(guest.client.update_probe(request))??;
    drop(hold);
    guest.until("it is gone", || Ok(guest.probes()?.is_empty()))?;
    ensure_clean(&guest)
}

fn a_lease_ends_and_can_be_renewed(fixture: &Fixture) -> Result<()> {
    // A look at the probes ten times a second must not bring back what has expired.
    let guest = fixture.daemon_with(&config_looking_every(100))?;
    let mut stream = guest.subscribe(StreamRequest::new())?;
    guest.started(&mut stream)?;
    let begun = uptime(&guest)?;
    let made = lease(&guest, NUMBERS, LEASE_S)?;
    // The daemon reads the kernel for the first definition, and then the lease begins.
    let armed = uptime(&guest)?;
    ensure!(made.state() == ProbeState::Armed, "{made:?}");
    call(&guest, 30)?;
    guest.until("it expires", || Ok(state(&guest, "numbers")? == ProbeState::Expired))?;
    let ended = uptime(&guest)?;
    let least = LEASE_S as f64;
    ensure!(ended - begun >= least && ended - armed < least + 12.0, "{begun}, {armed}, {ended} seconds");
    ensure!(guest.tracefs("kprobe_events")?.is_empty(), "{}", guest.tracefs("kprobe_events")?);
    let probe = guest.probe("numbers")?;
    ensure!(
        probe.state_reason == "LEASE_ENDED"
            && probe.state_message.starts_with(&format!("its lease of {LEASE_S}s ended at 20"))
            && probe.state_hint == "`kprobectl update kprobes/numbers --renew` brings it back"
            && probe.enabled,
        "{probe:?}"
    );
    ensure!(guest.log().contains("expired"), "{}", guest.log());
    // Nothing that it recorded is lost.
    guest.receive(&mut stream, 30)?;
    guest.ctl_shows("list", &["expired", "ended"])?;
    // It does not come back by itself, and not by another change.
    let error = refused(guest.wait_for(guest.client.set_enabled("numbers", true))?)?;
    ensure!(error.reason == "LEASE_ENDED", "{error:?}");
    let error = refused(guest.wait_for(guest.client.set_filter("numbers", "n == 1"))?)?;
    ensure!(error.reason == "LEASE_ENDED", "{error:?}");
    guest.wait_for(guest.client.change_labels(
        "numbers",
        [("a".to_owned(), "b".to_owned())].into(),
        vec![],
    ))??;
    let refusal = guest.refusal(NUMBERS)?;
    ensure!(refusal.message.contains("its lease has ended"), "{refusal:?}");
    ensure!(state(&guest, "numbers")? == ProbeState::Expired && guest.tracefs("kprobe_events")?.is_empty());
    // Renewed, it records again; the length of the lease is that of before.
    guest.ctl("update numbers --renew")?;
    let probe = guest.probe("numbers")?;
    let lasts = probe.lease.and_then(|lease| lease.duration).map(|duration| duration.seconds);
    ensure!((probe.state, lasts) == (i32::from(ProbeState::Armed), Some(LEASE_S)), "{lasts:?}");
    let recording = guest.record(|| call(&guest, 5))?;
    ensure!(recording.of("kprobes/numbers", "workload").count() == 5, "{recording:?}");
    // A lease that was prolonged does not end with the first one.
    guest.ctl("update numbers --lease 1h")?;
    guest.ctl_shows("list", &["59m"])?;
    let passed = uptime(&guest)? + LEASE_S as f64;
    guest.until("the first lease would have ended", || Ok(uptime(&guest)? > passed))?;
    ensure!(state(&guest, "numbers")? == ProbeState::Armed);
    let kept = guest.ctl("update numbers --keep")?;
    ensure!(kept.trim() == "kprobes/numbers stays", "{kept}");
    ensure!(guest.probe("numbers")?.lease.is_none());
    guest.delete("numbers")?;
    // What is out of range is refused.
    for seconds in [0, -1, 400_000_000] {
        let outcome = lease(&guest, NUMBERS, seconds);
        ensure!(outcome.is_err(), "a lease of {seconds} seconds");
    }
    ensure_clean(&guest)?;
    Ok(())
}

fn a_lease_ends_though_others_hold_on_to_the_probe(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    lease(&guest, NUMBERS, 4)?;
    lease(&guest, "p:counted __x64_sys_getppid", 4)?;
    // Another tracer has enabled the event: the kernel removes it only when that one has let it go.
    guest.shell("echo 1 > /sys/kernel/tracing/events/kprobes/numbers/enable")?;
    // And one is counted by an aggregation, which goes with it.
    guest.machine.spawn("hist", &Command::shell("exec kprobectl hist counted comm > /dev/null 2>&1"))?;
    guest.until("they expire", || {
        Ok(state(&guest, "numbers")? == ProbeState::Expired
            && state(&guest, "counted")? == ProbeState::Expired)
    })?;
    let stuck = guest.probe("numbers")?;
    ensure!(stuck.state_message.contains("still in the kernel, switched off"), "{stuck:?}");
    ensure!(guest.in_instance("events/kprobes/numbers/enable")?.trim() == "0");
    let kernel = guest.tracefs("kprobe_events")?;
    ensure!(kernel.lines().count() == 1 && kernel.contains("numbers"), "{kernel}");
    let request = UpdateProbeRequest { lease: Some(Lease::default()), ..update("numbers") };
    let error = refused(guest.wait_for(guest.client.update_probe(request))?)?;
    ensure!(error.reason == "IN_USE", "{error:?}");
    guest.ctl_says("doctor --repair --force")?;
    ensure!(guest.tracefs("kprobe_events")? == kernel);
    guest.shell("echo 0 > /sys/kernel/tracing/events/kprobes/numbers/enable")?;
    // The daemon tries again after 30 seconds, or on request.
    guest.ctl("doctor --repair --force")?;
    ensure!(guest.tracefs("kprobe_events")?.is_empty(), "{}", guest.log());
    let gone = guest.probe("numbers")?;
    ensure!(gone.state() == ProbeState::Expired && !gone.state_message.contains("still"), "{gone:?}");
    // Its aggregation ended with it, and every watcher was notified.
    let ended = guest.machine.wait("hist", PATIENCE)?;
    ensure!(ended != Status::TimedOut, "{ended:?}");
    guest.delete("numbers")?;
    guest.delete("counted")?;
    ensure_clean(&guest)
}

fn leases_end_while_no_daemon_runs(fixture: &Fixture) -> Result<()> {
    // Listed for longer than a start of the daemon takes on a host that does other things too.
    let config = config("[leases]\nkeep_listed_s = 20");
    let mut guest = fixture.new_daemon(&config)?;
    let begun = uptime(&guest)?;
    lease(&guest, NUMBERS, 12)?;
    let granted = uptime(&guest)?;
    guest.add("p:stays __x64_sys_getppid")?;
    guest.kill()?;
    // It goes on recording: no program is there to end it.
    call(&guest, 40)?;
    ensure!(guest.tracefs("kprobe_events")?.lines().count() == 2);
    guest.until("its time is over", || Ok(uptime(&guest)? > granted + 13.0))?;
    guest.restart(&config)?;
    let probe = guest.probe("numbers")?;
    ensure!(probe.state() == ProbeState::Expired && probe.state_reason == "LEASE_ENDED", "{probe:?}");
    ensure!(!guest.tracefs("kprobe_events")?.contains("numbers"));
    // What it recorded meanwhile is in the history.
    let history = printed(&guest.ctl("observe -q -o json --oldest numbers")?);
    ensure!(history == of("kprobes/numbers", 40), "{history:?}");
    // It stays so over another restart, until the time for which it is listed has passed.
    guest.kill_and_restart()?;
    let probes = guest.probes()?;
    ensure!(
        probes.iter().all(|one| one.name != "kprobes/numbers" || one.state() == ProbeState::Expired),
        "{probes:?}"
    );
    guest.until("it is listed no more", || Ok(guest.probes()?.len() == 1))?;
    let listed = uptime(&guest)? - begun;
    ensure!(listed >= 25.0, "it was listed for {listed} seconds only");
    guest.kill_and_restart()?;
    let probes = guest.probes()?;
    ensure!(probes.len() == 1 && probes[0].name == "kprobes/stays", "{probes:?}");
    Ok(())
}

/// By how much the end of a lease that is shown may differ from the real one, in seconds.
const SLACK_S: f64 = 3.0;

fn the_wall_clock_does_not_matter(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.own_daemon("clocks", daemon::DEFAULT_CONFIG)?;
    let begun = uptime(&guest)?;
    // Long enough for all that is done while it lasts.
    let seconds = 3600;
    lease(&guest, NUMBERS, seconds)?;
    let expect = |guest: &DaemonGuest| -> Result<()> {
        // The daemon hears of the new time at once, and the test is faster.
        guest.until("the end is shown by the new time", || {
            let probe = guest.probe("numbers")?;
            ensure!(probe.state() == ProbeState::Armed, "{probe:?}");
            let end = probe.lease.and_then(|lease| lease.expire_time).context("no lease")?.seconds;
            let left = seconds as f64 - (uptime(guest)? - begun);
            Ok(((end - wall(guest)?) as f64 - left).abs() <= SLACK_S)
        })?;
        Ok(())
    };
    expect(&guest)?;
    let set = |guest: &DaemonGuest, hours: i64| {
        let now = wall(guest)? + hours * 3600;
        guest.shell(&format!("date -s @{now} > /dev/null"))
    };
    for hours in [5, -12] {
        set(&guest, hours)?;
        expect(&guest)?;
    }
    // Over a crash of the daemon, and with a clock that is set while it does not run.
    guest.kill()?;
    set(&guest, 30)?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    expect(&guest)?;
    // What ends soon ends neither at once, when the clock is far ahead, nor hours later.
    for hours in [20, -38] {
        let renewed = uptime(&guest)?;
        guest.ctl("update numbers --lease 3s")?;
        set(&guest, hours)?;
        guest.until("it expires", || Ok(state(&guest, "numbers")? == ProbeState::Expired))?;
        let lasted = uptime(&guest)? - renewed;
        ensure!((3.0..18.0).contains(&lasted), "it lasted {lasted} seconds");
    }
    Ok(())
}

fn a_lease_ends_on_a_full_disk(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    guest.stop()?;
    guest.shell("mkdir /tmp/state && mount -t tmpfs -o size=2m tmpfs /tmp/state")?;
    let config = daemon::DEFAULT_CONFIG.replace("/var/lib/kprobed", "/tmp/state");
    guest.restart(&config)?;
    lease(&guest, NUMBERS, 8)?;
    let tracer = guest.start_observing("trace 'p:held __x64_sys_getppid'")?;
    guest.shell("cd /tmp/state && for i in 1 2 3; do dd if=/dev/zero of=filler$i bs=1k 2> /dev/null; sync; done; true")?;
    let labelled = guest.wait_for(guest.client.change_labels(
        "numbers",
        [("a".to_owned(), String::new())].into(),
        vec![],
    ))?;
    ensure!(refused(labelled)?.reason == "DATABASE_FULL");
    // Neither waits for room.
    drop(tracer);
    guest.until("the hold ends", || Ok(!guest.tracefs("kprobe_events")?.contains("held")))?;
    guest.until("it expires", || Ok(state(&guest, "numbers")? == ProbeState::Expired))?;
    ensure!(guest.tracefs("kprobe_events")?.is_empty());
    // It cannot be renewed now, and says why.
    let renewed = guest.ctl_says("update numbers --renew")?;
    ensure!(renewed.code != 0 && state(&guest, "numbers")? == ProbeState::Expired, "{renewed:?}");
    ensure!(guest.tracefs("kprobe_events")?.is_empty());
    // Nothing of it could be written down, and the next daemon knows it all the same.
    guest.kill()?;
    guest.shell("rm /tmp/state/filler*")?;
    guest.restart(&config)?;
    let probes = guest.probes()?;
    ensure!(probes.len() == 1 && probes[0].state() == ProbeState::Expired, "{probes:?}");
    ensure!(guest.tracefs("kprobe_events")?.is_empty());
    guest.ctl("update numbers --lease 1h")?;
    let recording = guest.record(|| call(&guest, 3))?;
    ensure!(recording.of("kprobes/numbers", "workload").count() == 3, "{recording:?}");
    guest.kill()?;
    guest.shell("umount /tmp/state").map(drop)
}

fn a_hold_does_not_survive_the_daemon(fixture: &Fixture) -> Result<()> {
    let config = config("[tracing]\non_exit = \"keep\"");
    let mut guest = fixture.daemon_with(&config)?;
    guest.add("p:stays __x64_sys_getppid")?;
    let mut tracer = guest.start_observing(&format!("trace '{NUMBERS}'"))?;
    guest.kill()?;
    let said = tracer.end()?;
    ensure!(said.code == 4, "{said:?}");
    ensure!(guest.tracefs("kprobe_events")?.contains("numbers"), "the kernel forgets nothing by itself");
    guest.restart(&config)?;
    ensure!(guest.tracefs("kprobe_events")?.trim() == "p:kprobes/stays __x64_sys_getppid");
    ensure!(guest.probes()?.len() == 1);
    // An orderly stop leaves no such probe either, though the others go on recording.
    let mut tracer = guest.start_observing(&format!("trace '{NUMBERS}'"))?;
    guest.stop()?;
    ensure!(guest.tracefs("kprobe_events")?.trim() == "p:kprobes/stays __x64_sys_getppid");
    tracer.end()?;
    guest.restart(&config)?;
    ensure!(guest.probes()?.len() == 1);
    Ok(())
}
