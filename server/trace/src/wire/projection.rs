//! Which fields of events a subscriber wants.

use crate::decode::Schema;

/// What all events have, and a subscriber can leave out.
pub const COMMON: [&str; 4] = ["tid", "comm", "context", "location"];

/// Names of fields, of probes or of what all events have. None: everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Projection {
    names: Vec<String>,
}

/// A projection as it is for one schema.
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

    /// The first name that none of these schemas has, nor all events. None without a schema: the
    /// probe may come yet.
    pub fn unknown(&self, schemas: &[&Schema]) -> Option<&str> {
        schemas.first()?;
        let has = |schema: &Schema, name: &str| schema.fields.iter().any(|field| field.name == name);
        let known = |name: &str| COMMON.contains(&name) || schemas.iter().any(|schema| has(schema, name));
        self.names.iter().map(String::as_str).find(|name| !known(name))
    }

    /// What it leaves of a schema. A name that both the probe and all events have stands for both.
    pub fn of(&self, schema: &Schema) -> Projected {
        if self.is_everything() {
            let fields = (0..schema.fields.len()).collect();
            return Projected { fields, tid: true, comm: true, context: true, location: true };
        }
        let has = |name: &str| self.names.iter().any(|wanted| wanted == name);
        let comm = has("comm");
        Projected {
            fields: (0..).zip(&schema.fields).filter(|(_, field)| has(&field.name)).map(|(i, _)| i).collect(),
            // A name is found by its thread.
            tid: has("tid") || comm,
            comm,
            context: has("context"),
            location: has("location"),
        }
    }
}
