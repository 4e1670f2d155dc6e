//! Some of the events of a batch, and some of their fields: what a daemon does for a subscriber,
//! done by whoever has all of them.
//!
//! Owns what is left out. The events that stay have the values that they had.

use std::sync::Arc;

use crate::batch::Batch;
use crate::group::Group;
use crate::row::Row;
use crate::schema::Schema;

/// Names of fields, of probes or of what all events have (`tid`, `comm`, `context`, `location`).
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
    /// The events that this holds for. It is asked for each, those of one probe in the order of time.
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

    /// The events with fewer fields. A name that both a probe and all events have stands for both.
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
    /// The schema with fewer fields, and where those were.
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
        // The name of a task is found by its thread.
        let tid = projection.has("tid") || projection.has("comm");
        self.with(schema, &kept, (tid, projection.has("context"), projection.has("location")))
    }
}
