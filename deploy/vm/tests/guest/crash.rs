//! Crash consistency: a fault at each step of each kind of change. The daemon is killed, the kernel
//! refuses, the disk fails, or the disk is full from then on. An acknowledged change is there
//! afterwards; any other change is there as a whole or not at all.
//!
//! In CI a fifth of the kinds of change meets one fault each, on one kernel: kinds, faults, steps and
//! the kernel are drawn anew for each commit, and kernels that are tested together take different
//! kinds. What a draw finds is mended, or is in [`KNOWN`] until it is. With `--effort full` every kind
//! meets all four faults at one step each. With `KPROBED_VM_CRASH=all` every step meets all four, but for
//! the inner pages of one transaction ([`is_inner_page`]): `.ci/release` has it as steps of their own.
//! `KPROBED_VM_CRASH=delete,stop` does that for the named kinds only, and `KPROBED_VM_CRASH=delete:full` with
//! one of the faults. It takes minutes for each kind, and `--effort full` gives a trial hours.

use std::env;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_client::api::probe_outcome::Outcome;
use kprobed_vm::daemon;
use kprobed_vm::machine::{Command, PATIENCE, Signal};
use kprobed_vm::protocol::Status;

use crate::Test;
use crate::crash_acts::{self as acts, rebase};
use crate::crash_check::{Expected, FOREIGN, check, check_live};
use crate::crash_follower::Follower;
use crate::crash_plans::{Act, CHANGE_KINDS, ChangeKind, create, delete};
use crate::crash_state::Model;
use crate::daemon::{DaemonGuest, TRACEFS};
use crate::differential::Random;
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        nothing_acknowledged_is_lost,
    }
    Seldom {
        a_lost_acknowledgement_is_noticed,
    }
};

/// What the program in the guest that makes faults calls them.
const FAULT_KINDS: [&str; 4] = ["kill", "kernel", "disk", "full"];

/// Kinds that change the database only.
const OF_THE_ROW: [&str; 2] = ["renew", "keep"];

/// A case that is known to fail.
struct Known {
    kind: &'static str,
    fault: &'static str,
    step: usize,
    why: &'static str,
}

/// The cases that are known to fail: no draw takes one, and the enumeration of all says which passes by
/// now.
const KNOWN: &[Known] = &[];

/// Steps among which CI draws at first. A kind of change that has fewer is drawn for once more,
/// among those that were seen.
const FIRST_STEPS: usize = 12;

/// Waits until a process has ended.
fn ended(guest: &DaemonGuest, process: &str) -> Result<Status> {
    let status = guest.machine.wait(process, PATIENCE)?;
    ensure!(status != Status::TimedOut, "{process} does not end\n{}", guest.log());
    Ok(status)
}

/// Starts the daemon with a fault. Whether it answers; when not, it has ended.
fn start(guest: &mut DaemonGuest, fault: &str, at: usize) -> Result<(Follower, bool)> {
    guest.shell("rm -f /tmp/daemon.pid")?;
    let stopped = "echo $$ > /tmp/daemon.pid; kill -STOP $$; exec kprobed --config /etc/kprobed/kprobed.toml";
    guest.machine.spawn(daemon::NAME, &Command::shell(stopped))?;
    let stopped = "until pid=$(cat /tmp/daemon.pid) && grep -q 'State:.T' /proc/$pid/status; do busybox usleep 10000; done 2> /dev/null";
    let follower = Follower::begin(guest, stopped, fault, at)?;
    // A process that is let go of while its stop was not ended stops again (`__ptrace_unlink` in
    // kernel/ptrace.c).
    guest.machine.signal(daemon::NAME, Signal::SIGCONT)?;
    let begun = Instant::now();
    loop {
        if guest.machine.wait(daemon::NAME, Duration::from_millis(50))? != Status::TimedOut {
            return Ok((follower, false));
        }
        if guest.connect_again().is_ok() && guest.probes().is_ok() {
            return Ok((follower, true));
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

/// Makes one fault, and checks what is there afterwards. The guest has the base before and after
/// it.
fn case(guest: &mut DaemonGuest, act: &Act, fault: &str, at: usize) -> Result<Case> {
    let mut is_alive = true;
    let scene = acts::prepare(guest, act)?;
    let mut change = |guest: &mut DaemonGuest, scene| -> Result<(Follower, Expected)> {
        if matches!(act, Act::Start | Act::Recover) {
            if matches!(act, Act::Start) {
                guest.stop()?;
            } else {
                guest.kill()?;
            }
            let (follower, answers) = start(guest, fault, at)?;
            is_alive = answers;
            return Ok((follower, acts::make(guest, act, scene, &|| Ok(true))?));
        }
        let follower = Follower::begin(guest, "pid=$(pidof kprobed)", fault, at)?;
        if matches!(act, Act::Stop) {
            guest.machine.signal(daemon::NAME, Signal::SIGTERM)?;
            ended(guest, daemon::NAME)?;
            is_alive = false;
        }
        if matches!(act, Act::Expire) {
            guest.machine.signal(daemon::NAME, Signal::SIGCONT)?;
        }
        let expected = acts::make(guest, act, scene, &|| follower.has_struck(guest))?;
        Ok((follower, expected))
    };
    let (follower, expected) = change(guest, scene)?;
    let is_hit = follower.has_struck(guest)?;
    if is_alive && is_hit && fault == "kill" {
        ensure!(ended(guest, daemon::NAME)?.is_signal(Signal::SIGKILL));
        is_alive = false;
    }
    if is_alive {
        // Without the one that follows it, it runs on; nothing more fails.
        guest.machine.signal(&follower.name, Signal::SIGKILL)?;
    }
    ended(guest, &follower.name)?;
    let said = follower.said(guest)?;
    let is_hit = follower.has_struck(guest)?;
    let judged = (|| {
        if is_alive {
            if !(is_hit && fault == "kill") {
                check_live(guest, &expected)?;
                if fault == "full" {
                    has_room_again(guest)?;
                }
                guest.machine.signal(daemon::NAME, Signal::SIGKILL)?;
            }
            ended(guest, daemon::NAME)?;
        }
        guest.restart(daemon::DEFAULT_CONFIG)?;
        acts::settle(guest, act, &expected)?;
        let found = check(guest, &expected, matches!(act, Act::Adopt))?;
        acts::take_back(guest, act, &found)
    })();
    judged.with_context(|| said.clone())?;
    let steps = said.lines().filter_map(|line| line.strip_prefix("step ")).map(str::to_owned).collect();
    Ok(Case { steps, is_hit, acknowledged: expected.acknowledged })
}

/// A daemon whose disk was full makes changes again, without being started again, once there is
/// room.
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
        "mkdir {TRACEFS}/instances/theirs; echo '{FOREIGN}' >> {TRACEFS}/kprobe_events
         echo 1 > {TRACEFS}/instances/theirs/events/theirs/foreign/enable"
    ))?;
    rebase(&guest, &Model::new())?;
    Ok(guest)
}

