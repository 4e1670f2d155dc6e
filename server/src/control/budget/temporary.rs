//! Temporary probes: probes that the daemon arms for a moment, to measure something.
//!
//! Owns their group, and the tracing instance that records them, also those that a killed daemon
//! has left. Nothing else is recorded in that instance, and nobody reads it: so the deletion of a
//! temporary probe empties no buffer that is in use. Never touches the probes of clients.

use crate::control::ControlError;
use kprobed_host::kernel::TRACE_CLOCK;
use kprobed_host::tracefs::{
    ClaimError, DefineError, Instance, InstanceOptions, OwnEvent, Tracefs, TracefsError,
};
use kprobed_lang::model::ProbeName;

/// Group of the temporary probes.
pub(super) const GROUP: &str = "kprobed_temporary";

/// Buffers of the instance for each CPU, in KiB: what they record is never read, but the next record
/// should not find its place in the fastest cache.
const BUFFER_KIB: u64 = 256;

/// Why a probe could not be armed for a moment.
#[derive(Debug, thiserror::Error)]
pub(super) enum TemporaryError {
    /// The kernel or the list of its probes.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// The instance belongs to another daemon.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The kernel does not take a temporary probe.
    #[error(transparent)]
    Define(#[from] Box<DefineError>),
    /// Its own event is not listed.
    #[error("the kernel does not list `{GROUP}/{0}`, which it has accepted")]
    NotListed(&'static str),
}

/// The instance and the events. [`Temporary::remove`] has to be called in any case; the next start
/// does it if this daemon is killed before.
pub(super) struct Temporary<'a> {
    tracefs: &'a Tracefs,
    instance: Instance,
    events: Vec<OwnEvent>,
}

impl<'a> Temporary<'a> {
    /// Makes the instance, for a daemon whose own instance has this name.
    pub(super) fn make(tracefs: &'a Tracefs, own: &str) -> Result<Self, TemporaryError> {
        let options = InstanceOptions {
            name: instance_name(own),
            buffer_kib: BUFFER_KIB,
            buffer_max_kib: BUFFER_KIB,
            sub_buffer_kib: 0,
            clock: TRACE_CLOCK,
        };
        let (instance, _claim) = Instance::open_or_create(tracefs, &options)?;
        Ok(Self { tracefs, instance, events: Vec::new() })
    }

    /// Defines a probe by a line of `kprobe_events` with this event of the group, and records it.
    pub(super) fn arm(&mut self, event: &'static str, line: &str) -> Result<OwnEvent, TemporaryError> {
        for outcome in self.tracefs.define_kprobes(&[line]) {
            outcome.map_err(Box::new)?;
        }
        let name = ProbeName::new(GROUP, event).map_err(|_bad| TemporaryError::NotListed(event))?;
        self.tracefs.forget_kprobe_list();
        let found = self.tracefs.find_own(&*self.tracefs.kprobe_list()?, &name, line)?;
        let own = found.ok_or(TemporaryError::NotListed(event))?;
        self.events.push(own.clone());
        self.instance.set_enabled(&own.name, true)?;
        Ok(own)
    }

    /// How often the kernel has counted a hit of a probe, skipped runs included.
    pub(super) fn hits(&self, event: &OwnEvent) -> Result<u64, TemporaryError> {
        let counts = self.tracefs.hit_counts()?;
        let row = counts.rows().find(|row| row.listing == event.listing);
        Ok(row.map_or(0, |row| row.hits.hits.saturating_add(row.hits.nmissed)))
    }

    /// Removes everything. The instance goes last: a start looks for the events if it is there.
    pub(super) fn remove(self) -> Result<(), TemporaryError> {
        self.tracefs.forget_kprobe_list();
        let list = self.tracefs.kprobe_list()?;
        for event in &self.events {
            self.instance.set_enabled(&event.name, false)?;
            self.tracefs.delete_own(&list, event)?;
        }
        Ok(self.instance.remove()?)
    }
}

/// Name of the instance of a daemon whose own instance has this name.
fn instance_name(own: &str) -> String {
    format!("{own}-temporary")
}

/// Removes what a daemon that was killed has left: the instance by its name, and with it the events
/// of the group. Without the instance, events of that group are not the daemon's.
///
/// # Errors
/// When the kernel cannot be asked. What cannot be removed is left, with a warning.
pub(in crate::control) fn remove_leftovers(tracefs: &Tracefs, own: &str) -> Result<(), ControlError> {
    let Some(instance) = Instance::find(tracefs, &instance_name(own)) else { return Ok(()) };
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
        let own = OwnEvent { name, listing, id };
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
