//! Hand-over to a second trace instance, so that a probe can be deleted while others record, or the
//! buffers can grow.
//!
//! Owns the switch and its loss-free order. The kernel empties the buffers of every instance in
//! which a kprobe event that is removed was ever enabled (kernel/trace/trace_events.c:
//! probe_remove_event_call, EVENT_FILE_FL_WAS_ENABLED), and of no other. So everything that records
//! is enabled in a second instance, in which what is to be deleted never was, the readers switch
//! without losing or doubling an event, and the first instance is removed. The deletion then
//! empties nothing.
//!
//! Owns also when the ring buffers grow, which the rate of events can need, and by how much. The kernel does not record
//! while it changes the size of a buffer, and hits in that time are counted nowhere. So the daemon never resizes a
//! buffer: it switches to an instance with larger ones, without a loss unless they overflow too soon for that. Buffers
//! never become smaller again: a rate that was seen once is expected to return.

use std::collections::HashSet;
use std::iter::successors;
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::controller::Controller;
use super::observed::{ObservedEvent, Switch};
use super::own;
use super::step::{self, Seen, Step};
use crate::error::{Error, Reason};
use kprobed_event::PauseReason;
use kprobed_host::kernel::trace_clock_ns;
use kprobed_host::tracefs::{Instance, InstanceOptions, TracefsError, grace_period};
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_trace::pipeline::HandoverWindow;

/// How often the daemon tries to remove an instance: another program may have one of its files open
/// for a short time.
const REMOVALS: usize = 20;

/// Time between two of those tries.
const REMOVAL_PAUSE: Duration = Duration::from_millis(5);

/// What our instance records, or would record if it were switched on.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    pub(super) name: ProbeName,
    /// The filter in force; empty for none.
    pub(super) filter: String,
    /// Whether it is switched on.
    pub(super) enabled: bool,
    /// For which records its call stacks are recorded. Absent for none.
    pub(super) stacks: Option<String>,
    /// The id that its records carry. 0 for an event that is only planned.
    pub(super) id: u16,
    pub(super) is_of_host: bool,
}

impl Recorded {
    /// The steps that record it in another instance as it is recorded in ours.
    pub(super) fn steps(&self) -> Vec<Step> {
        let stack = self.stacks.is_some();
        step::change(&Seen::FRESH, step::Aim { enabled: Some(self.enabled), filter: &self.filter, stack })
    }
}

/// The reason of a pause, and how to wait until every handler that runs has ended.
pub(super) type Settling<'a> = (PauseReason, &'a dyn Fn(&Instance) -> Result<(), TracefsError>);

impl Controller {
    /// What else our instance records. An event that cannot be read is not moved, and keeps no other from it.
    pub(super) fn recorded_besides(&self, doomed: &HashSet<ProbeUid>) -> Vec<Recorded> {
        let mut recorded = Vec::new();
        let mut probes = self.parts.registry.in_instance();
        probes.retain(|probe| !self.making.iter().any(|made| made.uid == probe.uid));
        probes.extend(self.making.iter().cloned());
        probes.retain(|probe| !doomed.contains(&probe.uid));
        probes.sort_by(|one, other| one.name.cmp(&other.name));
        let observed = self.observer.observe(&probes);
        for probe in probes {
            let Some(live) = self.live.get(&probe.uid) else { continue };
            // Changes by other programs stay: both instances must record the same.
            let (enabled, filter) = match observed.events.get(&probe.uid) {
                Some(ObservedEvent::Lost(_)) => continue,
                Some(ObservedEvent::There { seen, .. }) => {
                    (probe.is_to_record() && seen.switch != Switch::Off, seen.filter.clone())
                }
                Some(ObservedEvent::Unknown(_)) | None => (probe.is_to_record(), probe.spec.filter.clone()),
            };
            let filter = own::kernel_filter(self.tracefs(), &probe.name, &filter, probe.schema.as_ref());
            let filter = match filter {
                Ok(filter) => filter,
                Err(error) => {
                    tracing::warn!(probe = %probe.name, %error, "cannot look at an event that is recorded");
                    continue;
                }
            };
            recorded.push(Recorded {
                name: probe.name.clone(),
                stacks: own::stack_condition(&probe, &filter),
                filter,
                enabled,
                id: live.source.origin.type_id,
                is_of_host: probe.is_of_host(),
            });
        }
        recorded
    }

