//! A fault at each step of each kind of change: the daemon dies, the kernel refuses, the disk does, or it is full from then on. What was
//! acknowledged is there afterwards, and what was not is there as a whole or not at all.
//!
//! In CI each kind of change meets one fault at a drawn step. With `--effort full` every step meets all four; `KPROBED_VM_CRASH=delete,stop`
//! does that for the named kinds only, and `KPROBED_VM_CRASH=delete:full` with one of the faults.

use std::collections::BTreeMap;
use std::env;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_client::api::UpdateProbeRequest;
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome;
use kprobed_vm::machine::Command;
use kprobed_vm::protocol::Status;
use kprobed_vm::{daemon, progress};

use crate::Test;
use crate::crash_plans::{Act, PLANS, Plan, base, create, creations, delete, deletions, update};
use crate::crash_state::{Fate, Model, Possible, check, check_live};
use crate::daemon::{DaemonGuest, TRACEFS};
use crate::differential::Random;
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = &[
    ("nothing_acknowledged_is_lost", nothing_acknowledged_is_lost),
    ("a_lost_acknowledgement_is_noticed", a_lost_acknowledgement_is_noticed),
];

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// Name of the process that makes the fault, and where it says what it does.
pub(crate) const FAULTS: &str = "faults";
const STEPS: &str = "/run/log/faults.log";

/// How long a daemon may take that is traced, in an emulated guest.
const PATIENCE: Duration = Duration::from_mins(1);

/// What the program in the guest that makes faults calls them.
const FAULT_KINDS: [&str; 4] = ["kill", "kernel", "disk", "full"];

/// Those that strike at the database only: a change may not write to it.
const OF_THE_DISK: [&str; 2] = ["disk", "full"];

/// Steps among which CI draws at first. A kind of change that has fewer is drawn for once more, among those that were seen.
const FIRST_STEPS: usize = 12;

/// Brings the daemon from what it has to the state that each case begins with.
fn rebase(guest: &DaemonGuest, from: &Model) -> Result<()> {
    let base = base();
    for changes in [deletions(from, &base), creations(from, &base)] {
        if !changes.is_empty() {
            for outcome in guest.wait_for(guest.client.apply_probes(changes))?? {
                outcome?;
            }
        }
    }
    Ok(())
}

/// What became of the changes, as the client saw it.
fn make(guest: &DaemonGuest, act: &Act) -> Result<Fate> {
    let (changes, whole) = match act {
        Act::Each(changes) => (changes, false),
        Act::Whole(changes) => (changes, true),
        Act::Repair => {
            let repairs = ["keep", "target"].map(|name| {
                // As a person asks for it; the look of every half minute does the same.
                Change::Update(UpdateProbeRequest { enabled: Some(true), ..update(name) })
            });
            return make(guest, &Act::Each(repairs.into()));
        }
        Act::Start | Act::Recover | Act::Stop => return Ok(Fate::nothing_asked()),
    };
    let outcomes = if whole {
        guest.wait_for(guest.client.apply_all_or_nothing(changes.clone()))?
    } else {
        guest.wait_for(guest.client.apply_probes(changes.clone()))?
    };
    Ok(Fate::of(&base(), changes, whole, &outcomes))
}

