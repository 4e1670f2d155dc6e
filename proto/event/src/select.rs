//! Selection from a batch: some of its events, and some of their fields.
//!
//! A daemon selects for a subscriber; this is the same for a program that has all events. Owns
//! which events and fields are left out. Never changes the values of those that stay.

use std::sync::Arc;

use crate::batch::Batch;
use crate::group::Group;
use crate::row::Row;
use crate::schema::Schema;

/// Names of fields, of probes or common to all events (`tid`, `comm`, `context`, `location`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Projection {
    names: Vec<String>,
}

impl Projection {
    /// The fields with these names; all when there are none.
    pub const fn new(names: Vec<String>) -> Self {
        Self { names }
    }

    /// Whether nothing is left out.
    pub const fn is_everything(&self) -> bool {
        self.names.is_empty()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|wanted| wanted == name)
    }
}

impl Batch {
    /// The events for which the function returns true. It is called for each event, those of one
    /// probe in the order of time.
    #[must_use]
    pub fn select(&self, mut keep: impl FnMut(&Row<'_>) -> bool) -> Self {
        let mut groups = Vec::with_capacity(self.groups().len());
        for (index, group) in self.groups().iter().enumerate() {
            let rows: Vec<usize> = (0..group.rows())
                .filter(|row| Row::of(self, index, *row).is_some_and(|row| keep(&row)))
                .collect();
            if rows.len() == group.rows() {
                groups.push(group.clone());
            } else if !rows.is_empty() {
                groups.push(group.take(&rows));
            }
        }
        self.with_groups(groups)
    }

    /// The events with fewer fields. A name that is both a field of a probe and common to all
    /// events selects both.
    #[must_use]
    pub fn project(&self, projection: &Projection) -> Self {
        if projection.is_everything() {
            return self.clone();
        }
        let batch = self.with_groups(self.groups().iter().map(|group| group.project(projection)).collect());
        if projection.has("comm") { batch } else { batch.without_tasks() }
    }
}

impl Schema {
    /// The schema with fewer fields, and their indices in this one.
    pub(crate) fn project(&self, projection: &Projection) -> (Arc<Self>, Vec<usize>) {
        let kept: Vec<usize> = (0..)
            .zip(self.fields())
            .filter(|(_, field)| projection.has(&field.name))
            .map(|(index, _)| index)
            .collect();
        let fields = kept.iter().filter_map(|index| self.fields().get(*index)).cloned().collect();
        (Arc::new(self.with_fields(fields)), kept)
    }
}

impl Group {
    fn project(&self, projection: &Projection) -> Self {
        let (schema, kept) = self.schema().project(projection);
        // The name of a task is found by its thread id.
        let tid = projection.has("tid") || projection.has("comm");
        self.with(schema, &kept, (tid, projection.has("context"), projection.has("location")))
    }
}
