//! Calibration: what a hit takes on this host, measured with temporary probes.
//!
//! Owns where these probes lie, and the arithmetic. They lie on two system calls that do nothing but
//! return a number, and the daemon makes these calls itself, with one probe more after each
//! measurement: the difference is the cost of that probe. Never touches the probes of clients.

use std::time::{Duration, Instant};

use nix::unistd::{getpgrp, getppid};

use super::cost::{CostTable, HitCost};
use super::temporary::{GROUP, Temporary, TemporaryError};
use kprobed_host::tracefs::Tracefs;
use kprobed_lang::definition::guard;
use kprobed_verdict::checker::Checker;
use kprobed_verdict::validate::Arming;

/// The function of getppid(2), which the first call leads to.
const FUNCTION: &str = "__x64_sys_getppid";

/// The function of getpgrp(2), which the second call leads to: a return probe beside an entry probe
/// of the same function would share its cost.
const OTHER_FUNCTION: &str = "__x64_sys_getpgrp";

/// How far into the function a place is looked for that is armed by a breakpoint, in bytes.
const FURTHEST: u64 = 64;

/// Arguments of the probes that measure what one of them takes.
const ARGUMENTS: u32 = 12;

/// Guards of the probe that measures what one of them takes.
const GUARDS: u32 = 4;

/// `orig_ax` of the registers to which a system call's first argument points
/// (arch/x86/include/asm/ptrace.h:pt_regs): a small number. Its guard reads an address of the kernel, which
/// kernels before 6.10 refuse without a fault (lib/strncpy_from_user.c).
const SYSCALL_NUMBER: &str = "+120(%di)";

/// `ip` of the same registers: an address of user space. Its guard faults on every kernel.
const USER_ADDRESS: &str = "+128(%di)";

/// Calls of both between two looks at the clock.
const ROUNDS: u32 = 50;

/// How long one measurement takes, unless [`LEAST_BATCHES`] take longer.
const MEASURED_FOR: Duration = Duration::from_millis(5);

/// The least number of batches of a measurement: some meet an interrupt or another task.
const LEAST_BATCHES: usize = 8;

/// No further measurement begins after this time: what is left out is taken in proportion. On a processor all of
/// them take some 100 ms; an emulated one takes most of this.
const LONGEST: Duration = Duration::from_secs(1);

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub(super) enum CalibrationError {
    /// A temporary probe.
    #[error(transparent)]
    Temporary(#[from] TemporaryError),
    /// Facts of the kernel.
    #[error("cannot look at `{FUNCTION}`: {0}")]
    Check(String),
    /// The calls do not run into the probe.
    #[error("the probe on `{FUNCTION}` is not hit by its system call")]
    NotHit,
}

/// What a temporary probe measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Entry,
    Return,
    Breakpoint,
    /// A further probe at the entry, without arguments.
    Further,
    /// The same with [`ARGUMENTS`] registers.
    Registers,
    /// The same with as many reads of memory.
    Reads,
    /// The same with as many texts: the name of this thread.
    Texts,
    /// The same with [`GUARDS`] guards of a small number.
    GuardsOfNumbers,
    /// The same with guards of an address of user space.
    GuardsOfAddresses,
}

impl Part {
    const fn event(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Return => "return",
            Self::Breakpoint => "inside",
            Self::Further => "further",
            Self::Registers => "registers",
            Self::Reads => "reads",
            Self::Texts => "texts",
            Self::GuardsOfNumbers => "guards",
            Self::GuardsOfAddresses => "faults",
        }
    }

    /// Its line in `kprobe_events`. `inside` is the offset of a place that is armed by a breakpoint.
    fn line(self, inside: u64) -> String {
        let event = self.event();
        let arguments = |fetched: &str| {
            let argument = |number| format!("a{number}={fetched}");
            (0..ARGUMENTS).map(argument).collect::<Vec<_>>().join(" ")
        };
        // As in the lines of clients: with a text after them, the kernel reads each of them twice.
        let guards = |value: &str| {
            let end = guard::END;
            let guard = |number| format!("__kpd_g{number}=-2147483647({value}):ustring");
            let guards = (0..GUARDS).map(guard).collect::<Vec<_>>().join(" ");
            format!("p:{GROUP}/{event} {FUNCTION} {guards} {end}=\\\"k\":string")
        };
        match self {
            Self::Entry | Self::Further => format!("p:{GROUP}/{event} {FUNCTION}"),
            Self::Return => format!("r:{GROUP}/{event} {OTHER_FUNCTION}"),
            Self::Breakpoint => format!("p:{GROUP}/{event} {FUNCTION}+{inside}"),
            Self::Registers => format!("p:{GROUP}/{event} {FUNCTION} {}", arguments("%di:u64")),
            Self::Reads => format!("p:{GROUP}/{event} {FUNCTION} {}", arguments("+8(%sp):u64")),
            Self::Texts => format!("p:{GROUP}/{event} {FUNCTION} {}", arguments("$comm")),
            Self::GuardsOfNumbers => guards(SYSCALL_NUMBER),
            Self::GuardsOfAddresses => guards(USER_ADDRESS),
        }
    }
}

/// What one round of calls takes.
#[derive(Clone, Copy, Debug)]
struct Round {
    ns: f64,
    /// How far the faster batches are apart.
    spread_ns: f64,
}

impl Round {
    /// Of the times of batches. The fastest one met no other work, of this host or, for a guest, of
    /// the one below.
    fn of(mut batches: Vec<f64>) -> Self {
        batches.sort_by(f64::total_cmp);
        let at = |part: usize| batches.get(batches.len() * part / 8).copied().unwrap_or_default();
        Self { ns: at(0), spread_ns: at(2) - at(0) }
    }