    /// Switches to the second instance, made with those options, with everything of `recorded`.
    /// What was enabled only in the old one is not in the new one. If that fails, the old one is unchanged.
    pub(super) fn hand_over(
        &mut self,
        options: &InstanceOptions,
        settling: Settling<'_>,
        recorded: &[Recorded],
    ) -> Result<(), Error> {
        let begun = Instant::now();
        self.note_last_interference();
        let overrun = self.parts.instance.overrun()?;
        let (next, claim) = self.parts.instance.create_next(self.tracefs(), options)?;
        let prepared = prepare(&next, &self.parts.procfs, recorded);
        // Buffers that overflow all the time do so during this check.
        let overflows = prepared.is_ok() && self.parts.instance.overrun()? > overrun;
        let ways = [Way::Running, Way::Stopped, Way::Paused].into_iter().skip(usize::from(overflows));
        let prepared = prepared.map_err(Error::from);
        let way = match prepared.and_then(|()| self.go_over_to(&next, settling, recorded, ways)) {
            Ok(way) => way,
            Err(error) => {
                remove(&next, recorded);
                return Err(error);
            }
        };
        let last = std::mem::replace(&mut self.parts.instance, next.clone());
        self.parts.current_instance.set(next);
        // The next one is claimed before the last one is released.
        let last_claim = std::mem::replace(&mut self.parts.claim, claim);
        remove(&last, recorded);
        drop(last_claim);
        let enabled: HashSet<_> =
            recorded.iter().filter(|event| event.enabled).map(|event| event.id).collect();
        for live in self.live.values_mut() {
            live.ever_enabled = enabled.contains(&live.source.origin.type_id);
        }
        let instance = self.parts.instance.name();
        tracing::info!(instance, events = recorded.len(), last = ?way, took = ?begun.elapsed(), "switched trace instance");
        Ok(())
    }

    /// Switches in the first way that succeeds. Returns which it was.
    fn go_over_to(
        &mut self,
        next: &Instance,
        settling: Settling<'_>,
        recorded: &[Recorded],
        ways: impl Iterator<Item = Way>,
    ) -> Result<Way, Error> {
        for way in ways {
            self.readers.hold(self.tracefs(), next)?;
            let is_over = self.change_readers(next, settling, recorded, way);
            if let Ok(true) = is_over {
                return Ok(way);
            }
            self.readers.go_back();
            is_over?;
            next.set_recording(false)?;
            next.clear()?;
        }
        Err(Error::new(Reason::TRACEFS, "more is recorded than can be read"))
    }

    /// Makes the buffers as large as `wanted_kib`, or as large as they may be.
    pub(super) fn grow(&mut self, wanted_kib: u64) {
        let options = &self.parts.instance_options;
        let Some(buffer_kib) = larger(options.buffer_kib, wanted_kib, options.buffer_max_kib) else { return };
        if self.growth.not_before.is_some_and(|time| Instant::now() < time) {
            return;
        }
        // Another program may have made them larger than the daemon did, or than they may grow.
        if self.parts.instance.buffer_kib().is_ok_and(|now_kib| now_kib >= buffer_kib) {
            return;
        }
        let options = InstanceOptions { buffer_kib, ..options.clone() };
        let recorded = self.recorded_besides(&HashSet::new());
        // An event that is switched off is not disturbed at all.
        let Some(event) = recorded.iter().min_by_key(|event| event.enabled) else { return };
        if !recorded.iter().any(|event| event.enabled) {
            return;
        }
        let settle = |next: &Instance| next.settle_by(&event.name, &event.filter);
        match self.hand_over(&options, (PauseReason::Resize, &settle), &recorded) {
            Ok(()) => {
                tracing::info!(buffer_kib, "the ring buffers were too small for the rate");
                (self.parts.instance_options, self.growth) = (options, Growth::default());
            }
            Err(error) => {
                tracing::warn!(%error, buffer_kib, "the ring buffers are too small for the rate, and cannot become larger now");
                self.growth.has_failed();
            }
        }
    }

