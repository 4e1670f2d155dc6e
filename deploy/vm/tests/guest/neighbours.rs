//! Other programs in tracefs: their events are left unchanged, and their changes to the daemon's
//! probes are reported, and repaired on request.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{BufferLedger, CheckStatus, CreateProbeRequest, ProbeLedger, ProbeState};
use kprobed_client::event::LossCause;
use kprobed_vm::daemon;

use crate::Test;
use crate::daemon::{DaemonGuest, NUMBERS, TRACEFS, config_looking_every, creation, deletion, refused};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        what_others_made_is_left_alone,
        armed_is_what_the_kernel_does,
    }
    Seldom {
        others_outlive_a_stop_and_a_start,
        what_is_taken_away_is_told,
        what_was_changed_for_a_moment_is_told_and_undone,
    }
};

/// The state that `get` and `list` show, which is the same.
fn expect(guest: &DaemonGuest, name: &str, state: ProbeState, reason: &str) -> Result<()> {
    let probe = guest.probe(name)?;
    let listed = guest.probes()?.into_iter().find(|listed| listed.name == probe.name);
    ensure!(probe.state() == state && probe.state_message.contains(reason), "{probe:?}\n{}", guest.log());
    ensure!(
        listed
            .is_some_and(|listed| (listed.state, &listed.state_reason) == (probe.state, &probe.state_reason))
    );
    Ok(())
}

/// Another program removes the daemon's event, which the kernel allows only while it is off
/// everywhere.
fn remove_behind_our_back(guest: &DaemonGuest, name: &str) -> Result<()> {
    let instance = guest.instance()?;
    guest.shell(&format!(
        "echo 0 > {instance}/events/{name}/enable; echo '-:{name}' >> {TRACEFS}/kprobe_events"
    ))?;
    Ok(())
}

fn delete(guest: &DaemonGuest, name: &str) -> Result<String> {
    let outcomes = guest.wait_for(guest.client.delete_probes(vec![deletion(name)]))??;
    let outcome = outcomes.into_iter().next().context("no answer")?;
    Ok(outcome?.note)
}

fn what_others_made_is_left_alone(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:fork kernel_clone")?;
    remove_behind_our_back(&guest, "kprobes/fork")?;
    let theirs = "p:kprobes/fork vfs_statx";
    let event = "events/kprobes/fork";
    guest.shell(&format!(
        "echo '{theirs}' >> {TRACEFS}/kprobe_events; mkdir {TRACEFS}/instances/theirs
         echo 1 > {TRACEFS}/instances/theirs/{event}/enable; echo 'common_pid > 1' > {TRACEFS}/{event}/filter"
    ))?;
    expect(&guest, "fork", ProbeState::Failed, "another program's")?;
    let untouched = |guest: &DaemonGuest| -> Result<()> {
        ensure!(guest.tracefs("kprobe_events")?.trim() == theirs, "{}", guest.tracefs("kprobe_events")?);
        ensure!(guest.tracefs(&format!("instances/theirs/{event}/enable"))?.trim() == "1");
        ensure!(guest.tracefs(&format!("{event}/filter"))?.trim() == "common_pid > 1");
        ensure!(guest.in_instance(&format!("{event}/enable"))?.trim() == "0");
        Ok(())
    };
    ensure!(
        refused(guest.wait_for(guest.client.set_enabled("fork", true))?)?.reason == "FOREIGN_EVENT_EXISTS"
    );
    ensure!(
        refused(guest.wait_for(guest.client.set_filter("fork", "common_pid > 2"))?)?.reason
            == "NOT_IN_KERNEL"
    );
    untouched(&guest)?;
    // Off is what it is.
    guest.wait_for(guest.client.set_enabled("fork", false))??;
    untouched(&guest)?;
    let note = delete(&guest, "fork")?;
    ensure!(note.contains("left alone") && guest.probes()?.is_empty(), "{note}");
    untouched(&guest)?;
    guest.shell(&format!(
        "echo 0 > {TRACEFS}/instances/theirs/{event}/enable; rmdir {TRACEFS}/instances/theirs; echo '-:kprobes/fork' >> {TRACEFS}/kprobe_events"
    ))?;

    // The kernel takes several probes of one name: of those only ours goes. One is elsewhere, one
    // records something else there. One word of it is longer than what the kernel compares.
    let long = "a_name_of_thirty_one_characters=+1000(+1008(+1016(+1024(%di)))):x64";
    for (definition, line) in [
        ("p:shared vfs_read x=%di".to_owned(), "p:kprobes/shared vfs_write x=%di".to_owned()),
        ("p:shared vfs_read x=%di".to_owned(), "p:kprobes/shared vfs_read x=%si".to_owned()),
        (
            format!("p:shared vfs_read {long}"),
            format!("p:kprobes/shared vfs_write {}", long.replace("%di", "%si")),
        ),
    ] {
        let ours = guest.add(&definition)?;
        // Ours has hidden arguments too: others have to have all of them to be taken.
        let rest = ours.kernel_definition.split(' ').skip(3).collect::<Vec<_>>().join(" ");
        guest.shell(&format!("echo '{line} {rest}' >> {TRACEFS}/kprobe_events"))?;
        let theirs = guest.tracefs("kprobe_events")?.lines().last().unwrap_or_default().to_owned();
        ensure!(guest.tracefs("kprobe_events")?.lines().count() == 2, "{}", guest.tracefs("kprobe_events")?);
        expect(&guest, "shared", ProbeState::Drifted, "added a probe point")?;
        let note = delete(&guest, "shared")?;
        ensure!(guest.tracefs("kprobe_events")?.trim() == theirs, "{}", guest.tracefs("kprobe_events")?);
        ensure!(note.contains("left alone"), "{note}");
        guest.shell(&format!("echo '-:kprobes/shared' >> {TRACEFS}/kprobe_events"))?;
    }
    Ok(())
}

