//! Reports of tests: duration, processor time of the guests, and for a failed test its diagnostics
//! on one screen.

use std::any::Any;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use kprobed_vm::machine::Machine;
use kprobed_vm::{daemon, progress};
use libtest_mimic::Failed;

use crate::fixture::{Fixture, cpu_time};

/// How many of the slowest are shown.
const SLOWEST: usize = 10;
/// Lines of a log that are shown.
const LINES: usize = 15;

thread_local! {
    /// The seeds from which the trial of this thread has drawn.
    static SEEDS: RefCell<Option<String>> = const { RefCell::new(None) };
    /// What the last machine of its own, that the trial of this thread gave up, had to say.
    static LAST_WORDS: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What one trial took.
#[derive(Debug)]
struct Taken {
    name: String,
    series: String,
    wall: Duration,
    /// Of the QEMUs that ran for it.
    guests: Duration,
}

static TAKEN: Mutex<Vec<Taken>> = Mutex::new(Vec::new());

/// Says that the trial of this thread draws from these seeds.
pub(crate) fn drawn(fixture: &Fixture, theme: &str, seeds: String) {
    progress::note(format_args!("{}: {theme} draws from KPROBED_VM_SEED={seeds}", fixture.series()));
    SEEDS.set(Some(seeds));
}

/// Keeps the end of the logs of a machine that is given up before its trial has ended well.
pub(crate) fn keep_last_words(machine: &Machine) {
    let words = last_words(machine);
    LAST_WORDS.set(Some(words));
}

/// Runs a trial, and tells what it took, or all about its failure.
pub(crate) fn run(name: &str, fixture: &Fixture, test: fn(&Fixture) -> Result<()>) -> Result<(), Failed> {
    SEEDS.set(None);
    LAST_WORDS.set(None);
    let (begun, before) = (Instant::now(), cpu_time());
    let outcome =
        catch_unwind(AssertUnwindSafe(|| test(fixture))).unwrap_or_else(|panic| Err(panicked(&*panic)));
    let (wall, guests) = (begun.elapsed(), cpu_time().saturating_sub(before));
    let series = fixture.series().to_owned();
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push(Taken {
        name: name.to_owned(),
        series,
        wall,
        guests,
    });
    let Err(error) = outcome else {
        let (wall, guests) = (wall.as_secs_f64(), guests.as_secs_f64());
        progress::note(format_args!("{name}: {wall:.1} s, {guests:.1} s of it in guests"));
        return Ok(());
    };
    // All of it comes now: the other kernels go on for a while.
    let words = LAST_WORDS.take().or_else(|| fixture.shared_daemon().map(|guest| last_words(&guest.machine)));
    let seed = SEEDS.take().map(|seeds| format!("KPROBED_VM_SEED={seeds} ")).unwrap_or_default();
    let trial = name.split_once("::").map_or(name, |(_, trial)| trial);
    let again = format!("{seed}cargo vm test --kernels {} {trial}", fixture.series());
    progress::note(format_args!(
        "FAILED after {:.1} s: {name}\n{error:#}\n{}\nto repeat it: {again}",
        wall.as_secs_f64(),
        words.as_deref().unwrap_or("(no machine was there)"),
    ));
    Err(format!("{error:#}\nto repeat it: {again}").into())
}

/// The slowest trials, and the sum of each kernel.
pub(crate) fn print() {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    taken.sort_by_key(|one| Reverse(one.wall));
    let mut series: Vec<&str> = taken.iter().map(|one| one.series.as_str()).collect();
    series.sort_unstable();
    series.dedup();
    for kernel in series {
        let of_kernel = || taken.iter().filter(|one| one.series == kernel);
        let wall: Duration = of_kernel().map(|one| one.wall).sum();
        let guests: Duration = of_kernel().map(|one| one.guests).sum();
        progress::note(format_args!(
            "{kernel}: {} trials in {:.0} s; guests computed for {:.0} s of them",
            of_kernel().count(),
            wall.as_secs_f64(),
            guests.as_secs_f64(),
        ));
    }
    if taken.len() > 1 {
        progress::note("the slowest, in seconds (the guest's CPU time; waiting is the rest):");
        for Taken { name, wall, guests, .. } in taken.iter().take(SLOWEST) {
            let (wall, guests) = (wall.as_secs_f64(), guests.as_secs_f64());
            progress::note(format_args!("{wall:>7.1} ({guests:>5.1})  {name}"));
        }
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
