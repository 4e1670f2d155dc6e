//! Running a trial, and reports: its duration, and for a failed trial its diagnostics on one screen.

use std::any::Any;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use kprobed_vm::lab::booted_again;
use kprobed_vm::machine::Machine;
use kprobed_vm::{daemon, progress};
use libtest_mimic::Failed;

use crate::differential::random::seed_of_run;
use crate::effort;
use crate::fixture::Fixture;
use crate::schedule::{Schedule, Turn};
use crate::trials::{self, Noted};

/// How many of the slowest are shown.
const SLOWEST: usize = 10;
/// Lines of a log that are shown.
const LINES: usize = 15;
/// How often it is looked whether a trial's time is over.
const LOOK: Duration = Duration::from_secs(1);
/// How long a trial may go on when its guests are gone.
const GRACE: Duration = Duration::from_mins(1);

/// How long a trial may take.
fn limit() -> Duration {
    effort::pick(Duration::from_mins(10), Duration::from_hours(12))
}

thread_local! {
    /// The trial of this thread.
    static CURRENT: RefCell<Option<Arc<Running>>> = const { RefCell::new(None) };
    /// What the last machine, that the trial of this thread gave up, had to say.
    static LAST_WORDS: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A trial that runs.
#[derive(Debug)]
pub(crate) struct Running {
    name: String,
    limit: Duration,
    schedule: Option<Arc<Schedule>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Since when its time runs. Absent while it waits for a shared guest.
    since: Option<Instant>,
    is_shared: bool,
    machines: Vec<Weak<Machine>>,
    /// What the kernels of its guests have reported.
    problems: Vec<String>,
}

/// What became of a trial.
pub(crate) struct End {
    pub(crate) outcome: Result<()>,
    /// What its machines had to say.
    pub(crate) words: Option<String>,
}

impl Running {
    pub(crate) fn new(name: &str, limit: Duration, schedule: Option<Arc<Schedule>>) -> Arc<Self> {
        let since = Some(Instant::now());
        let state = State { since, is_shared: false, machines: Vec::new(), problems: Vec::new() };
        Arc::new(Self { name: name.to_owned(), limit, schedule, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wall(&self) -> Duration {
        self.state().since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Runs a trial in a thread of its own. When its time is over, its machines are killed, so that
    /// whatever it waits for fails; a trial that goes on all the same is left behind.
    pub(crate) fn run(self: &Arc<Self>, work: impl FnOnce() -> Result<()> + Send + 'static) -> End {
        let (ended, end) = mpsc::channel();
        let running = Arc::clone(self);
        let trial = move || {
            CURRENT.set(Some(Arc::clone(&running)));
            let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)));
            let outcome = outcome.and_then(|()| running.ensure_healthy());
            // Who waits for it may have left it behind.
            drop(ended.send(End { outcome, words: LAST_WORDS.take() }));
        };
        match thread::Builder::new().name(self.name.clone()).spawn(trial) {
            Ok(_) => self.wait(&end),
            Err(error) => End { outcome: Err(error.into()), words: None },
        }
    }

    /// An error if the kernel of a guest has reported something, or a guest has ended by itself.
    fn ensure_healthy(&self) -> Result<()> {
        let state = self.state();
        ensure!(state.problems.is_empty(), "a guest of the trial is not well: {}", state.problems.join("; "));
        Ok(())
    }

    fn wait(&self, end: &Receiver<End>) -> End {
        let mut doing = None;
        loop {
            let over = match end.recv_timeout(LOOK) {
                Ok(end) if doing.is_none() => return end,
                Ok(end) => Some(end),
                Err(RecvTimeoutError::Timeout) if self.wall() < self.limit => continue,
                Err(RecvTimeoutError::Timeout) if doing.is_none() => {
                    doing = Some(self.stop());
                    continue;
                }
                Err(RecvTimeoutError::Timeout) if self.wall() < self.limit + GRACE => continue,
                Err(_) => None,
            };
            let late = format!("it did not end within {:?}, and its guests were killed", self.limit);
            let error = match over {
                Some(End { outcome: Err(error), .. }) => error.context(late),
                Some(_) => anyhow!(late),
                None => anyhow!("{late}; it goes on all the same"),
            };
            return End { outcome: Err(error), words: doing };
        }
    }

    /// Kills its machines; what they did.
    fn stop(&self) -> String {
        let machines: Vec<_> = self.state().machines.iter().filter_map(Weak::upgrade).collect();
        let words = machines.iter().map(|machine| {
            format!("{}\nthe daemon's threads:\n{}", last_words(machine), daemon::threads(machine))
        });
        let words: Vec<_> = words.collect();
        for machine in &machines {
            machine.kill();
        }
        words.join("\n")
    }
}

fn current() -> Option<Arc<Running>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Waits until the trial of this thread may have a shared guest, which other trials do not have
/// meanwhile. Its time begins when it has it.
///
/// # Errors
/// See [`Schedule::turn`].
pub(crate) fn turn(series: &str, kind: &'static str) -> Result<Option<Turn>> {
    let Some(running) = current() else { return Ok(None) };
    let Some(schedule) = &running.schedule else { return Ok(None) };
    let turn = waits(|| schedule.turn(&running.name, series, kind));
    running.state().is_shared = true;
    turn.map(Some)
}

/// Runs what waits for other trials: it does not count for the limit of the trial of this thread.
pub(crate) fn waits<T>(wait: impl FnOnce() -> T) -> T {
    let running = current();
    let set = |since| running.iter().for_each(|running| running.state().since = since);
    set(None);
    let waited = wait();
    set(Some(Instant::now()));
    waited
}

/// The trial of this thread uses a machine: it is killed when the trial's time is over.
pub(crate) fn uses(machine: &Arc<Machine>) {
    if let Some(running) = current() {
        let mut state = running.state();
        state.machines.retain(|machine| machine.strong_count() > 0);
        state.machines.push(Arc::downgrade(machine));
    }
}

/// What kernels report, and harms nothing: how their releases begin, and a part of the line.
///
/// Debian's 5.10 has page tables of four levels. It checks an address against what the CPU could have
/// (arch/x86/mm/maccess.c:copy_from_kernel_nofault_allowed), and warns once when the read of one between faults.
const KNOWN: [(&str, &str); 1] = [("5.10.", "extable.c:77 ex_handler_uaccess")];

/// Whether it is known what a kernel of this release reports.
pub(crate) fn is_known(release: &str, line: &str) -> bool {
    KNOWN.iter().any(|(start, part)| release.starts_with(start) && line.contains(part))
}

/// Keeps for the trial of this thread what the kernel of a machine has reported after so many reports, or how the
/// machine has ended.
pub(crate) fn keep_problems(machine: &Machine, before: usize) {
    let Some(running) = current() else { return };
    let reported = machine.console_problems().into_iter().skip(before);
    let mut problems: Vec<_> = reported.filter(|line| !is_known(machine.release(), line)).collect();
    if problems.is_empty() {
        problems.extend(machine.failure().map(|failure| failure.to_string()));
    }
    let log = machine.serial_log().display();
    running.state().problems.extend(problems.iter().map(|line| format!("{line} ({log})")));
}

/// Keeps the end of the logs of a machine that is given up before its trial has ended well.
pub(crate) fn keep_last_words(machine: &Machine) {
    let words = last_words(machine);
    LAST_WORDS.set(Some(words));
}

/// What one trial took.
#[derive(Debug)]
struct Taken {
    name: String,
    series: String,
    noted: Noted,
    has_failed: bool,
}

static TAKEN: Mutex<Vec<Taken>> = Mutex::new(Vec::new());

/// Runs a trial when the schedule lets it, and tells what it took, or all about its failure. `with`:
/// the machine, if it is about that.
pub(crate) fn run(
    name: &str,
    with: String,
    fixture: &Arc<Fixture>,
    test: fn(&Fixture) -> Result<()>,
    schedule: &Arc<Schedule>,
) -> Result<(), Failed> {
    schedule.enter(name);
    let running = Running::new(name, limit(), Some(Arc::clone(schedule)));
    let fixture_of_trial = Arc::clone(fixture);
    let End { outcome, words } = running.run(move || test(&fixture_of_trial));
    schedule.leave(name);
    let (wall, is_shared) = (running.wall(), running.state().is_shared);
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push(Taken {
        name: name.to_owned(),
        series: fixture.series().to_owned(),
        noted: Noted { wall, is_shared, passed_with: if outcome.is_ok() { with } else { String::new() } },
        has_failed: outcome.is_err(),
    });
    let Err(error) = outcome else {
        progress::note(format_args!("{name}: {:.1} s", wall.as_secs_f64()));
        return Ok(());
    };
    // All of it comes now: the others go on for a while.
    let again = again(&[name], &[fixture.series()]);
    progress::note(format_args!(
        "FAILED after {:.1} s: {name}\n{error:#}\n{}\nto repeat it: {again}",
        wall.as_secs_f64(),
        words.as_deref().unwrap_or("(no machine was there)"),
    ));
    Err(format!("{error:#}\nto repeat it: {again}").into())
}

/// The command that repeats trials with what they have drawn.
fn again(trials: &[&str], kernels: &[&str]) -> String {
    let effort = if effort::is_full() { "--effort full " } else { "" };
    format!(
        "KPROBED_VM_SEED={} cargo vm test {effort}--kernels {} {}",
        seed_of_run(),
        kernels.join(","),
        trials.join(" ")
    )
}

/// The sum of each kernel, the slowest trials, and those that failed. All are noted in the cache.
pub(crate) fn print() {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if taken.is_empty() {
        return;
    }
    let noted = taken.iter().map(|one| (one.name.clone(), one.noted.clone())).collect();
    if let Err(error) = trials::note(noted) {
        progress::note(format_args!("what the trials took is not noted: {error}"));
    }
    taken.sort_by_key(|one| Reverse(one.noted.wall));
    let kernels_of = |taken: &[&Taken]| {
        let mut series: Vec<_> = taken.iter().map(|one| one.series.clone()).collect();
        series.sort_unstable();
        series.dedup();
        series
    };
    let all: Vec<&Taken> = taken.iter().collect();
    for kernel in kernels_of(&all) {
        let of_kernel = || taken.iter().filter(|one| one.series == kernel);
        let wall: Duration = of_kernel().map(|one| one.noted.wall).sum();
        let count = of_kernel().count();
        progress::note(format_args!("{kernel}: {count} trials in {:.0} s", wall.as_secs_f64()));
    }
    if taken.len() > 1 {
        progress::note("the slowest, in seconds:");
        for Taken { name, noted, .. } in taken.iter().take(SLOWEST) {
            progress::note(format_args!("{:>7.1}  {name}", noted.wall.as_secs_f64()));
        }
    }
    match booted_again() {
        0 => {}
        count => {
            progress::note(format_args!("{count} guests failed and were booted again: it is said above why"));
        }
    }
    let failed: Vec<&Taken> = taken.iter().filter(|one| one.has_failed).collect();
    if !failed.is_empty() {
        let names: Vec<_> = failed.iter().map(|one| one.name.as_str()).collect();
        let kernels = kernels_of(&failed);
        let kernels: Vec<_> = kernels.iter().map(String::as_str).collect();
        progress::note(format_args!("{} FAILED:\n  {}", names.len(), names.join("\n  ")));
        progress::note(format_args!("to repeat them:\n{}", again(&names, &kernels)));
    }
}

fn last_words(machine: &Machine) -> String {
    let log = if machine.failure().is_some() {
        "(the machine has failed)".to_owned()
    } else {
        let text = daemon::log_tail(machine);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    };
    format!(
        "the daemon's log ends with:\n{log}\nthe console ends with:\n{}\n(all of it: {})",
        machine.console_tail(LINES),
        machine.serial_log().display()
    )
}

fn panicked(panic: &(dyn Any + Send)) -> anyhow::Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    anyhow!("panicked: {}", text.unwrap_or("for a reason that is no text"))
}
