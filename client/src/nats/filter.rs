//! Filter on the events of one host, as they are read from NATS.

use std::collections::HashMap;
use std::sync::Arc;

use crate::event::{Batch, BoundEventFilter, EventFilter, Schema};

/// A filter with what it means for the probes of one host.
#[derive(Debug)]
pub(super) struct Filtering {
    filter: EventFilter,
    host: String,
    /// By the number of the schema, which another run of the daemon gives to another probe.
    bound: HashMap<u32, (Arc<Schema>, BoundEventFilter)>,
}

impl Filtering {
    pub(super) fn new(filter: EventFilter, host: &str) -> Self {
        Self { filter, host: host.to_owned(), bound: HashMap::new() }
    }

    /// The events of a batch that it selects.
    pub(super) fn select(&mut self, batch: &Batch) -> Batch {
        for group in batch.groups() {
            let schema = group.schema();
            let is_known = self.bound.get(&schema.id()).is_some_and(|(known, _)| Arc::ptr_eq(known, schema));
            if !is_known {
                // As in the daemon, a filter that cannot be bound to a probe matches none of its events.
                let bound = self.filter.bind(schema.probe(), &self.host, &[schema]);
                let bound = bound.unwrap_or(BoundEventFilter::NOTHING);
                self.bound.insert(schema.id(), (Arc::clone(schema), bound));
            }
        }
        batch.select(|row| {
            let bound = self.bound.get(&row.schema().id());
            bound.is_some_and(|(_, bound)| bound.matches(*row))
        })
    }
}