/// A fifth of the kinds, and a fault for each.
fn fifth(fixture: &Fixture, random: &mut Random) -> Vec<Choice> {
    let mut kinds: Vec<_> = CHANGE_KINDS.iter().collect();
    for left in (1..kinds.len()).rev() {
        kinds.swap(left, random.below(left + 1));
    }
    let mut choices: Vec<Choice> =
        kinds.into_iter().map(|kind| (kind, vec![*random.pick(&FAULT_KINDS)])).collect();
    let count = choices.len() / 5;
    // The same draw gives another kernel the next fifth.
    choices.rotate_left(if fixture.is_older_than(6, 12) { count } else { 0 });
    choices.truncate(count);
    choices
}

/// A kind of change, and the faults that it meets.
type Choice = (&'static ChangeKind, Vec<&'static str>);

/// What `KPROBED_VM_CRASH` names.
fn named(names: &str) -> Result<Vec<Choice>> {
    let choice = |named: &str| {
        let (name, fault) = named.split_once(':').map_or((named, None), |(name, fault)| (name, Some(fault)));
        let plan = CHANGE_KINDS.iter().find(|plan| plan.0 == name)?;
        let faults = FAULT_KINDS.into_iter().filter(|known| fault.is_none_or(|fault| fault == *known));
        Some((plan, faults.collect())).filter(|(_, faults): &Choice| !faults.is_empty())
    };
    names
        .split(',')
        .map(|named| choice(named).with_context(|| format!("KPROBED_VM_CRASH: {named}")))
        .collect()
}

/// What was tried of one kind of change, with one kind of fault.
#[derive(Default)]
struct Figures {
    cases: usize,
    hit: usize,
    acknowledged: usize,
    failed: usize,
}

impl Figures {
    fn note(&self, fixture: &Fixture, name: &str, fault: &str) {
        let Self { cases, hit, acknowledged, failed } = self;
        fixture.note(format_args!(
            "{name}, {fault}: {cases} cases, {hit} faults, {acknowledged} changes acknowledged, {failed} failed"
        ));
    }
}

/// Whether step `at` of these, from 1, writes neither the first nor the last of the pages that SQLite writes in a row.
/// Until the last one is there, none counts for it, so a fault at one is a fault at each. The tests of
/// `kprobed-control` make those too.
fn is_inner_page(steps: &[String], at: usize) -> bool {
    let row = at.checked_sub(2).and_then(|before| steps.get(before..=at));
    row.is_some_and(|row| row.iter().all(|step| step.starts_with("pwrite ") && *step == row[0]))
}

/// The cases of a trial.
struct Enumeration<'a> {
    fixture: &'a Fixture,
    guest: DaemonGuest,
    random: Random,
    /// Whether all steps are tried.
    is_whole: bool,
    failures: Vec<String>,
}

/// Failures after which a trial ends: each costs a new guest.
const MOST_FAILURES: usize = 10;

