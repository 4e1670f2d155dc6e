//! Calibration: what a hit takes on this host, measured with temporary probes.
//!
//! Owns these probes, their tracing instance, also those that a killed daemon has left, and the arithmetic.
//! They lie on two system calls that do nothing but return a number, and the daemon makes these calls
//! itself, with one probe more after each measurement, and then with one less: the difference is the cost of that
//! probe. A host that does other work for a while slows one of the two, and the faster one counts. Nothing
//! else is recorded in the instance, and no reader has it open: so the deletion of a temporary probe empties no
//! buffer that is in use. Never touches the probes of clients.

use std::time::{Duration, Instant};

use nix::unistd::{getpgrp, getppid};

use super::cost::{CostTable, HitCost};
use crate::error::Error;
use kprobed_host::kernel::TRACE_CLOCK;
use kprobed_host::tracefs::{Instance, InstanceOptions, OwnEvent, Tracefs};
use kprobed_lang::definition::guard;
use kprobed_lang::model::ProbeName;
use kprobed_verdict::checker::Checker;
use kprobed_verdict::validate::Arming;

/// Group of the temporary probes.
const GROUP: &str = "kprobed_temporary";

/// Buffers of the instance for each CPU, in KiB: what they record is never read, but the next record
/// should not find its place in the fastest cache.
const BUFFER_KIB: u64 = 256;

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

/// How many times as long a measurement takes at most, while batches meet other work.
const AGAIN: u32 = 4;

/// No further probe is added after this time: what is left out is taken in proportion. On a processor all of
/// them take some 150 ms; an emulated one takes most of this.
const LONGEST: Duration = Duration::from_millis(1500);

/// Event of the first probe.
const ENTRY: &str = "entry";

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
        let is_enough = |count: usize, times: u32| {
            count >= LEAST_BATCHES * times as usize && begun.elapsed() >= MEASURED_FOR * times
        };
        // What is run for the first time is slower.
        call();
        loop {
            let before = Instant::now();
            call();
            batches.push(before.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
            let count = batches.len();
            if is_enough(count, 1) && (is_enough(count, AGAIN) || Self::of(batches.clone()).is_steady()) {
                return Self::of(batches);
            }
        }
    }

    /// Whether the faster batches have met no other work.
    fn is_steady(self) -> bool {
        self.spread_ns < self.ns / 20.0
    }

    /// The faster one of two measurements of the same calls at different times: other work can take longer than one
    /// of them.
    fn or(self, again: Self) -> Self {
        if again.ns < self.ns { again } else { self }
    }

    /// What a probe takes that was added between two measurements. Absent if that is within the error: every probe
    /// takes more, so that one of the two has met other work.
    fn since(self, before: Self) -> Option<HitCost> {
        let cost =
            HitCost { ns: self.ns - before.ns, error_ns: f64::hypot(self.spread_ns, before.spread_ns) };
        (cost.ns > cost.error_ns).then_some(cost)
    }
}

fn call() {
    for _ in 0..ROUNDS {
        let _numbers = (getppid(), getpgrp());
    }
}

/// Measures what hits take, with `inside` from [`place_of_breakpoint`]. Blocks for up to 400 ms,
/// most of them to arm and disarm probes.
///
/// # Errors
/// Why nothing could be measured; nothing is left in the kernel then either.
pub(super) fn calibrate(tracefs: &Tracefs, own: &str, inside: Option<u64>) -> Result<CostTable, Error> {
    let begun = Instant::now();
    let mut temporary = Temporary::make(tracefs, own)?;
    let hit = add(&mut temporary, inside, begun);
    let rounds = temporary.remove();
    let (hit, rounds) = (hit?, rounds?);
    table(&|event| {
        let index = hit.iter().position(|(one, is_hit)| *one == event && *is_hit)?;
        rounds.get(index + 1)?.since(*rounds.get(index)?)
    })
    .ok_or_else(|| {
        Error::internal(format_args!(
            "the probe on `{FUNCTION}` is not hit by its system call, or what it takes is lost in other work"
        ))
    })
}

