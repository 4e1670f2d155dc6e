//! Projection: the fields of events that a subscriber wants.
//!
//! Owns the names, and what they select of a schema. Never copies a value: the encoder leaves the
//! other fields out.

use crate::decode::Schema;

/// Columns that all events have, and that a subscriber can leave out.
pub const COMMON: [&str; 4] = ["tid", "comm", "context", "location"];

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
    pub fn unknown(&self, schemas: &[&Schema]) -> Option<&str> {
        schemas.first()?;
        let has = |schema: &Schema, name: &str| schema.fields.iter().any(|field| field.name == name);
        let known = |name: &str| COMMON.contains(&name) || schemas.iter().any(|schema| has(schema, name));
        self.names.iter().map(String::as_str).find(|name| !known(name))
    }

    /// The fields of a schema that it keeps. A name that is both a field of the probe and common to
    /// all events selects both.
    pub fn of(&self, schema: &Schema) -> Projected {
        if self.is_everything() {
            let fields = (0..schema.fields.len()).collect();
            return Projected { fields, tid: true, comm: true, context: true, location: true };
        }
        let has = |name: &str| self.names.iter().any(|wanted| wanted == name);
        let comm = has("comm");
        Projected {
            fields: (0..).zip(&schema.fields).filter(|(_, field)| has(&field.name)).map(|(i, _)| i).collect(),
            // The name of a task is found by its thread id.
            tid: has("tid") || comm,
            comm,
            context: has("context"),
            location: has("location"),
        }
    }
}
