//! Going over to a fresh instance, so that a probe can be deleted while others record, or the buffers become larger.
//!
//! The kernel empties the buffers of every instance in which a kprobe event that is removed was ever enabled (kernel/trace/trace_events.c:
//! probe_remove_event_call, EVENT_FILE_FL_WAS_ENABLED), and of no other. So everything that records is enabled in a second instance, in which
//! what is to be deleted never was, the readers change over without losing or doubling an event, and the first instance is removed. What is
//! deleted then empties nothing.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use super::ControlError;
use super::controller::{Controller, in_kernel};
use crate::kernel::{ReadError, threads_of_this_process, trace_clock_ns};
use crate::model::{ProbeName, ProbeUid};
use crate::pipeline::ReadersError;
use crate::tracefs::{Instance, InstanceOptions, TracefsError};

/// Windows that are tried: in each of them the kernel may have overwritten something.
const WINDOWS: usize = 5;

/// No further window is tried after this time: with readers that are far behind, each takes long, and nothing else is done meanwhile.
const LONGEST_TRIAL: Duration = Duration::from_secs(5);

/// How often an instance is tried to be removed: somebody may have one of its files open for a moment.
const REMOVALS: usize = 20;

/// Time between two of those tries.
const REMOVAL_PAUSE: Duration = Duration::from_millis(5);

/// What is recorded in our instance, or would be when it were switched on.
#[derive(Debug)]
pub(super) struct Recorded {
    name: ProbeName,
    filter: String,
    enabled: bool,
    id: u16,
}

impl Recorded {
    /// Whether it is switched on.
    pub(super) const fn is_enabled(&self) -> bool {
        self.enabled
    }
}

/// How to wait until every handler that runs has ended.
#[derive(Debug)]
pub(super) enum Settling<'a> {
    /// By a probe that does not record.
    Unused(&'a ProbeName),
    /// By an event that does.
    Recording(&'a Recorded),
}

impl Settling<'_> {
    fn wait(&self, instance: &Instance) -> Result<(), TracefsError> {
        match self {
            Self::Unused(name) => instance.clear_filter_and_settle(name),
            Self::Recording(event) => instance.settle_by(&event.name, &event.filter),
        }
    }
}

/// Why it was not gone over to a new instance. The old one is as it was.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandOverError {
    /// The kernel refused something.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// The new buffers can not be read.
    #[error(transparent)]
    Readers(#[from] ReadersError),
    /// Our own threads are not known.
    #[error(transparent)]
    Procfs(#[from] ReadError),
    /// The kernel overwrote events in every window, or there was no room for them.
    #[error("more is recorded than can be read")]
    Overload,
}

impl Controller {
    /// What else is in our instance. Empty when nothing of it records: then there is nothing to be lost.
    pub(super) fn recorded_besides(&self, doomed: &HashSet<ProbeUid>) -> Result<Vec<Recorded>, ControlError> {
        let mut recorded = Vec::new();
        for probe in self.parts.registry.all() {
            if let Some(live) = self.live.get(&probe.uid)
                && in_kernel(&probe.state)
                && !doomed.contains(&probe.uid)
            {
                recorded.push(Recorded {
                    name: probe.name.clone(),
                    filter: probe.filter.clone(),
                    enabled: probe.enabled,
                    id: live.source.origin.type_id,
                });
            }
        }
        for (name, attachment) in &self.attached {
            if let Ok(source) = &attachment.source
                && self.parts.instance.has_event(name)
            {
                recorded.push(Recorded {
                    name: name.clone(),
                    filter: attachment.filter.clone(),
                    enabled: self.parts.instance.is_enabled(name)?,
                    id: source.origin.type_id,
                });
            }
        }
        if !recorded.iter().any(|event| event.enabled) {
            recorded.clear();
        }
        Ok(recorded)
    }

    /// Goes over to the other instance, made with those options, with everything of `recorded`. What was enabled only in the old one is not in
    /// the new one.
    pub(super) fn hand_over(
        &mut self,
        options: &InstanceOptions,
        settling: &Settling<'_>,
        recorded: &[Recorded],
    ) -> Result<(), HandOverError> {
        let begun = Instant::now();
        let next = self.parts.instance.create_next(self.tracefs(), options)?;
        if let Err(error) = self.go_over_to(&next, settling, recorded) {
            remove(&next, recorded);
            return Err(error);
        }
        let last = std::mem::replace(&mut self.parts.instance, next.clone());
        self.parts.current_instance.set(next);
        remove(&last, recorded);
        for probe in self.parts.registry.all() {
            if let Some(live) = self.live.get_mut(&probe.uid) {
                live.ever_enabled = recorded.iter().any(|event| event.enabled && event.name == probe.name);
            }
        }
        let instance = self.parts.instance.name();
        tracing::info!(instance, events = recorded.len(), took = ?begun.elapsed(), "gone over");
        Ok(())
    }

    fn go_over_to(
        &self,
        next: &Instance,
        settling: &Settling<'_>,
        recorded: &[Recorded],
    ) -> Result<(), HandOverError> {
        exclude_ourselves(next, &self.parts.procfs)?;
        for event in recorded {
            if !event.filter.is_empty() {
                next.set_filter(&event.name, &event.filter)?;
            }
            if event.enabled {
                next.set_enabled(&event.name, true)?;
            }
        }
        self.readers.hold(self.tracefs(), next)?;
        let outcome = self.change_readers(next, settling, recorded);
        if outcome.is_err() {
            self.readers.go_back();
        }
        outcome
    }

    fn change_readers(
        &self,
        next: &Instance,
        settling: &Settling<'_>,
        recorded: &[Recorded],
    ) -> Result<(), HandOverError> {
        let both = recorded.iter().filter(|event| event.enabled).map(|event| event.id).collect();
        next.set_recording(true)?;
        let begun = Instant::now();
        for _ in 0..WINDOWS {
            let start_ns = trace_clock_ns();
            // Every handler that ran when the window began has ended before it does, and every one that ran when it ended has ended
            // before it is looked at.
            settling.wait(next)?;
            let window = start_ns..=trace_clock_ns();
            settling.wait(next)?;
            if self.readers.go_over(&window, &both) {
                return Ok(());
            }
            if begun.elapsed() > LONGEST_TRIAL {
                break;
            }
        }
        Err(HandOverError::Overload)
    }
}

/// Keeps the daemon from recording itself. A thread that is started meanwhile is excluded as the child of one that is, unless its parent was
/// not yet: then it is found the next time.
fn exclude_ourselves(instance: &Instance, procfs: &std::path::Path) -> Result<(), HandOverError> {
    let mut excluded = Vec::new();
    loop {
        let threads = threads_of_this_process(procfs)?;
        if threads.iter().all(|tid| excluded.contains(tid)) {
            return Ok(());
        }
        instance.exclude_tasks(&threads)?;
        excluded = threads;
    }
}

/// Removes an instance that is not read any more. One that can not be removed, since somebody has it open, at least records nothing.
fn remove(instance: &Instance, recorded: &[Recorded]) {
    for left in (0..REMOVALS).rev() {
        match instance.clone().remove() {
            Ok(()) => return,
            Err(error) if left == 0 => {
                tracing::warn!(%error, "an instance that is not used any more can not be removed: is one of its files open?");
            }
            Err(_) => thread::sleep(REMOVAL_PAUSE),
        }
    }
    for event in recorded {
        if let Err(error) = instance.set_enabled(&event.name, false) {
            tracing::warn!(%error, "can not switch an event off");
        }
    }
}