/// Whether calls of `getppid` arrive, and what the state says.
fn records(guest: &DaemonGuest, name: &str) -> Result<bool> {
    let name = format!("kprobes/{name}");
    let recording = guest.record(|| guest.workload(&["getppid", "5"]).map(drop))?;
    let arrived = recording.of(&name, "workload").count();
    let state = guest.probe(&name)?.state();
    ensure!((arrived > 0) == (state == ProbeState::Armed), "{arrived} events, and the state is {state:?}");
    Ok(arrived >= 5)
}

/// Enables a probe, which then records.
fn repair(guest: &DaemonGuest, name: &str) -> Result<()> {
    let probe = guest.wait_for(guest.client.set_enabled(name, true))??;
    ensure!(
        probe.state() == ProbeState::Armed && probe.state_reason.is_empty(),
        "{probe:?}\n{}",
        guest.log()
    );
    ensure!(records(guest, name)?, "{}", guest.log());
    ensure!(guest.host_check("probes")?.status() == CheckStatus::Ok && guest.ledger()?.problems.is_empty());
    Ok(())
}

fn armed_is_what_the_kernel_does(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:calls __x64_sys_getppid")?;
    ensure!(records(&guest, "calls")?);
    let instance = guest.instance()?;
    let event = format!("{instance}/events/kprobes/calls");
    let drifted = |script: &str, reason: &str| -> Result<()> {
        guest.shell(script)?;
        expect(&guest, "calls", ProbeState::Drifted, reason)?;
        let found = guest.host_check("probes")?;
        ensure!(found.status() == CheckStatus::Failed && found.finding.contains(reason), "{found:?}");
        let problems = guest.ledger()?.problems;
        ensure!(problems.len() == 1 && problems[0].message.contains(reason), "{problems:?}");
        Ok(())
    };
    drifted(&format!("echo 0 > {instance}/events/enable"), "is switched off")?;
    ensure!(!records(&guest, "calls")?);
    repair(&guest, "calls")?;
    drifted(&format!("echo 0 > {instance}/tracing_on"), "tracing_on")?;
    ensure!(guest.host_check("recording")?.status() == CheckStatus::Failed && !records(&guest, "calls")?);
    repair(&guest, "calls")?;
    for (file, value, id) in [
        ("set_event_pid", "2", "recorded_tasks"),
        ("tracing_cpumask", "0", "recorded_cpus"),
        ("set_event_notrace_pid", "1", "recorded_tasks"),
        ("options/pause-on-trace", "1", "instance_options"),
    ] {
        drifted(&format!("echo {value} > {instance}/{file}"), file)?;
        ensure!(guest.host_check(id)?.status() == CheckStatus::Failed, "{:?}", guest.host_check(id)?);
        repair(&guest, "calls")?;
        ensure!(guest.host_check(id)?.status() == CheckStatus::Ok, "{:?}", guest.host_check(id)?);
    }
    drifted(&format!("echo 2 > {instance}/set_event_pid"), "set_event_pid")?;
    ensure!(!records(&guest, "calls")?);
    guest.shell(&format!("echo > {instance}/set_event_pid"))?;
    ensure!(records(&guest, "calls")?);
    drifted(&format!("echo 'common_pid == 1' > {event}/filter"), "`common_pid == 1`")?;
    repair(&guest, "calls")?;
    guest.wait_for(guest.client.set_filter("calls", "common_pid != 1"))??;
    drifted(&format!("echo 0 > {event}/filter"), "removed its filter")?;
    repair(&guest, "calls")?;
    ensure!(guest.in_instance("events/kprobes/calls/filter")?.trim() == "common_pid != 1");

    // What was removed is not armed, and is defined anew when it is enabled, with its filter.
    remove_behind_our_back(&guest, "kprobes/calls")?;
    expect(&guest, "calls", ProbeState::Failed, "removed its event")?;
    ensure!(guest.ledger()?.problems.len() == 1);
    repair(&guest, "calls")?;
    ensure!(guest.in_instance("events/kprobes/calls/filter")?.trim() == "common_pid != 1");
    let ledger = guest.ledger_of("kprobes/calls")?;
    ensure!(ledger.hits >= Some(5) && ledger.read >= 5, "{ledger:?}");

    // And off is off.
    guest.wait_for(guest.client.set_enabled("calls", false))??;
    expect(&guest, "calls", ProbeState::Disabled, "")?;
    guest.shell(&format!("echo 1 > {event}/enable"))?;
    expect(&guest, "calls", ProbeState::Drifted, "switched its event on")?;
    let probe = guest.wait_for(guest.client.set_enabled("calls", false))??;
    ensure!(probe.state() == ProbeState::Disabled, "{probe:?}");
    ensure!(guest.in_instance("events/kprobes/calls/enable")?.trim() == "0");

    // So it is with an event of the host.
    let name = "syscalls/sys_enter_getpgid";
    guest.record_filtered(name, "common_pid > 3")?;
    for (file, value, reason) in [
        ("enable", "0", "is switched off"),
        ("filter", "0", "removed its filter"),
        ("filter", "common_pid > 4", "`common_pid > 4`"),
    ] {
        expect(&guest, name, ProbeState::Armed, "")?;
        guest.shell(&format!("echo '{value}' > {instance}/events/{name}/{file}"))?;
        expect(&guest, name, ProbeState::Drifted, reason)?;
        guest.wait_for(guest.client.set_enabled(name, true))??;
    }
    expect(&guest, name, ProbeState::Armed, "")?;
    ensure!(guest.in_instance(&format!("events/{name}/filter"))?.trim() == "common_pid > 3");
    Ok(())
}

