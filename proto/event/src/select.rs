//! Selection from a batch: some of its events, and some of their fields.
//!
//! A daemon selects for a subscriber; this is the same for a program that has all events. Owns
//! which events and fields are left out. Never changes the values of those that stay.

use kprobed_filter::FieldSchema;

use crate::batch::Batch;
use crate::group::Group;
use crate::row::Row;

/// Columns that all events have, and that a subscriber can leave out.
pub const COMMON_FIELDS: [&str; 4] = ["tid", "comm", "context", "location"];

/// Names of fields, of probes or common to all events. None: all fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Projection {
    names: Vec<String>,
}

/// A projection of one schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projected {
    /// Indices of the schema's fields, in the order of the schema.
    pub fields: Vec<usize>,
    /// With thread ids.
    pub tid: bool,
    /// With names of tasks.
    pub comm: bool,
    /// With flags and preempt counts.
    pub context: bool,
    /// With addresses of the probe and of what it returns to.
    pub location: bool,
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

    /// The first name that is neither a field of one of these schemas nor common to all events.
    /// None if there is no schema: the probe may be created later.
    pub fn unknown(&self, schemas: &[&kprobed_filter::Schema]) -> Option<&str> {
        schemas.first()?;
        let fields = || schemas.iter().flat_map(|schema| &schema.fields);
        let known = |name: &str| COMMON_FIELDS.contains(&name) || fields().any(|field| field.name == name);
        self.names.iter().map(String::as_str).find(|name| !known(name))
    }

    /// The fields of a schema that it keeps. A name that is both a field of the probe and common to
    /// all events selects both.
    pub fn of(&self, fields: &[FieldSchema]) -> Projected {
        let has = |name: &str| self.is_everything() || self.names.iter().any(|wanted| wanted == name);
        let comm = has("comm");
        Projected {
            fields: (0..).zip(fields).filter(|(_, field)| has(&field.name)).map(|(index, _)| index).collect(),
            // The name of a task is found by its thread id.
            tid: has("tid") || comm,
            comm,
            context: has("context"),
            location: has("location"),
        }
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
        let project = |group: &Group| group.project(&projection.of(group.schema().fields()));
        let batch = self.with_groups(self.groups().iter().map(project).collect());
        if projection.names.iter().any(|name| name == "comm") { batch } else { batch.without_tasks() }
    }
}
