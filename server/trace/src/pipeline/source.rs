//! What the readers know of the probes: which event id belongs to whom, and how it is decoded.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::counters::{Counter, ProbeCounts, SpanCounter};
use crate::decode::{Plan, PlanTable, Schema};
use kprobed_lang::model::{Labels, ProbeName, ProbeUid};

/// Whose events they are and what their columns mean: what a subscriber selects by.
#[derive(Debug)]
pub struct Origin {
    /// Identifies the schema within streams: given out once in the life of the daemon.
    pub schema_id: u32,
    /// The probe's incarnation, or what stands for it where an event of the host is attached.
    pub uid: ProbeUid,
    /// Its event.
    pub name: ProbeName,
    /// The event's number in the running kernel (`common_type`).
    pub type_id: u16,
    /// The fields of its events.
    pub schema: Arc<Schema>,
    labels: RwLock<Arc<Labels>>,
}

impl Origin {
    /// Without labels.
    pub fn new(schema_id: u32, uid: ProbeUid, name: ProbeName, type_id: u16, schema: Arc<Schema>) -> Self {
        Self { schema_id, uid, name, type_id, schema, labels: RwLock::default() }
    }

    /// The probe's labels as of now.
    pub fn labels(&self) -> Arc<Labels> {
        Arc::clone(&self.labels.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the labels. For the control thread, which does so before the event is enabled, and
    /// whenever a client changes them; the hub then has to look at all selections again.
    pub fn set_labels(&self, labels: Labels) {
        *self.labels.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(labels);
    }
}

/// A probe as the source of events.
#[derive(Debug)]
pub struct EventSource {
    /// Whose events.
    pub origin: Arc<Origin>,
    /// How they are decoded.
    pub plan: Plan,
    pub(super) read: Counter,
    pub(super) read_span: SpanCounter,
    pub(super) undecodable: Counter,
}

impl EventSource {
    /// A source that nothing was read from yet, without labels.
    pub fn new(schema_id: u32, uid: ProbeUid, name: ProbeName, plan: Plan) -> Self {
        Self {
            origin: Arc::new(Origin::new(schema_id, uid, name, plan.id(), Arc::clone(plan.schema()))),
            plan,
            read: Counter::default(),
            read_span: SpanCounter::default(),
            undecodable: Counter::default(),
        }
    }

    /// The fields of its events.
    pub fn schema(&self) -> &Schema {
        &self.origin.schema
    }

    /// What was read so far.
    pub fn counts(&self) -> ProbeCounts {
        ProbeCounts {
            read: self.read.get(),
            read_span: self.read_span.get(),
            undecodable: self.undecodable.get(),
        }
    }
}

/// Event ids and their sources, as of one moment.
pub(super) type Sources = PlanTable<Arc<EventSource>>;

/// The sources by event id. The control thread changes it, the readers look at it again for each
/// page.
#[derive(Debug, Default)]
pub struct SourceTable {
    current: Mutex<Arc<Sources>>,
}

impl SourceTable {
    /// Makes the events of these ids known. Has to happen before they are enabled.
    pub fn insert(&self, known: impl IntoIterator<Item = (u16, Arc<EventSource>)>) {
        self.change(|sources| {
            for (id, source) in known {
                sources.insert(id, source);
            }
        });
    }

    /// Forgets the sources with these uids. Has to happen after the buffers were drained, and
    /// before their ids can be given to other events.
    pub fn remove(&self, gone: &[ProbeUid]) {
        if gone.is_empty() {
            return;
        }
        self.change(|sources| {
            let is_gone = |source: &Arc<EventSource>| gone.contains(&source.origin.uid);
            let ids: Vec<_> =
                sources.iter_mut().filter(|(_, source)| is_gone(source)).map(|(id, _)| id).collect();
            for id in ids {
                sources.remove(id);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Sources)) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sources = Sources::clone(&current);
        change(&mut sources);
        *current = Arc::new(sources);
    }

    pub(super) fn current(&self) -> Arc<Sources> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
