//! Filters on events from NATS.
//!
//! The language is [`kprobed_filter`]'s, as in the daemon; fields that only the daemon knows are
//! refused.

use std::collections::HashMap;
use std::sync::Arc;

use kprobed_filter::{Base, Binding, BoundFilter, FieldKind, FieldSchema, Filter, FilterError, FilterEvent};
use thiserror::Error;

use crate::event::{self, Row, Schema, Value};

/// What events do not have once they were published.
const ONLY_THERE: [&str; 3] = ["common_type", "common_flags", "common_preempt_count"];

/// Why a text cannot filter published events.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NatsFilterError {
    /// It is not a filter.
    #[error("{0}")]
    Syntax(#[from] FilterError),
    /// A field that events do not have once they were published.
    #[error("`{0}` is known to the daemon only: it is not published")]
    NotPublished(String),
    /// It needs the symbols of the kernel.
    #[error("`.function` needs the symbols of the kernel, which the daemon has")]
    Functions,
}

/// A filter on what was published, in the language of the kernel's filters as
/// `StreamRequest::filter` takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsFilter(Filter);

impl NatsFilter {
    /// Reads a filter. One that cannot be used for the events of a probe selects none of them.
    ///
    /// # Errors
    /// See [`NatsFilterError`].
    pub fn new(text: &str) -> Result<Self, NatsFilterError> {
        let filter = Filter::parse(text)?;
        let mut missing = None;
        filter.fields(&mut |name, _| {
            if ONLY_THERE.contains(&name) {
                missing = Some(name.to_owned());
            }
        });
        match missing {
            Some(name) => Err(NatsFilterError::NotPublished(name)),
            None if filter.has_functions() => Err(NatsFilterError::Functions),
            None => Ok(Self(filter)),
        }
    }
}

/// A filter with what it means for the probes of one host.
#[derive(Debug)]
pub(super) struct Filtering {
    filter: Filter,
    host: String,
    /// By the number of the schema, which another run of the daemon gives to another probe.
    bound: HashMap<u32, (Arc<Schema>, BoundFilter)>,
}

impl Filtering {
    pub(super) fn new(NatsFilter(filter): NatsFilter, host: &str) -> Self {
        Self { filter, host: host.to_owned(), bound: HashMap::new() }
    }

    /// The events of a batch that it selects.
    pub(super) fn select(&mut self, batch: &event::Batch) -> event::Batch {
        for group in batch.groups() {
            let schema = group.schema();
            let is_known = self.bound.get(&schema.id()).is_some_and(|(known, _)| Arc::ptr_eq(known, schema));
            if !is_known {
                let bound = self.bind(schema);
                self.bound.insert(schema.id(), (Arc::clone(schema), bound));
            }
        }
        batch.select(|row| {
            let bound = self.bound.get(&row.schema().id());
            bound.is_some_and(|(_, bound)| bound.matches(&Seen(*row)))
        })
    }

    fn bind(&self, schema: &Schema) -> BoundFilter {
        let binding = Binding { probe: schema.probe(), host: &self.host, functions: None };
        // As in the daemon, a filter that cannot be bound to a probe matches none of its events.
        self.filter.bind(&fields(schema), &binding).unwrap_or(BoundFilter::Never)
    }
}

fn fields(schema: &Schema) -> kprobed_filter::Schema {
    let bytes = |width: event::Width| u8::try_from(width.bytes()).unwrap_or(8);
    let base = |base: event::Base| match base {
        event::Base::Decimal => Base::Decimal,
        event::Base::Hex => Base::Hex,
    };
    let field = |field: &event::Field| {
        let (kind, base) = match field.kind {
            event::FieldKind::Unsigned(width, of) => {
                (FieldKind::Unsigned { bytes: bytes(width) }, Some(base(of)))
            }
            event::FieldKind::Signed(width, of) => {
                (FieldKind::Signed { bytes: bytes(width) }, Some(base(of)))
            }
            event::FieldKind::Char => (FieldKind::Char, None),
            event::FieldKind::Symbol => (FieldKind::Symbol, None),
            event::FieldKind::String => (FieldKind::String, None),
        };
        FieldSchema {
            name: field.name.clone(),
            kind,
            base,
            array_len: (field.array_length > 0).then_some(field.array_length),
            fault_detected: field.fault_detected,
            notation: field.notation.clone(),
            // Only the kernel's filters have more of it.
            is_lower_half: false,
        }
    };
    kprobed_filter::Schema {
        fields: schema.fields().iter().map(field).collect(),
        is_return: schema.is_return(),
    }
}

/// An event, as a filter sees it.
struct Seen<'a>(Row<'a>);

impl<'a> Seen<'a> {
    fn value(&self, field: usize, element: usize) -> Option<Value<'a>> {
        match self.0.value(field)? {
            Value::List(list) => list.iter().nth(element),
            value => Some(value).filter(|_| element == 0),
        }
    }
}

impl FilterEvent for Seen<'_> {
    fn number(&self, field: usize, element: usize) -> Option<u64> {
        match self.value(field, element)? {
            Value::Unsigned { value, .. } => Some(value),
            Value::Signed { value, .. } => Some(value.cast_unsigned()),
            Value::Char(byte) => Some(byte.into()),
            Value::Symbol(symbol) => Some(symbol.address),
            Value::Bytes(_) | Value::List(_) | Value::Fault => None,
        }
    }

    fn text(&self, field: usize) -> Option<&[u8]> {
        match self.value(field, 0)? {
            Value::Bytes(text) => Some(text),
            _ => None,
        }
    }

    fn ip(&self) -> Option<u64> {
        Some(self.0.location()?.address)
    }

    fn return_ip(&self) -> Option<u64> {
        Some(self.0.return_location()?.address)
    }

    fn tid(&self) -> i32 {
        self.0.tid().unwrap_or_default()
    }

    fn tgid(&self) -> Option<i32> {
        self.0.tgid()
    }

    fn comm(&self) -> Option<&[u8]> {
        self.0.comm()
    }

    fn cpu(&self) -> u32 {
        self.0.cpu()
    }

    // A filter that names one of these is refused.
    fn type_id(&self) -> u16 {
        0
    }

    fn flags(&self) -> u8 {
        0
    }

    fn preempt_count(&self) -> u8 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_published_is_refused() {
        assert!(NatsFilter::new("pid == 1 && name ~ \"a*\"").is_ok());
        let refused = |text: &str| NatsFilter::new(text).unwrap_err();
        assert_eq!(
            refused("a == 1 || common_type == 7"),
            NatsFilterError::NotPublished("common_type".to_owned())
        );
        assert_eq!(refused("caller.function == vfs_read"), NatsFilterError::Functions);
        assert!(matches!(refused("a =="), NatsFilterError::Syntax(_)));
    }
}