/// The files of the daemon's instance that keep events from being recorded, with a script for each that
/// `workload` follows, and one that undoes it.
fn harms(instance: &str) -> [(&'static str, String, String); 5] {
    let set = |file: &str, value: &str| format!("echo {value} > {instance}/{file}");
    let all = format!("cat {TRACEFS}/tracing_cpumask > {instance}/tracing_cpumask");
    [
        ("tracing_cpumask", set("tracing_cpumask", "0"), all),
        ("set_event_pid", set("set_event_pid", "1"), set("set_event_pid", "")),
        // What it starts is left out as well.
        (
            "set_event_notrace_pid",
            format!("echo $$ >> {instance}/set_event_notrace_pid\nsleep 5 > /dev/null 2>&1 &"),
            "true".to_owned(),
        ),
        ("tracing_on", set("tracing_on", "0"), set("tracing_on", "1")),
        (
            "filter",
            set("events/kprobes/numbers/filter", "'n == 100000'"),
            set("events/kprobes/numbers/filter", "0"),
        ),
    ]
}

/// The ledger of the probe, which the daemon itself never hits: the sum closes, and nothing is called the
/// daemon's own or held back.
fn closed(guest: &DaemonGuest, calls: u64) -> Result<ProbeLedger> {
    let numbers = guest.ledger_of("kprobes/numbers")?;
    let parts = [numbers.lost, numbers.own, numbers.filtered, numbers.unexplained, Some(numbers.disabled)];
    ensure!(numbers.hits == Some(calls), "{numbers:?}");
    ensure!(numbers.hits == Some(numbers.read + numbers.undecodable + numbers.not_read), "{numbers:?}");
    ensure!(parts.iter().flatten().sum::<u64>() == numbers.not_read, "{numbers:?}");
    ensure!(numbers.own.unwrap_or(0) == 0 && numbers.filtered.unwrap_or(0) == 0, "{numbers:?}");
    Ok(numbers)
}

/// The daemon does not look by itself here: what is changed stays changed until it is undone.
fn what_is_taken_away_is_told(fixture: &Fixture) -> Result<()> {
    const CALLS: u64 = 300;
    let guest = fixture.daemon()?;
    let instance = guest.instance()?;
    for (name, harm, undo) in harms(&instance) {
        guest.add(NUMBERS)?;
        let recording = guest.record(|| {
            guest.shell(&format!("{harm}\nworkload numbers 1 {CALLS}"))?;
            // A reading of the ledger reports what is missing, before the next event.
            let missing = closed(&guest, CALLS)?;
            ensure!(missing.unexplained == Some(CALLS) && missing.lost == Some(0), "{name}: {missing:?}");
            guest.shell(&undo)?;
            guest.wait_for(guest.client.set_enabled("numbers", true))??;
            guest.workload(&["numbers", "1", "10"]).map(drop)
        })?;
        let told = recording.losses.iter().filter(|loss| loss.cause == LossCause::Unexplained).count();
        ensure!(told == 1, "{name}: {:?}", recording.losses);
        ensure!(recording.of("kprobes/numbers", "workload").count() == 10, "{name}: {recording:?}");
        let shown = guest.ctl("ledger")?;
        ensure!(shown.contains("not every hit is explained"), "{name}: {shown}");
        delete(&guest, "numbers")?;
    }

    // A reader of the same buffers: each event is either read or taken, and those that are taken are
    // counted.
    guest.add(NUMBERS)?;
    let lost = || -> Result<(u64, u64)> {
        let buffers = guest.ledger()?.buffers;
        let refused = |buffer: &BufferLedger| buffer.overrun + buffer.commit_overrun + buffer.dropped_events;
        Ok((buffers.iter().map(|buffer| buffer.taken).sum(), buffers.iter().map(refused).sum()))
    };
    let before = lost()?;
    let (calls, readers) = (20_000, format!("for raw in {instance}/per_cpu/cpu*/trace_pipe_raw"));
    let recording = guest.record(|| {
        guest.shell(&format!(
            "pids=; {readers}; do cat $raw > /dev/null & pids=\"$pids $!\"; done
             workload numbers 1 {calls}
             for stats in {instance}/per_cpu/cpu*/stats; do until grep -q '^entries: 0$' $stats; do sleep 0.1; done; done
             kill $pids; wait; true"
        ))?;
        guest.ledger()?;
        guest.workload(&["numbers", "1", "10"]).map(drop)
    })?;
    let missing = closed(&guest, calls + 10)?;
    let now = lost()?;
    let (taken, refused) = (now.0 - before.0, now.1 - before.1);
    ensure!(
        taken > 0 && missing.lost == Some(taken + refused) && missing.unexplained == Some(0),
        "{taken} {refused}: {missing:?}"
    );
    let told = recording.losses.iter().filter(|loss| loss.cause == LossCause::Taken);
    let told: u64 = told.filter_map(|loss| loss.count).sum();
    ensure!(told == taken, "{taken}: {:?}", recording.losses);
    delete(&guest, "numbers")?;

    // A deletion replaces the instance: what was changed in the last one is not forgotten.
    guest.add(NUMBERS)?;
    guest.add("p:other __x64_sys_getpgid")?;
    let instance = guest.instance()?;
    guest.shell(&format!("echo 0 > {instance}/tracing_cpumask\nworkload numbers 1 {CALLS}"))?;
    delete(&guest, "other")?;
    let missing = closed(&guest, CALLS)?;
    ensure!(missing.unexplained == Some(CALLS), "{missing:?}");
    delete(&guest, "numbers").map(drop)
}

/// A change that is undone before anybody looks leaves its notice, and one that stays is repaired.
fn what_was_changed_for_a_moment_is_told_and_undone(fixture: &Fixture) -> Result<()> {
    const CALLS: u64 = 300;
    let guest = fixture.daemon_with(&config_looking_every(3_600_000))?;
    let instance = guest.instance()?;
    let mut hurt = 0;
    for (name, harm, undo) in harms(&instance) {
        if name == "filter" {
            // The files of single events are only compared.
            continue;
        }
        guest.add(NUMBERS)?;
        let recording = guest.record(|| {
            guest.shell(&format!("{harm}\nworkload numbers 1 {CALLS}; {undo}"))?;
            closed(&guest, CALLS)?;
            guest.until("the repair", || Ok(guest.ledger()?.problems.is_empty()))?;
            guest.workload(&["numbers", "1", "10"]).map(drop)
        })?;
        let missing = closed(&guest, CALLS + 10)?;
        // The daemon can have repaired it before the first call.
        hurt += missing.not_read;
        ensure!(missing.unexplained == Some(missing.not_read), "{name}: {missing:?}");
        let told = recording.losses.iter().filter(|loss| loss.cause == LossCause::Unexplained).count();
        ensure!((told > 0) == (missing.not_read > 0), "{name}: {missing:?} {:?}", recording.losses);
        ensure!(recording.of("kprobes/numbers", "workload").count() >= 10, "{name}: {recording:?}");
        ensure!(guest.probe("numbers")?.state() == ProbeState::Armed, "{name}: {}", guest.log());
        delete(&guest, "numbers")?;
    }
    ensure!(hurt > 0, "nothing was ever missing");
    for (file, value) in [("tracing_cpumask", "0"), ("set_event_pid", "1")] {
        guest.add(NUMBERS)?;
        guest.shell(&format!("echo {value} > {instance}/{file}"))?;
        let wanted = guest.tracefs(file)?;
        guest.until("the repair", || Ok(guest.in_instance(file)? == wanted))?;
        delete(&guest, "numbers")?;
    }
    Ok(())
}

fn others_outlive_a_stop_and_a_start(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    guest.add("p:mine vfs_fsync_range")?;
    guest.add("p:calls __x64_sys_getppid")?;
    guest.add("p:other __x64_sys_getpgid")?;
    guest.wait_for(guest.client.set_enabled("other", false))??;
    remove_behind_our_back(&guest, "kprobes/mine")?;
    let theirs = "p:kprobes/mine vfs_statx";
    guest.shell(&format!("echo '{theirs}' >> {TRACEFS}/kprobe_events"))?;
    guest.stop()?;
    ensure!(guest.tracefs("kprobe_events")?.trim() == theirs, "{}", guest.tracefs("kprobe_events")?);
    guest.restart(daemon::DEFAULT_CONFIG)?;
    expect(&guest, "mine", ProbeState::Failed, "kprobed did not define it")?;
    ensure!(guest.tracefs("kprobe_events")?.starts_with(theirs));
    guest.shell(&format!("echo '-:kprobes/mine' >> {TRACEFS}/kprobe_events"))?;
    let probe = guest.wait_for(guest.client.set_enabled("mine", true))??;
    ensure!(probe.state() == ProbeState::Armed, "{probe:?}");

    // While the daemon is dead, another program can take its events.
    let instance = guest.instance()?;
    guest.kill()?;
    guest.shell(&format!(
        "cd {TRACEFS}; echo 0 > {instance}/events/kprobes/mine/enable; echo '-:kprobes/mine' >> kprobe_events; echo '{theirs}' >> kprobe_events
         echo 0 > /sys/kernel/debug/kprobes/enabled"
    ))?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    expect(&guest, "mine", ProbeState::Failed, "kprobed did not define it")?;
    delete(&guest, "mine")?;
    ensure!(guest.tracefs("kprobe_events")?.contains(theirs));

    // Kprobes are off on the whole host now: nothing is armed, and nothing pretends to be.
    expect(&guest, "calls", ProbeState::Drifted, "kprobes are switched off")?;
    ensure!(
        !records(&guest, "calls")? && guest.host_check("kprobes_enabled")?.status() == CheckStatus::Failed
    );
    ensure!(guest.refusal("p:new __x64_sys_getppid")?.reason == "KPROBES_DISABLED");
    for name in ["calls", "other"] {
        ensure!(refused(guest.wait_for(guest.client.set_enabled(name, true))?)?.reason == "KPROBES_DISABLED");
    }
    let off = CreateProbeRequest { enabled: false, ..creation("p:new __x64_sys_getsid", "") };
    guest.wait_for(guest.client.create_probe(off))??;
    // Another program toggles the daemon's probe while kprobes are off: the kernel (6.1) then
    // leaves it unarmed.
    let event = format!("{}/events/kprobes/calls/enable", guest.instance()?);
    guest
        .shell(&format!("echo 0 > {event}; echo 1 > {event}; echo 1 > /sys/kernel/debug/kprobes/enabled"))?;
    records(&guest, "calls")?;
    repair(&guest, "calls")?;
    // One that is off when the daemon starts is not switched on for nothing.
    let instance = guest.instance()?;
    guest.kill()?;
    guest.shell("echo 0 > /sys/kernel/debug/kprobes/enabled")?;
    guest.shell(&format!("echo 0 > {event}"))?;
    // An instance that is taken over records for all CPUs and tasks.
    guest.shell(&format!("echo 0 > {instance}/tracing_cpumask; echo 1 > {instance}/set_event_pid"))?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    for file in ["tracing_cpumask", "set_event_pid"] {
        ensure!(guest.in_instance(file)? == guest.tracefs(file)?, "{file}: {}", guest.in_instance(file)?);
    }
    guest.shell("echo 1 > /sys/kernel/debug/kprobes/enabled")?;
    records(&guest, "calls")?;
    repair(&guest, "calls")?;
    let probe = guest.wait_for(guest.client.set_enabled("other", true))??;
    ensure!(probe.state() == ProbeState::Armed, "{probe:?}");

    let instance = guest.instance()?;
    let kib: u64 = guest.in_instance("buffer_size_kb")?.trim().parse()?;
    let (half, whole) = ((kib / 2).to_string(), kib.to_string());
    for (id, file, other, own) in [
        ("trace_clock", "trace_clock", "global", "boot"),
        ("buffer_size", "buffer_size_kb", half.as_str(), whole.as_str()),
    ] {
        ensure!(guest.host_check(id)?.status() == CheckStatus::Ok, "{:?}", guest.host_check(id)?);
        guest.shell(&format!("echo {other} > {instance}/{file}"))?;
        let found = guest.host_check(id)?;
        ensure!(found.status() != CheckStatus::Ok && !found.fix.is_empty(), "{found:?}");
        guest.shell(&format!("echo {own} > {instance}/{file}"))?;
    }
    Ok(())
}