/// The program that makes the fault follows the daemon.
pub(crate) fn follow(guest: &DaemonGuest, fault: &str, at: usize) -> Result<()> {
    // The log of a process goes on where the last one of that name has ended.
    guest.shell(&format!("rm -f {STEPS}"))?;
    let follow = format!("exec workload faults $(cat /tmp/daemon.pid) {fault} {at}");
    guest.machine.spawn(FAULTS, &Command::shell(follow))?;
    let begun = Instant::now();
    while !steps(guest)?.contains("ready") {
        ensure!(begun.elapsed() < PATIENCE, "{}", steps(guest)?);
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

pub(crate) fn steps(guest: &DaemonGuest) -> Result<String> {
    Ok(String::from_utf8_lossy(&guest.machine.get(STEPS)?).into_owned())
}

/// Waits until a process has ended.
fn ended(guest: &DaemonGuest, process: &str) -> Result<Status> {
    let status = guest.machine.wait(process, Some(PATIENCE))?;
    ensure!(status != Status::TimedOut, "{process} does not end\n{}", guest.log());
    Ok(status)
}

/// Starts the daemon with a fault. Whether it answers; when not, it has ended.
fn start(guest: &mut DaemonGuest, fault: &str, at: usize) -> Result<bool> {
    guest.shell("rm -f /tmp/daemon.pid")?;
    let stopped = "echo $$ > /tmp/daemon.pid; kill -STOP $$; exec kprobed --config /etc/kprobed/kprobed.toml";
    guest.machine.spawn(daemon::NAME, &Command::shell(stopped))?;
    guest.shell(
        "until grep -q 'State:.T' /proc/$(cat /tmp/daemon.pid)/status; do busybox usleep 10000; done",
    )?;
    follow(guest, fault, at)?;
    // A process that is let go of while its stop was not ended stops again (`__ptrace_unlink` in kernel/ptrace.c).
    guest.shell("kill -CONT $(cat /tmp/daemon.pid)")?;
    let begun = Instant::now();
    loop {
        if guest.machine.wait(daemon::NAME, Some(Duration::from_millis(200)))? != Status::TimedOut {
            return Ok(false);
        }
        if guest.connect_again().is_ok() && guest.probes().is_ok() {
            return Ok(true);
        }
        ensure!(begun.elapsed() < PATIENCE, "it does not answer\n{}", guest.log());
    }
}

/// One case: what was done up to the fault, and whether there was one.
struct Case {
    steps: Vec<String>,
    is_hit: bool,
    acknowledged: usize,
}

/// Makes one fault, and checks what is there afterwards. The guest has the base before and after it.
fn case(guest: &mut DaemonGuest, act: &Act, fault: &str, at: usize) -> Result<Case> {
    let mut is_alive = true;
    let fate = match act {
        Act::Start | Act::Recover => {
            if matches!(act, Act::Start) {
                ensure!(guest.stop()?.success(), "{}", guest.log());
                // The daemon has taken its mount with it, and others need it.
                guest
                    .shell(&format!("[ -e {TRACEFS}/kprobe_events ] || mount -t tracefs nodev {TRACEFS}"))?;
            } else {
                guest.machine.kill(daemon::NAME, SIGKILL)?;
                ended(guest, daemon::NAME)?;
            }
            is_alive = start(guest, fault, at)?;
            Fate::nothing_asked()
        }
        act => {
            if matches!(act, Act::Repair) {
                let ours = format!("{}/events/kprobes", guest.instance()?);
                guest.shell(&format!(
                    "echo 0 > {ours}/keep/enable; echo 0 > {ours}/target/enable; echo '-:kprobes/target' >> {TRACEFS}/kprobe_events"
                ))?;
            }
            guest.shell("pidof kprobed > /tmp/daemon.pid")?;
            follow(guest, fault, at)?;
            if matches!(act, Act::Stop) {
                guest.machine.kill(daemon::NAME, SIGTERM)?;
                ended(guest, daemon::NAME)?;
                is_alive = false;
                Fate::nothing_asked()
            } else {
                make(guest, act)?
            }
        }
    };
    let mut said = steps(guest)?;
    let mut is_hit = said.lines().any(|line| line == "fault");
    if is_alive && is_hit && fault == "kill" {
        ensure!(ended(guest, daemon::NAME)? == Status::Signaled(SIGKILL));
        is_alive = false;
    }
    if is_alive {
        // Without the one that follows it, it runs on; nothing more fails.
        guest.machine.kill(FAULTS, SIGKILL)?;
    }
    ended(guest, FAULTS)?;
    if is_alive {
        said = steps(guest)?;
        is_hit = said.lines().any(|line| line == "fault");
        if !(is_hit && fault == "kill") {
            check_live(guest, &fate.possible(&base()))?;
            if fault == "full" {
                has_room_again(guest)?;
            }
            guest.machine.kill(daemon::NAME, SIGKILL)?;
        }
        ended(guest, daemon::NAME)?;
    }
    guest.restart(daemon::DEFAULT_CONFIG)?;
    let found = check(guest, &fate.possible(&base()))?;
    rebase(guest, &found)?;
    let steps = said.lines().filter_map(|line| line.strip_prefix("step ")).map(str::to_owned).collect();
    Ok(Case { steps, is_hit, acknowledged: fate.acknowledged() })
}

/// A daemon whose disk was full makes changes again, without being started again, once there is room.
fn has_room_again(guest: &DaemonGuest) -> Result<()> {
    for change in [create("room"), delete("room")] {
        for outcome in guest.wait_for(guest.client.apply_probes(vec![change]))?? {
            let outcome = outcome?;
            ensure!(!matches!(outcome, Outcome::Failed(_)), "{outcome:?}\n{}", guest.log());
        }
    }
    Ok(())
}

/// A guest with the base, and with an event and an instance of another program.
fn prepared(fixture: &Fixture, disk: &str) -> Result<DaemonGuest> {
    let guest = fixture.own_daemon(disk, daemon::DEFAULT_CONFIG)?;
    guest.shell(&format!(
        "mkdir {TRACEFS}/instances/theirs; echo '{}' >> {TRACEFS}/kprobe_events
         echo 1 > {TRACEFS}/instances/theirs/events/theirs/foreign/enable",
        crate::crash_state::FOREIGN
    ))?;
    rebase(&guest, &Model::new())?;
    Ok(guest)
}

/// What was tried of one kind of change, with one kind of fault.
#[derive(Default)]
struct Figures {
    cases: usize,
    hit: usize,
    acknowledged: usize,
}

fn nothing_acknowledged_is_lost(fixture: &Fixture) -> Result<()> {
    let named = env::var("KPROBED_VM_CRASH").ok();
    let is_whole = named.is_some() || effort::pick(false, true);
    let plans: Vec<(&Plan, Option<&str>)> = match &named {
        None => PLANS.iter().map(|plan| (plan, None)).collect(),
        Some(names) => names
            .split(',')
            .map(|named| {
                let (name, fault) =
                    named.split_once(':').map_or((named, None), |(name, fault)| (name, Some(fault)));
                let plan = PLANS.iter().find(|plan| plan.0 == name);
                let is_known = fault.is_none_or(|fault| FAULT_KINDS.contains(&fault));
                let plan = plan.filter(|_| is_known).with_context(|| format!("KPROBED_VM_CRASH: {named}"))?;
                Ok((plan, fault))
            })
            .collect::<Result<_>>()?,
    };
    let mut random = Random::of_theme(fixture, "crash")?;
    let mut guest = prepared(fixture, "crash")?;
    let mut all = BTreeMap::<(&str, &str), Figures>::new();
    for (number, ((name, act), only)) in plans.into_iter().enumerate() {
        for (index, fault) in FAULT_KINDS.into_iter().enumerate() {
            if only.is_some_and(|only| only != fault) || !is_whole && index != number % FAULT_KINDS.len() {
                continue;
            }
            let figures = all.entry((*name, fault)).or_default();
            let mut at = if is_whole { 1 } else { 1 + random.below(FIRST_STEPS) };
            loop {
                let case = case(&mut guest, &act(), fault, at).with_context(|| {
                    format!("{name}, {fault} at step {at}:\n{}", steps(&guest).unwrap_or_default())
                })?;
                figures.cases += 1;
                figures.hit += usize::from(case.is_hit);
                figures.acknowledged += case.acknowledged;
                if !case.is_hit && case.steps.is_empty() && !OF_THE_DISK.contains(&fault) {
                    bail!("{name}: no step is seen: the fault was not made where the daemon works");
                }
                at = match (is_whole, case.is_hit) {
                    (true, true) => at + 1,
                    (false, false) if figures.cases == 1 && !case.steps.is_empty() => {
                        1 + random.below(case.steps.len())
                    }
                    _ => break,
                };
            }
            progress::note(format_args!(
                "{}: {name}, {fault}: {} cases, {} faults, {} changes acknowledged, 0 lost",
                fixture.series(),
                figures.cases,
                figures.hit,
                figures.acknowledged
            ));
        }
    }
    let hit: usize = all.values().map(|figures| figures.hit).sum();
    ensure!(hit > 0, "no fault was made");
    progress::note(format_args!("{}: {hit} faults in all, 0 acknowledgements lost", fixture.series()));
    guest.machine.power_off().map_err(Into::into)
}

/// That the check above can fail: the daemon gets a database from before an acknowledgement.
fn a_lost_acknowledgement_is_noticed(fixture: &Fixture) -> Result<()> {
    let mut guest = prepared(fixture, "crash-noticed")?;
    let kill = |guest: &DaemonGuest| -> Result<()> {
        guest.machine.kill(daemon::NAME, SIGKILL)?;
        ended(guest, daemon::NAME).map(drop)
    };
    kill(&guest)?;
    guest.shell("cp -a /var/lib/kprobed /tmp/before")?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    check(&guest, &Possible::only(base()))?;
    let fate = make(&guest, &Act::Each(vec![create("new0"), delete("target")]))?;
    ensure!(fate.acknowledged() == 2);
    kill(&guest)?;
    guest.shell("rm /var/lib/kprobed/kprobed.db*; cp -a /tmp/before/kprobed.db* /var/lib/kprobed/")?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    let noticed = check(&guest, &fate.possible(&base()));
    ensure!(noticed.is_err(), "an acknowledgement was lost, and the check says nothing");
    guest.machine.power_off().map_err(Into::into)
}
