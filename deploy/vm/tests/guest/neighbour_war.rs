//! A program that undoes the daemon's work at random, while probes are hit and a client observes.
//!
//! When it stops, the probes are as declared or report why not, nothing of the other program was
//! changed, and the ledger closes.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{GetLedgerResponse, Probe, ProbeState};
use kprobed_vm::machine::{Command, PATIENCE, Signal};
use kprobed_vm::protocol::Status;

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS, config_looking_every, wait};
use crate::differential::Random;
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        all_is_as_declared_or_explained,
    }
};

/// How long the neighbour goes on.
fn length() -> Duration {
    Duration::from_secs(effort::pick(8, 300))
}

/// Pauses between two of its deeds take so long at most, in milliseconds.
const LONGEST_PAUSE_MS: usize = 60;

/// What is declared: name, arguments, filter, and whether it is on.
const DECLARED: [(&str, &str, &str, bool); 4] = [
    ("plain", "", "", true),
    ("filtered", "number=+0x70(%di):u64", "number > 0", true),
    ("other", "number=+0x70(%di):u32", "", true),
    ("off", "", "", false),
];

const PLACE: &str = "__x64_sys_getsid";

/// The place at which the neighbour defines a name of the daemon's.
const TAKEN: &str = "vfs_statx";

/// What the neighbour uses itself.
const USED: &str = "p:theirs/used vfs_statx";

const KPROBES_ENABLED: &str = "/sys/kernel/debug/kprobes/enabled";

/// The calls end when it exists.
const OVER: &str = "/tmp/over";

/// Names of background processes.
const LOAD: &str = "load";
const OBSERVER: &str = "observer";
const NEIGHBOUR: &str = "neighbour";

/// What the neighbour is to do, drawn in advance, and the events that are its own afterwards.
struct War {
    script: String,
    own: BTreeSet<String>,
}

impl War {
    fn draw(random: &mut Random) -> Self {
        let mut script = vec![format!(
            "cd {TRACEFS}\nend=$(($(cut -d. -f1 /proc/uptime) + {}))\n\
             goes_on() {{ [ $(cut -d. -f1 /proc/uptime) -lt $end ]; }}\n",
            length().as_secs()
        )];
        let mut own = BTreeSet::new();
        // More than there is time for: each is undertaken whole or not at all, and what was
        // undertaken is counted.
        let deeds = usize::try_from(length().as_millis()).unwrap_or(usize::MAX) / LONGEST_PAUSE_MS * 2;
        for number in 0..deeds {
            let (name, ..) = DECLARED[random.below(DECLARED.len())];
            let each = |deed: &str| format!("for i in instances/kprobed*; do {deed}; done");
            let event = format!("$i/events/kprobes/{name}");
            let off = each(&format!("echo 0 > {event}/enable"));
            let deed = match random.below(14) {
                0 | 1 => off,
                2 => each(&format!("echo 1 > {event}/enable")),
                3 => each(&format!("echo 'common_pid == 1' > {event}/filter")),
                4 => each(&format!("echo 0 > {event}/filter")),
                5 | 6 => format!("{off}; echo '-:kprobes/{name}' >> kprobe_events"),
                7 => format!("{}; echo > kprobe_events", each("echo 0 > $i/events/enable")),
                8 => each("rmdir $i"),
                9 => each("echo 0 > $i/tracing_on"),
                10 => each("echo > $i/trace"),
                11 => format!("echo 0 > {KPROBES_ENABLED}; busybox usleep 100000; echo 1 > {KPROBES_ENABLED}"),
                // Its own, two of three with names that look like ours.
                12 => {
                    let group = random.pick(&["theirs", "kprobes", "kprobes_"]);
                    let line = format!("p:{group}/{name}{number} {TAKEN}");
                    let deed = format!("echo '{line}' >> kprobe_events && echo '{line}' >> /tmp/own");
                    own.insert(line);
                    deed
                }
                // A name of the daemon's: the first program to define it has it.
                _ => format!(
                    "{off}; echo '-:kprobes/{name}' >> kprobe_events && echo 'p:kprobes/{name} {TAKEN}' >> kprobe_events
                     busybox usleep 200000; {off}; echo '-:kprobes/{name}' >> kprobe_events"
                ),
            };
            script.push(format!(
                "goes_on || exit 0\n{deed}\necho {number} > /tmp/deeds\nbusybox usleep {}\n",
                random.below(LONGEST_PAUSE_MS) * 1000
            ));
        }
        Self { script: script.join("\n"), own }
    }
}