/// The offset of a place in the function that is armed by a breakpoint. Absent if there is none. Reads
/// facts of the kernel that every later check needs.
///
/// # Errors
/// When the function cannot be looked at.
pub(super) fn place_of_breakpoint(checker: &Checker) -> Result<Option<u64>, Error> {
    let mut facts = checker.recent_facts();
    for offset in 1..FURTHEST {
        let text = format!("p:{GROUP}/inside {FUNCTION}+{offset}");
        let outcome = checker.check_with(&text, &mut facts);
        let outcome =
            outcome.map_err(|error| Error::internal(format_args!("cannot look at `{FUNCTION}`: {error}")))?;
        let is_accepted = outcome.against(None).is_none() && !outcome.report.is_entry;
        if is_accepted && outcome.predicted_arming() == Some(Arming::Breakpoint) {
            return Ok(Some(offset));
        }
    }
    Ok(None)
}

/// The temporary probes, in the order in which they are added: those that make every later call slow come last.
fn probes(inside: Option<u64>) -> Vec<(&'static str, String)> {
    let at = |event, rest: &str| (event, format!("p:{GROUP}/{event} {FUNCTION}{rest}"));
    let mut probes = vec![at(ENTRY, ""), ("return", format!("r:{GROUP}/return {OTHER_FUNCTION}"))];
    probes.extend(inside.map(|offset| at("inside", &format!("+{offset}"))));
    probes.extend([
        at("further", ""),
        at("registers", &arguments("%di:u64")),
        at("reads", &arguments("+8(%sp):u64")),
        // The name of this thread.
        at("texts", &arguments("$comm")),
        at("guards", &guards(SYSCALL_NUMBER)),
        at("faults", &guards(USER_ADDRESS)),
    ]);
    probes
}

/// Adds one probe after the other, and says of each whether the calls hit it.
fn add(
    temporary: &mut Temporary<'_>,
    inside: Option<u64>,
    begun: Instant,
) -> Result<Vec<(&'static str, bool)>, Error> {
    let mut added = Vec::new();
    for (event, line) in probes(inside) {
        // All others can be taken in proportion to the first one.
        if event != ENTRY && begun.elapsed() > LONGEST {
            break;
        }
        added.push((event, temporary.add(event, &line)?));
    }
    Ok(added)
}

/// The figures, from what the temporary probes take. Absent without that of the first one; what of the others was not
/// measured takes as many times more as that one does.
fn table(cost: &dyn Fn(&str) -> Option<HitCost>) -> Option<CostTable> {
    let entry = cost(ENTRY)?;
    let mut table =
        CostTable { ftrace: entry, ..CostTable::scaled(entry.ns / CostTable::CONSERVATIVE.ftrace.ns) };
    // The kernel makes jumps much later than this waits: they save the breakpoint, as ftrace does.
    table.optimised = HitCost { error_ns: entry.error_ns + entry.ns / 2.0, ..entry };
    table.return_ = cost("return").unwrap_or(table.return_);
    table.breakpoint = cost("inside").unwrap_or(table.breakpoint);
    if let (Some(further), Some(registers), Some(reads)) = (cost("further"), cost("registers"), cost("reads"))
    {
        table.argument = each(registers, further, ARGUMENTS);
        table.read = each(reads, registers, ARGUMENTS);
        if let Some(texts) = cost("texts") {
            table.text = of_any_length(each(texts, registers, ARGUMENTS));
        }
        if let (Some(numbers), Some(addresses)) = (cost("guards"), cost("faults")) {
            table.guard = either(each(numbers, further, GUARDS), each(addresses, further, GUARDS));
        }
    }
    Some(CostTable { is_calibrated: true, ..table })
}

/// As many arguments as are measured together.
fn arguments(fetched: &str) -> String {
    (0..ARGUMENTS).map(|number| format!(" a{number}={fetched}")).collect::<Vec<_>>().concat()
}