impl Enumeration<'_> {
    /// Makes the faults of one kind: at all steps, or at one that is drawn.
    fn try_one(mut self, (name, act): &ChangeKind, fault: &str) -> Result<(Self, Figures)> {
        let mut figures = Figures::default();
        // A case without a fault shows the steps.
        let mut at = if self.is_whole { 0 } else { 1 + self.random.below(FIRST_STEPS) };
        let mut shown = Vec::new();
        loop {
            let known =
                KNOWN.iter().find(|known| (known.kind, known.fault, known.step) == (*name, fault, at));
            if known.is_some() && !self.is_whole {
                at += 1;
                continue;
            }
            figures.cases += 1;
            let case = case(&mut self.guest, &act(), fault, at)
                .with_context(|| format!("{name}, {fault} at step {at}"));
            let case = match (case, known) {
                (Err(error), Some(Known { why, .. })) => {
                    self.fixture.note(format_args!("known, {why}: {error:#}"));
                    drop(self.guest);
                    self.guest = prepared(self.fixture, "crash")?;
                    at += 1;
                    continue;
                }
                (Ok(_), Some(Known { why, .. })) => {
                    bail!("{name}, {fault} at step {at} passes, and is in the list of cases that fail: {why}")
                }
                (Err(error), None) if self.is_whole && self.failures.len() + 1 < MOST_FAILURES => {
                    // The others are of interest too. They begin with a guest in which nothing went
                    // wrong.
                    self.fixture.note(format_args!("FAILED: {error:#}"));
                    self.failures.push(format!("{name}, {fault} at step {at}"));
                    figures.failed += 1;
                    drop(self.guest);
                    self.guest = prepared(self.fixture, "crash")?;
                    at += 1;
                    continue;
                }
                (case, None) => case?,
            };
            figures.hit += usize::from(case.is_hit);
            figures.acknowledged += case.acknowledged;
            let has_steps = fault == "kill" || fault == "kernel" && !OF_THE_ROW.contains(name);
            if !case.is_hit && case.steps.is_empty() && has_steps {
                bail!("{name}: no step is seen: the fault was not made where the daemon works");
            }
            if figures.cases.is_multiple_of(10) {
                figures.note(self.fixture, name, fault);
            }
            if at == 0 {
                shown = case.steps;
                at = 1;
                continue;
            }
            at = match (self.is_whole, case.is_hit) {
                (true, true) => {
                    let inner = (at + 1..=shown.len()).take_while(|at| is_inner_page(&shown, *at));
                    at + 1 + inner.count()
                }
                (false, false) if figures.cases == 1 && !case.steps.is_empty() => {
                    1 + self.random.below(case.steps.len())
                }
                _ => return Ok((self, figures)),
            };
        }
    }
}

fn nothing_acknowledged_is_lost(fixture: &Fixture) -> Result<()> {
    let chosen = env::var("KPROBED_VM_CRASH").ok();
    let is_whole = chosen.is_some();
    let mut random = Random::of_theme("crash");
    let choices = match chosen.as_deref() {
        None if !effort::is_full() => fifth(fixture, &mut random),
        None | Some("all") => CHANGE_KINDS.iter().map(|plan| (plan, FAULT_KINDS.to_vec())).collect(),
        Some(names) => named(names)?,
    };
    let guest = prepared(fixture, "crash")?;
    let mut cases = Enumeration { fixture, guest, random, is_whole, failures: Vec::new() };
    let mut hit = 0;
    for (plan, fault) in
        choices.iter().flat_map(|(plan, faults)| faults.iter().map(move |fault| (plan, fault)))
    {
        let figures;
        (cases, figures) = cases.try_one(plan, fault)?;
        figures.note(fixture, plan.0, fault);
        hit += figures.hit;
    }
    ensure!(cases.failures.is_empty(), "{} cases failed: {:#?}", cases.failures.len(), cases.failures);
    ensure!(hit > 0, "no fault was made");
    fixture.note(format_args!("{hit} faults in all, 0 acknowledgements lost"));
    Ok(())
}

/// Makes a change without a fault.
fn make_at_once(guest: &mut DaemonGuest, act: &Act) -> Result<Expected> {
    let scene = acts::prepare(guest, act)?;
    acts::make(guest, act, scene, &|| Ok(false))
}

/// That the check above can fail: the daemon gets a database from before an acknowledgement.
fn a_lost_acknowledgement_is_noticed(fixture: &Fixture) -> Result<()> {
    let mut guest = prepared(fixture, "crash-noticed")?;
    guest.kill()?;
    guest.shell("cp -a /var/lib/kprobed /tmp/before")?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    let nothing = make_at_once(&mut guest, &Act::Each(Vec::new()))?;
    check(&guest, &nothing, false)?;
    let expected = make_at_once(&mut guest, &Act::Each(vec![create("new0"), delete("target")]))?;
    ensure!(expected.acknowledged == 2);
    guest.kill()?;
    guest.shell("rm /var/lib/kprobed/kprobed.db*; cp -a /tmp/before/kprobed.db* /var/lib/kprobed/")?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    let noticed = check(&guest, &expected, false);
    ensure!(noticed.is_err(), "an acknowledgement was lost, and the check says nothing");
    Ok(())
}