    /// Returns false if the kernel overwrote events while both instances recorded.
    fn change_readers(
        &mut self,
        next: &Instance,
        (reason, settle): Settling<'_>,
        recorded: &[Recorded],
        way: Way,
    ) -> Result<bool, Error> {
        let both = recorded.iter().filter(|event| event.enabled).map(|event| event.id).collect();
        let has_tracepoints = recorded.iter().any(|event| event.enabled && event.is_of_host);
        let await_tracepoints = || if has_tracepoints { next.await_tracepoints() } else { Ok(()) };
        let settle = |next: &Instance| settle(next).and_then(|()| await_tracepoints());
        if way == Way::Paused {
            let pause = self.pause_recording(reason, true);
            // What is just being recorded is, before it is read. A thorough wait would only lose
            // more.
            grace_period();
            if let Err(error) = await_tracepoints() {
                tracing::warn!(%error, "an event of the host may be recorded twice");
            }
            let now_ns = trace_clock_ns();
            let wanted = HandoverWindow { window: now_ns..=now_ns, both, has_ended: true };
            let is_over = self.readers.change_over(&wanted);
            let goes_on = if is_over { next } else { &self.parts.instance };
            self.resume_recording(&pause, &goes_on.clone());
            return Ok(is_over);
        }
        let overrun = self.parts.instance.overrun()?;
        next.set_recording(true)?;
        let start_ns = trace_clock_ns();
        // Every handler that ran when the window began has ended before the window does, and every
        // one that ran at its end has ended before the buffers are read.
        settle(next)?;
        let window = start_ns..=trace_clock_ns();
        if next.overrun()? > 0 {
            return Ok(false);
        }
        let has_ended = way == Way::Stopped;
        let pause = has_ended.then(|| self.pause_recording(reason, true));
        let settled = settle(next);
        let overwritten = !has_ended && self.parts.instance.overrun()? > overrun;
        let wanted = HandoverWindow { window, both, has_ended };
        if settled.is_ok() && !overwritten && self.readers.change_over(&wanted) {
            // Hits since then are in the next instance.
            return Ok(true);
        }
        if let Some(pause) = pause {
            self.resume_recording(&pause, &self.parts.instance.clone());
        }
        settled?;
        Ok(false)
    }
}

/// Time after a failed try until the next one; twice as long after each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(2);

/// No longer than this.
const LONGEST_PAUSE: Duration = Duration::from_mins(2);

/// When the next try may be made.
#[derive(Debug, Default)]
pub(super) struct Growth {
    not_before: Option<Instant>,
    pause: Duration,
}

impl Growth {
    fn has_failed(&mut self) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.not_before = Some(Instant::now() + self.pause);
    }
}

/// The size to switch to: doubled as often as needed, up to `most_kib`. Absent if the present size
/// suffices, or is the largest allowed.
fn larger(now_kib: u64, wanted_kib: u64, most_kib: u64) -> Option<u64> {
    let doubled = successors(Some(now_kib.max(1)), |kib| kib.checked_mul(2)).find(|kib| *kib >= wanted_kib);
    let kib = doubled.unwrap_or(u64::MAX).min(most_kib);
    (kib > now_kib).then_some(kib)
}

/// How the last instance is left, the best way first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It goes on recording while it is looked at. Under overload the kernel overwrites it
    /// meanwhile.
    Running,
    /// It stops once both have recorded for long enough, so that what it has of that time is not
    /// overwritten before it is read. When the buffer is too small for that time, what was hit
    /// since it stopped is lost, and counted.
    Stopped,
    /// It stops before the next one begins. What is hit between them is lost, and counted.
    Paused,
}

/// Switches everything on in an instance that does not record yet.
fn prepare(next: &Instance, procfs: &std::path::Path, recorded: &[Recorded]) -> Result<(), TracefsError> {
    next.exclude_this_process(procfs)?;
    for event in recorded {
        for step in event.steps() {
            match step {
                Step::Filter { after, .. } => next.set_filter(&event.name, &after)?,
                Step::Enable => match &event.stacks {
                    Some(condition) => next.enable_with_stacks(&event.name, condition)?,
                    None => next.set_enabled(&event.name, true)?,
                },
                // It is fresh there.
                Step::Disable | Step::Define { .. } | Step::Delete => {}
            }
        }
    }
    Ok(())
}

/// Removes an instance that is not read any more. If another program has it open, so that it cannot
/// be removed, it at least records nothing.
fn remove(instance: &Instance, recorded: &[Recorded]) {
    for left in (0..REMOVALS).rev() {
        match instance.clone().remove() {
            Ok(()) => return,
            Err(error) if left == 0 => {
                tracing::warn!(%error, "an instance that is not used any more cannot be removed: is one of its files open?");
            }
            Err(_) => thread::sleep(REMOVAL_PAUSE),
        }
    }
    for event in recorded {
        let off = match event.stacks {
            Some(_) => instance.disable_with_stacks(&event.name),
            None => instance.set_enabled(&event.name, false),
        };
        if let Err(error) = off {
            tracing::warn!(%error, "cannot switch an event off");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_doubled_up_to_a_limit() {
        assert_eq!(larger(1024, 1025, 65_536), Some(2048));
        assert_eq!(larger(1024, 9000, 65_536), Some(16_384));
        assert_eq!(larger(1024, 90_000, 65_536), Some(65_536));
        assert_eq!(larger(1024, 90_000, 1024), None);
        assert_eq!(larger(1024, 1000, 65_536), None);
        assert_eq!(larger(65_536, u64::MAX, 8192), None);
        assert_eq!(larger(0, u64::MAX, 8192), Some(8192));
    }

    #[test]
    fn failures_are_followed_by_longer_pauses() {
        let mut growth = Growth::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            growth.has_failed();
            pauses.push(growth.pause.as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 120, 120]);
    }
}