/// Guards of a value as in the lines of clients: with a text after them, the kernel reads each of them
/// twice.
fn guards(value: &str) -> String {
    let guard = |number| format!(" __kpd_g{number}=-2147483647({value}):ustring");
    let guards = (0..GUARDS).map(guard).collect::<Vec<_>>().concat();
    format!("{guards} {}=\\\"{}\":string", guard::END, guard::END_TEXT)
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

/// What a guard takes, whatever value it reads: all of them can be addresses of user space, or none.
fn either(number: HitCost, address: HitCost) -> HitCost {
    HitCost {
        ns: f64::midpoint(number.ns, address.ns),
        error_ns: (number.ns - address.ns).abs() / 2.0 + number.error_ns.max(address.error_ns),
    }
}

/// The instance and the events. [`Temporary::remove`] has to be called in any case; the next start
/// does it if this daemon is killed before.
struct Temporary<'a> {
    tracefs: &'a Tracefs,
    instance: Instance,
    events: Vec<OwnEvent>,
    /// What the calls take with none of the events, with the first one, with the first two, and so on.
    rounds: Vec<Round>,
}

impl<'a> Temporary<'a> {
    /// Makes the instance, for a daemon whose own instance has this name.
    fn make(tracefs: &'a Tracefs, own: &str) -> Result<Self, Error> {
        let options = InstanceOptions {
            name: temporary_instance(own),
            buffer_kib: BUFFER_KIB,
            buffer_max_kib: BUFFER_KIB,
            sub_buffer_kib: 0,
            clock: TRACE_CLOCK,
        };
        let (instance, _claim) = Instance::open_or_create(tracefs, &options)?;
        Ok(Self { tracefs, instance, events: Vec::new(), rounds: vec![Round::measure()] })
    }

    /// Defines a probe by a line of `kprobe_events` with this event of the group, and records it.
    fn arm(&mut self, event: &'static str, line: &str) -> Result<OwnEvent, Error> {
        for outcome in self.tracefs.define_kprobes(&[line]) {
            outcome?;
        }
        let name = ProbeName::new(GROUP, event).map_err(Error::internal)?;
        self.tracefs.forget_kprobe_list();
        let found = self.tracefs.find_own(&*self.tracefs.kprobe_list()?, &name, line)?;
        let not_listed = || {
            Error::internal(format_args!("the kernel does not list `{GROUP}/{event}`, which it has accepted"))
        };
        let own = found.ok_or_else(not_listed)?;
        self.events.push(own.clone());
        self.instance.set_enabled(&own.name, true)?;
        Ok(own)
    }

    /// Arms a probe and measures the calls. Returns whether they hit it.
    fn add(&mut self, event: &'static str, line: &str) -> Result<bool, Error> {
        let event = self.arm(event, line)?;
        let hits = self.hits(&event)?;
        self.rounds.push(Round::measure());
        Ok(self.hits(&event)? >= hits + u64::from(ROUNDS))
    }

    /// How often the kernel has counted a hit of a probe, skipped runs included.
    fn hits(&self, event: &OwnEvent) -> Result<u64, Error> {
        let counts = self.tracefs.hit_counts()?;
        Ok(counts.of(event).map_or(0, |hits| hits.hits.saturating_add(hits.nmissed)))
    }

    /// Removes everything, and measures the calls again with what is left each time. The instance goes last: a start
    /// looks for the events if it is there.
    fn remove(mut self) -> Result<Vec<Round>, Error> {
        self.tracefs.forget_kprobe_list();
        let list = self.tracefs.kprobe_list()?;
        for (event, round) in self.events.iter().zip(&mut self.rounds).rev() {
            self.instance.set_enabled(&event.name, false)?;
            self.tracefs.delete_own(&list, event)?;
            *round = round.or(Round::measure());
        }
        self.instance.remove()?;
        Ok(self.rounds)
    }
}