/// The events of others, as the kernel lists them.
fn of_others(guest: &DaemonGuest) -> Result<BTreeSet<String>> {
    let events = guest.tracefs("kprobe_events")?;
    let others = events.lines().filter(|line| !line.contains(PLACE));
    Ok(others.map(str::to_owned).collect())
}

/// Whether a probe does what is declared, or says why not.
fn is_explained(probe: &Probe) -> bool {
    probe.state() == declared(probe) || (!probe.state_reason.is_empty() && !probe.state_message.is_empty())
}

/// Whether the terms add up; those that are not known are named as such.
fn closes(ledger: &GetLedgerResponse) -> Result<()> {
    let resets: u64 = ledger.buffers.iter().map(|buffer| buffer.resets).sum();
    for probe in &ledger.probes {
        let hits = probe.hits.with_context(|| format!("{probe:?}"))?;
        ensure!(hits == probe.read + probe.undecodable + probe.not_read, "{probe:?}");
        let rest: u64 = [probe.filtered, probe.own, probe.unexplained].into_iter().flatten().sum();
        match probe.lost {
            Some(lost) => ensure!(probe.not_read == lost + probe.disabled + rest, "{probe:?}"),
            // A term that is not known has a cause.
            None => ensure!(probe.loss_is_shared || resets > 0, "{probe:?}\n{:?}", ledger.buffers),
        }
        ensure!(probe.undecodable == 0, "{probe:?}");
    }
    for ours in &ledger.subscribers {
        let told =
            ours.delivered + ours.queued + ours.dropped + ours.limited + ours.sampled_out + ours.filtered;
        ensure!(ours.read == told + ours.not_selected, "{ours:?}");
    }
    Ok(())
}

/// The state that a probe is to have.
fn declared(probe: &Probe) -> ProbeState {
    if probe.enabled { ProbeState::Armed } else { ProbeState::Disabled }
}

fn all_is_as_declared_or_explained(fixture: &Fixture) -> Result<()> {
    let mut random = Random::of_theme("neighbour_war");
    let guest = fixture.daemon_with(&config_looking_every(200))?;
    let filters = declare(&guest)?;
    let war = War::draw(&mut random);
    let seen = wage(&guest, &war)?;
    settle(&guest, &filters)?;
    // What the neighbour made is there as it made it, and nothing else.
    let kept: BTreeSet<String> = guest.shell("cat /tmp/own")?.lines().map(str::to_owned).collect();
    ensure!(kept.iter().all(|line| line == USED || war.own.contains(line)), "{kept:?}");
    let listed = of_others(&guest)?;
    ensure!(listed == kept, "{:?}\n{}", listed.symmetric_difference(&kept).collect::<Vec<_>>(), guest.log());
    let used = "instances/theirs/events/theirs/used";
    ensure!(guest.tracefs(&format!("{used}/enable"))?.trim() == "1");
    ensure!(guest.tracefs(&format!("{used}/filter"))?.trim() == "common_pid > 1");
    let recording = guest.record(|| guest.workload(&["numbers", "1000000", "50"]).map(drop))?;
    for (name, _, _, enabled) in DECLARED {
        let count = recording.of(&format!("kprobes/{name}"), "workload").count();
        ensure!(count == if enabled { 50 } else { 0 }, "{name}: {count}");
    }
    let ledger = guest.ledger()?;
    ensure!(ledger.problems.is_empty(), "{:?}", ledger.problems);
    closes(&ledger)?;
    fixture.note(format_args!(
        "{} deeds of the neighbour in {:.0?}, {} of {} states that were looked at were disturbed, 0 unexplained; {} events of its own, 0 \
         touched",
        seen.deeds,
        length(),
        seen.disturbed,
        seen.looks,
        kept.len()
    ));
    guest.machine.signal(OBSERVER, Signal::SIGKILL)?;
    guest
        .shell(&format!("cd {TRACEFS}/instances/theirs && echo 0 > events/enable && rmdir ../theirs"))
        .map(drop)
}

