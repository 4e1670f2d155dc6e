//! Filters that a client evaluates: on events that were published, and on calls.
//!
//! The language is [`kprobed_filter`]'s, as in the daemon; fields that only the daemon knows are
//! refused.

use kprobed_filter::{Binding, BoundFilter, Filter, FilterError, FilterEvent};
use thiserror::Error;

use super::{Row, Schema, Value};

/// What events do not have once they have left the daemon.
const ONLY_THERE: [&str; 3] = ["common_type", "common_flags", "common_preempt_count"];

/// Why a text cannot filter events in a client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EventFilterError {
    /// It is not a filter, or not one of these events.
    #[error("{0}")]
    Syntax(#[from] FilterError),
    /// A field that events do not have once they have left the daemon.
    #[error("`{0}` is known to the daemon only: it is not sent")]
    NotSent(String),
    /// It needs the symbols of the kernel.
    #[error("`.function` needs the symbols of the kernel, which the daemon has")]
    Functions,
}

/// A filter in the language of the kernel's filters, as
/// [`StreamRequest::filter`](super::StreamRequest::filter) takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventFilter(Filter);

impl EventFilter {
    /// Reads a filter.
    ///
    /// # Errors
    /// See [`EventFilterError`].
    pub fn new(text: &str) -> Result<Self, EventFilterError> {
        let filter = Filter::parse(text)?;
        let mut missing = None;
        filter.fields(&mut |name, _| {
            if ONLY_THERE.contains(&name) {
                missing = Some(name.to_owned());
            }
        });
        match missing {
            Some(name) => Err(EventFilterError::NotSent(name)),
            None if filter.has_functions() => Err(EventFilterError::Functions),
            None => Ok(Self(filter)),
        }
    }

    /// What it means for the events of a probe, or for calls: with the fields of the entry, and then those of the
    /// return. `name`: of the probe, or of the function.
    ///
    /// # Errors
    /// The first field or value that does not fit.
    pub fn bind(&self, name: &str, host: &str, schemas: &[&Schema]) -> Result<BoundEventFilter, FilterError> {
        let schema = kprobed_filter::Schema {
            fields: schemas.iter().flat_map(|schema| schema.fields()).cloned().collect(),
            is_return: schemas.iter().any(|schema| schema.is_return()),
        };
        let bound = self.0.bind(&schema, &Binding { probe: name, host, functions: None })?;
        Ok(BoundEventFilter { bound, of_first: schemas.first().map_or(0, |first| first.fields().len()) })
    }
}

impl std::fmt::Display for EventFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A filter with what it means for the events of a probe, or for calls.
#[derive(Clone, Debug)]
pub struct BoundEventFilter {
    bound: BoundFilter,
    /// Fields of the first schema.
    of_first: usize,
}

impl BoundEventFilter {
    /// One that selects nothing.
    pub const NOTHING: Self = Self { bound: BoundFilter::Never, of_first: 0 };

    /// Whether an event is selected.
    pub fn matches(&self, row: Row<'_>) -> bool {
        self.bound.matches(&Seen { rows: [Some(row), None], of_first: usize::MAX, last: row })
    }

    /// Whether a call is selected. Neither a comparison with a value of an end that is missing nor its opposite holds.
    /// What both ends have, such as the thread, is that of the return.
    pub fn matches_call(&self, entry: Option<Row<'_>>, exit: Option<Row<'_>>) -> bool {
        let Some(last) = exit.or(entry) else { return false };
        self.bound.matches(&Seen { rows: [entry, exit], of_first: self.of_first, last })
    }
}

/// An event or a call, as a filter sees it.
struct Seen<'a> {
    rows: [Option<Row<'a>>; 2],
    of_first: usize,
    last: Row<'a>,
}

impl<'a> Seen<'a> {
    fn value(&self, field: usize, element: usize) -> Option<Value<'a>> {
        let [first, second] = self.rows;
        let value = match field.checked_sub(self.of_first) {
            None => first?.value(field),
            Some(field) => second?.value(field),
        };
        match value? {
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
        Some(self.last.location()?.address)
    }

    fn return_ip(&self) -> Option<u64> {
        Some(self.last.return_location()?.address)
    }

    fn tid(&self) -> i32 {
        self.last.tid().unwrap_or_default()
    }

    fn tgid(&self) -> Option<i32> {
        self.last.tgid()
    }

    fn comm(&self) -> Option<&[u8]> {
        self.last.comm()
    }

    fn cpu(&self) -> u32 {
        self.last.cpu()
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
    fn what_is_not_sent_is_refused() {
        assert!(EventFilter::new("pid == 1 && name ~ \"a*\"").is_ok());
        let refused = |text: &str| EventFilter::new(text).unwrap_err();
        assert_eq!(
            refused("a == 1 || common_type == 7"),
            EventFilterError::NotSent("common_type".to_owned())
        );
        assert_eq!(refused("caller.function == vfs_read"), EventFilterError::Functions);
        assert!(matches!(refused("a =="), EventFilterError::Syntax(_)));
    }
}