/// Name of the instance for what lasts for a moment, of a daemon whose own instance has this name. The next start
/// removes what a killed daemon has left of it.
pub(crate) fn temporary_instance(own: &str) -> String {
    format!("{own}-temporary")
}

/// Removes what a daemon that was killed has left: the instance by its name, and with it the events
/// of the group. Without the instance, events of that group are not the daemon's.
///
/// # Errors
/// When the kernel cannot be asked. What cannot be removed is left, with a warning.
pub(crate) fn remove_leftovers(tracefs: &Tracefs, own: &str) -> Result<(), Error> {
    let Some(instance) = Instance::find(tracefs, &temporary_instance(own)) else { return Ok(()) };
    let list = tracefs.kprobe_list()?;
    let ours = list.probes().iter().filter_map(|listed| {
        let name = listed.name.clone().filter(|name| name.group() == GROUP)?;
        Some((name, listed.line.clone()))
    });
    let ours: Vec<_> = ours.collect();
    for (name, _) in &ours {
        if let Err(error) = instance.set_enabled(name, false) {
            tracing::warn!(event = %name, %error, "cannot disarm a temporary probe that was left");
        }
    }
    for (name, listing) in ours {
        let id = tracefs.event_id(&name)?.unwrap_or_default();
        let own = OwnEvent::made(&name, &listing, id);
        match tracefs.delete_own(&list, &own) {
            Ok(_) => tracing::info!(event = %own.name, "removed a temporary probe that was left"),
            Err(error) => tracing::warn!(event = %own.name, %error, "cannot remove a temporary probe"),
        }
    }
    // Last: without it the next start would not look for the events.
    if let Err(error) = instance.remove() {
        tracing::warn!(%error, "cannot remove the instance of temporary probes");
    }
    Ok(())
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
        let cost = slower.since(round).unwrap();
        assert!((cost.ns - 601.0).abs() < 1e-9 && (cost.error_ns - 1.0).abs() < 1e-9, "{cost:?}");
        assert!(Round::measure().ns > 0.0);
    }

    /// The other work lasted longer than the measurement with the second probe: the second probe took twice as long as
    /// it does, and the third one nothing.
    #[test]
    fn other_work_during_a_measurement_changes_no_figure() {
        let rounds = |all: [f64; 4]| all.map(|ns| Round { ns, spread_ns: 10.0 });
        let (adding, removing) =
            (rounds([100.0, 1100.0, 5000.0, 4990.0]), rounds([900.0, 1110.0, 2990.0, 4990.0]));
        assert!(adding[3].since(adding[2]).is_none(), "no probe takes nothing");
        let measured: Vec<_> = adding.into_iter().zip(removing).map(|(one, other)| one.or(other)).collect();
        let costs: Vec<_> = measured.windows(2).map(|pair| pair[1].since(pair[0]).unwrap().ns).collect();
        assert_eq!(costs, [1000.0, 1890.0, 2000.0]);
    }

    #[test]
    fn what_was_not_measured_is_in_proportion() {
        let entry = HitCost { ns: 1000.0, error_ns: 10.0 };
        let only_entry = table(&|event| (event == ENTRY).then_some(entry)).unwrap();
        assert_eq!((only_entry.ftrace, only_entry.is_calibrated), (entry, true));
        assert_eq!(only_entry.breakpoint, CostTable::scaled(2.0).breakpoint);
        assert_eq!(table(&|event| (event != ENTRY).then_some(entry)), None);
    }

    #[test]
    fn a_guard_takes_what_either_value_takes() {
        let number = HitCost { ns: 100.0, error_ns: 5.0 };
        let guard = either(number, HitCost { ns: 500.0, error_ns: 10.0 });
        assert!((guard.ns - 300.0).abs() < 1e-9 && (guard.error_ns - 210.0).abs() < 1e-9, "{guard:?}");
        assert_eq!(guards("+8(%di)").split(' ').nth(4), Some("__kpd_g3=-2147483647(+8(%di)):ustring"));
    }
}