/// What is declared, what the neighbour uses itself all the time, calls that the probes see, and a
/// client that observes them. Returns the filters that the kernel has then: with a condition of the daemon's, that the
/// field could be read.
fn declare(guest: &DaemonGuest) -> Result<Vec<String>> {
    let mut filters = Vec::new();
    for (name, arguments, filter, enabled) in DECLARED {
        guest.add(&format!("p:{name} {PLACE} {arguments}"))?;
        if !filter.is_empty() {
            guest.wait_for(guest.client.set_filter(name, filter))??;
        }
        guest.wait_for(guest.client.set_enabled(name, enabled))??;
        let in_kernel = guest.in_instance(&format!("events/kprobes/{name}/filter"))?.trim().to_owned();
        let expected = if filter.is_empty() { in_kernel == "none" } else { in_kernel.contains(filter) };
        ensure!(expected, "{name}: {in_kernel}");
        filters.push(in_kernel);
    }
    guest.shell(&format!(
        "cd {TRACEFS}; mkdir instances/theirs; echo '{USED}' >> kprobe_events
         echo 1 > instances/theirs/events/theirs/used/enable
         echo 'common_pid > 1' > instances/theirs/events/theirs/used/filter
         echo '{USED}' > /tmp/own; echo 0 > /tmp/deeds"
    ))?;
    let calls = ["numbers", "1000000", "500000000", "--pause-us", "300", "--until", OVER];
    guest.machine.spawn(LOAD, &Command::new("workload").args(calls))?;
    guest.machine.spawn(OBSERVER, &Command::shell("exec kprobectl observe > /dev/null"))?;
    Ok(filters)
}

/// What was seen of a war.
#[derive(Default)]
struct Seen {
    deeds: usize,
    looks: usize,
    disturbed: usize,
}

/// Lets the neighbour do all of it, and looks at the states meanwhile.
fn wage(guest: &DaemonGuest, war: &War) -> Result<Seen> {
    guest.machine.put("/tmp/war.sh", 0o755, war.script.as_bytes())?;
    guest.machine.spawn(NEIGHBOUR, &Command::shell("exec sh /tmp/war.sh 2> /dev/null"))?;
    let (mut seen, mut unexplained) = (Seen::default(), Vec::new());
    loop {
        let status = guest.machine.wait(NEIGHBOUR, Duration::from_secs(1))?;
        for probe in guest.probes()? {
            seen.looks += 1;
            seen.disturbed += usize::from(probe.state() != declared(&probe));
            if !is_explained(&probe) {
                unexplained.push(format!("{probe:?}"));
            }
            // As a user does when the state says that the probe is left alone; the neighbour may
            // take it away again meanwhile.
            if probe.state() == ProbeState::Failed {
                drop(guest.wait_for(guest.client.set_enabled(&probe.name, probe.enabled))?);
            }
        }
        if status != Status::TimedOut {
            ensure!(status.success(), "{status:?}");
            break;
        }
    }
    ensure!(unexplained.is_empty(), "{unexplained:#?}");
    ensure!(seen.disturbed > 0, "nothing that the neighbour did was seen");
    seen.deeds = guest.shell("cat /tmp/deeds")?.trim().parse()?;
    ensure!(seen.deeds > 0, "the neighbour did nothing");
    guest.shell(&format!("echo 1 > {KPROBES_ENABLED}; touch {OVER}"))?;
    // Names of the daemon's that the neighbour has not returned: the daemon was using them.
    for (name, ..) in DECLARED {
        guest.shell(&format!(
            "cd {TRACEFS}; while grep -q 'kprobes/{name} {TAKEN}' kprobe_events; do \
             for i in instances/kprobed*; do echo 0 > $i/events/kprobes/{name}/enable; done; echo '-:kprobes/{name}' >> kprobe_events; done; true"
        ))?;
    }
    guest.machine.wait(LOAD, PATIENCE)?;
    Ok(seen)
}

/// Waits until everything is as declared again.
fn settle(guest: &DaemonGuest, filters: &[String]) -> Result<()> {
    // A probe that was left alone is repaired again on request.
    for (name, _, _, enabled) in DECLARED {
        drop(guest.wait_for(guest.client.set_enabled(name, enabled))?);
    }
    let missing = || format!("{:#?}\n{}", guest.probes(), guest.log());
    wait(PATIENCE, missing, || {
        let probes = guest.probes()?;
        let are_all = probes.len() == DECLARED.len();
        Ok((are_all && probes.iter().all(|probe| probe.state() == declared(probe))).then_some(()))
    })?;
    for ((name, _, _, enabled), filter) in DECLARED.into_iter().zip(filters) {
        let event = format!("events/kprobes/{name}");
        ensure!(guest.in_instance(&format!("{event}/filter"))?.trim() == filter, "{name}");
        let switch = if enabled { "1" } else { "0" };
        ensure!(guest.in_instance(&format!("{event}/enable"))?.trim() == switch, "{name}");
    }
    Ok(())
}
