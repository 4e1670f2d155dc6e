//! An event of the host that clients want recorded.

use std::sync::Arc;
use std::time::SystemTime;

use crate::model::{ProbeName, ProbeUid};
use crate::pipeline::EventSource;
use crate::tracefs::Instance;

/// Whether an attached event is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachedState {
    /// It is.
    Recording,
    /// It is not, for this reason.
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
    /// Its fields, and what was read of it. Absent when it could not be recorded since the daemon was started.
    pub source: Option<Arc<EventSource>>,
}

/// What the control thread knows of an attached event.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) uid: ProbeUid,
    pub(super) filter: String,
    pub(super) create_time: SystemTime,
    /// Where its events come from, or why they do not.
    pub(super) source: Result<Arc<EventSource>, String>,
}

impl Attachment {
    /// Looks whether it still records. An event can go while it is attached: its module is unloaded.
    pub(super) fn state(&self, name: &ProbeName, instance: &Instance) -> AttachedState {
        let waiting = |reason: &str| AttachedState::Waiting(reason.to_owned());
        match &self.source {
            Err(reason) => AttachedState::Waiting(reason.clone()),
            Ok(_) if !instance.has_event(name) => waiting("the host does not have the event any more"),
            Ok(_) => match instance.is_enabled(name) {
                Ok(true) => AttachedState::Recording,
                Ok(false) => waiting("it was switched off in the daemon's instance"),
                Err(error) => AttachedState::Waiting(error.to_string()),
            },
        }
    }

    /// The event as clients see it.
    pub(super) fn event(&self, name: &ProbeName, instance: &Instance) -> AttachedEvent {
        AttachedEvent {
            uid: self.uid,
            name: name.clone(),
            filter: self.filter.clone(),
            state: self.state(name, instance),
            create_time: self.create_time,
            source: self.source.as_ref().ok().map(Arc::clone),
        }
    }
}
