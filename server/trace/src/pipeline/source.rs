//! Event sources: the probe of each event id, and the plan that decodes its records.
//!
//! Owns the table that maps event ids to sources, and the labels of each source. Never defines or
//! enables an event: the control thread does.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::counters::{Counter, ProbeCounts, SpanCounter};
use crate::decode::{CompiledFormat, Schema};
use kprobed_lang::model::{Labels, ProbeName, ProbeUid};

/// Origin of events: their probe, labels and schema, which subscribers select by.
#[derive(Debug)]
pub struct Origin {
    /// Identifies the schema within streams: no other schema gets this number during a run of the
    /// daemon.
    pub schema_id: u32,
    /// Uid of the probe.
    pub uid: ProbeUid,
    /// Name of its event.
    pub name: ProbeName,
    /// The event's number in the running kernel (`common_type`).
    pub type_id: u16,
    /// The fields of its events.
    pub schema: Arc<Schema>,
    labels: RwLock<Arc<Labels>>,
}

impl Origin {
    /// An origin without labels.
    pub fn new(schema_id: u32, uid: ProbeUid, name: ProbeName, type_id: u16, schema: Arc<Schema>) -> Self {
        Self { schema_id, uid, name, type_id, schema, labels: RwLock::default() }
    }

    /// The current labels of the probe.
    pub fn labels(&self) -> Arc<Labels> {
        Arc::clone(&self.labels.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the labels. For the control thread, which does so before the event is enabled, and
    /// whenever a client changes them; the caller then calls
    /// [`Hub::selections_changed`](super::Hub::selections_changed).
    pub fn set_labels(&self, labels: Labels) {
        *self.labels.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(labels);
    }
}

/// A probe as the source of events.
#[derive(Debug)]
pub struct EventSource {
    /// The probe, and its schema.
    pub origin: Arc<Origin>,
    /// How they are decoded.
    pub plan: CompiledFormat,
    pub(super) read: Counter,
    pub(super) read_span: SpanCounter,
    pub(super) undecodable: Counter,
}

impl EventSource {
    /// A new source, without events and labels.
    pub fn new(schema_id: u32, uid: ProbeUid, name: ProbeName, plan: CompiledFormat) -> Self {
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

    /// Ledger terms so far.
    pub fn counts(&self) -> ProbeCounts {
        ProbeCounts {
            read: self.read.get(),
            read_span: self.read_span.get(),
            undecodable: self.undecodable.get(),
        }
    }
}

/// Snapshot of the sources by event id.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources(Vec<Option<Arc<EventSource>>>);

impl Sources {
    /// Sets the source of an event. The kernel uses ids again after an event was deleted.
    fn insert(&mut self, id: u16, source: Arc<EventSource>) {
        let index = usize::from(id);
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        if let Some(place) = self.0.get_mut(index) {
            *place = Some(source);
        }
    }

    /// The source of a record, by the `common_type` at its beginning
    /// (include/linux/trace_events.h:struct trace_entry).
    #[inline]
    pub(super) fn lookup(&self, record: &[u8]) -> Option<&Arc<EventSource>> {
        let id = u16::from_le_bytes(*record.first_chunk()?);
        self.0.get(usize::from(id))?.as_ref()
    }
}

/// The sources by event id. The control thread changes the table, and the readers take a snapshot
/// for each page.
#[derive(Debug, Default)]
pub struct SourceTable {
    current: Mutex<Arc<Sources>>,
}

impl SourceTable {
    /// Adds sources. Call it before their events are enabled.
    pub fn insert(&self, known: impl IntoIterator<Item = (u16, Arc<EventSource>)>) {
        self.change(|sources| {
            for (id, source) in known {
                sources.insert(id, source);
            }
        });
    }

    /// Removes the sources with these uids. Call it after the buffers were drained, and before the
    /// kernel can give their ids to other events.
    pub fn remove(&self, gone: &[ProbeUid]) {
        if gone.is_empty() {
            return;
        }
        self.change(|sources| {
            for place in &mut sources.0 {
                *place = place.take().filter(|source| !gone.contains(&source.origin.uid));
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

#[cfg(test)]
mod tests {
    use super::super::samples::source;
    use super::*;

    #[test]
    fn sources_are_found_by_the_first_two_bytes() {
        let table = SourceTable::default();
        let found = |record: &[u8]| table.current().lookup(record).map(|source| source.origin.schema_id);
        table.insert([(0x0570, source("a", 1)), (u16::MAX, source("b", 2))]);
        assert_eq!(found(&[0x70, 0x05, 9]), Some(1));
        assert_eq!(found(&[0xff, 0xff]), Some(2));
        assert_eq!(found(&[0x71, 0x05]), None);
        assert_eq!(found(&[0x70]), None);
        table.insert([(0x0570, source("c", 3))]);
        assert_eq!(found(&[0x70, 0x05]), Some(3));
        table.remove(&[ProbeUid(3)]);
        assert_eq!(found(&[0x70, 0x05]), None);
        assert_eq!(found(&[0xff, 0xff]), Some(2));
    }
}
