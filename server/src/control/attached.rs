//! An attached event: a trace event of the host that clients want recorded, and whether it is.
//!
//! Owns its state, which is read from the kernel each time. Never attaches or detaches: that is
//! [`super::attach`].

use std::sync::Arc;
use std::time::SystemTime;

use super::{Observer, altered};
use kprobed_host::tracefs::{Instance, TracefsError};
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_trace::pipeline::EventSource;

/// Whether an attached event is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachedState {
    /// It is recorded.
    Recording,
    /// It is not recorded, or not as it was requested. The reason is for people.
    Waiting(String),
}

/// An attached event, as of one moment.
#[derive(Clone, Debug)]
pub struct AttachedEvent {
    /// Its uid, which no probe has.
    pub uid: ProbeUid,
    /// The event.
    pub name: ProbeName,
    /// Kernel filter in the daemon's instance; empty for none.
    pub filter: String,
    /// Whether it is recorded.
    pub state: AttachedState,
    /// When it was attached.
    pub create_time: SystemTime,
    /// Its fields, and the counts of its events. Absent if it could not be recorded since the
    /// daemon was started.
    pub source: Option<Arc<EventSource>>,
}

/// What the control thread knows of an attached event.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) uid: ProbeUid,
    pub(super) filter: String,
    pub(super) create_time: SystemTime,
    /// The source of its events, or why there is none.
    pub(super) source: Result<Arc<EventSource>, String>,
}

impl Attachment {
    /// Checks whether it still records what was asked. An event can go while it is attached: its
    /// module is unloaded, or its owner removes it.
    pub(super) fn state(&self, name: &ProbeName, observer: &Observer, instance: &Instance) -> AttachedState {
        let source = match &self.source {
            Ok(source) => source,
            Err(reason) => return AttachedState::Waiting(reason.clone()),
        };
        match self.drift(name, source, observer, instance) {
            Ok(None) => AttachedState::Recording,
            Ok(Some(reason)) => AttachedState::Waiting(reason),
            Err(error) => AttachedState::Waiting(error.to_string()),
        }
    }

    /// What differs from what was asked.
    fn drift(
        &self,
        name: &ProbeName,
        source: &EventSource,
        observer: &Observer,
        instance: &Instance,
    ) -> Result<Option<String>, TracefsError> {
        let of = |reason: &str| Ok(Some(reason.to_owned()));
        if !instance.has_event(name) {
            return of("the host does not have the event any more");
        }
        if observer.tracefs.event_id(name)? != Some(source.origin.type_id) {
            return of("its owner has defined the event anew: attach it again");
        }
        if !instance.is_enabled(name)? {
            return of("another program has switched it off in the daemon's instance: attach it again");
        }
        let filter = instance.filter(name)?;
        if filter.trim() != self.filter.trim() {
            let has = if filter.is_empty() {
                "removed its filter".to_owned()
            } else {
                format!("changed its filter to `{filter}`")
            };
            return Ok(Some(format!("another program has {has} in the daemon's instance: attach it again")));
        }
        let switches = observer.switches(instance)?;
        let altered = switches.harmful().next().map(|alteration| altered(alteration).1);
        Ok(altered.map(|reason| format!("{reason}: attach it again")))
    }

    /// The event as clients see it.
    pub(super) fn event(&self, name: &ProbeName, observer: &Observer, instance: &Instance) -> AttachedEvent {
        AttachedEvent {
            uid: self.uid,
            name: name.clone(),
            filter: self.filter.clone(),
            state: self.state(name, observer, instance),
            create_time: self.create_time,
            source: self.source.as_ref().ok().map(Arc::clone),
        }
    }
}