    fn measure() -> Self {
        let begun = Instant::now();
        let mut batches = Vec::new();
        // What is run for the first time is slower.
        call();
        while batches.len() < LEAST_BATCHES || begun.elapsed() < MEASURED_FOR {
            let before = Instant::now();
            call();
            batches.push(before.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
        }
        Self::of(batches)
    }

    /// What a probe takes that was added between two measurements.
    fn since(self, before: Self) -> HitCost {
        let error_ns = f64::hypot(self.spread_ns, before.spread_ns);
        HitCost { ns: (self.ns - before.ns).max(1.0), error_ns }
    }
}

fn call() {
    for _ in 0..ROUNDS {
        let _numbers = (getppid(), getpgrp());
    }
}

/// Measures what hits take, with `inside` from [`place_of_breakpoint`]. Blocks for up to 300 ms,
/// most of them to arm and disarm probes.
///
/// # Errors
/// See [`CalibrationError`]; nothing is left in the kernel then either.
pub(super) fn calibrate(
    tracefs: &Tracefs,
    own: &str,
    inside: Option<u64>,
) -> Result<CostTable, CalibrationError> {
    let begun = Instant::now();
    let mut temporary = Temporary::make(tracefs, own)?;
    let measured = measure(&mut temporary, inside, begun);
    let removed = temporary.remove();
    let table = measured?;
    removed?;
    Ok(table)
}

/// The offset of a place in the function that is armed by a breakpoint. Absent if there is none. Reads
/// facts of the kernel that every later check needs.
///
/// # Errors
/// [`CalibrationError::Check`].
pub(super) fn place_of_breakpoint(checker: &Checker) -> Result<Option<u64>, CalibrationError> {
    let mut facts = checker.recent_facts();
    let failed = |error: &dyn std::fmt::Display| CalibrationError::Check(error.to_string());
    for offset in 1..FURTHEST {
        let text = format!("p:{GROUP}/inside {FUNCTION}+{offset}");
        let outcome = checker.check_with(&text, &mut facts).map_err(|error| failed(&error))?;
        let is_accepted = outcome.against(None).is_none() && !outcome.report.is_entry;
        if is_accepted && outcome.predicted_arming() == Some(Arming::Breakpoint) {
            return Ok(Some(offset));
        }
    }
    Ok(None)
}

fn measure(
    temporary: &mut Temporary<'_>,
    inside: Option<u64>,
    begun: Instant,
) -> Result<CostTable, CalibrationError> {
    let mut before = Round::measure();
    let mut add = |part: Part| -> Result<Option<HitCost>, CalibrationError> {
        // All others can be taken in proportion to this one.
        if part != Part::Entry && begun.elapsed() > LONGEST {
            return Ok(None);
        }
        let event = temporary.arm(part.event(), &part.line(inside.unwrap_or_default()))?;
        let hits = temporary.hits(&event)?;
        let now = Round::measure();
        let is_hit = temporary.hits(&event)? >= hits + u64::from(ROUNDS);
        let cost = now.since(before);
        before = now;
        Ok(is_hit.then_some(cost))
    };
    // Those that make every later call slow come last.
    let entry = add(Part::Entry)?.ok_or(CalibrationError::NotHit)?;
    // What cannot be measured takes as many times more as an entry does.
    let mut table =
        CostTable { ftrace: entry, ..CostTable::scaled(entry.ns / CostTable::CONSERVATIVE.ftrace.ns) };
    // The kernel makes jumps much later than this waits: they save the breakpoint, as ftrace does.
    table.optimised = HitCost { error_ns: entry.error_ns + entry.ns / 2.0, ..entry };
    table.return_ = add(Part::Return)?.unwrap_or(table.return_);
    if inside.is_some() {
        table.breakpoint = add(Part::Breakpoint)?.unwrap_or(table.breakpoint);
    }
    if let Some(further) = add(Part::Further)?
        && let (Some(registers), Some(reads)) = (add(Part::Registers)?, add(Part::Reads)?)
    {
        table.argument = each(registers, further, ARGUMENTS);
        table.read = each(reads, registers, ARGUMENTS);
        if let Some(texts) = add(Part::Texts)? {
            table.text = of_any_length(each(texts, registers, ARGUMENTS));
        }
        if let (Some(numbers), Some(addresses)) = (add(Part::GuardsOfNumbers)?, add(Part::GuardsOfAddresses)?)
        {
            table.guard_of_number = each(numbers, further, GUARDS);
            table.guard_of_address = each(addresses, further, GUARDS);
        }
    }
    Ok(CostTable { is_calibrated: true, ..table })
}

/// What one of the arguments takes by which two probes differ.
fn each(with: HitCost, without: HitCost, count: u32) -> HitCost {
    let count = f64::from(count);
    HitCost {
        ns: ((with.ns - without.ns) / count).max(0.0),
        error_ns: f64::hypot(with.error_ns, without.error_ns) / count,
    }
}

/// What a text takes, of which that of a short one was measured.
fn of_any_length(short: HitCost) -> HitCost {
    HitCost { error_ns: short.error_ns + short.ns / 2.0, ..short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_measured_by_its_fastest_batch() {
        // One met another task.
        let round = Round::of(vec![100.0, 104.0, 101.0, 102.0, 103.0, 99.0, 100.0, 5000.0]);
        assert!((round.ns - 99.0).abs() < 1e-9 && (round.spread_ns - 1.0).abs() < 1e-9, "{round:?}");
        let slower = Round { ns: 700.0, spread_ns: 0.0 };
        let cost = slower.since(round);
        assert!((cost.ns - 601.0).abs() < 1e-9 && (cost.error_ns - 1.0).abs() < 1e-9, "{cost:?}");
        assert!(Round::measure().ns > 0.0);
    }
}
