//! Specification of an aggregation: what a client asks the kernel to count.
//!
//! Owns the types, and those of the aggregation that comes of it. Never decides how the kernel
//! counts: that is [`super::plan`].

use std::time::SystemTime;

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AggregationSpec {
    /// Events of one probe by their keys.
    Histogram(HistogramSpec),
    /// The time between events of two probes.
    Latency(LatencySpec),
}

impl AggregationSpec {
    /// The names of the probes whose events it counts, as the client wrote them.
    pub fn probes(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            Self::Histogram(spec) => (&spec.probe, None),
            Self::Latency(spec) => (&spec.start_probe, Some(&spec.end_probe)),
        };
        std::iter::once(first.as_str()).chain(second.map(String::as_str))
    }

    /// Whether call stacks are among its keys.
    pub fn has_stacks(&self) -> bool {
        match self {
            Self::Histogram(spec) => spec.keys.contains(&Key::Context(ContextKey::Stack)),
            Self::Latency(spec) => spec.keys.contains(&ContextKey::Stack),
        }
    }
}

/// Counts and sums over the events of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSpec {
    /// The probe.
    pub probe: String,
    /// The keys that define a row.
    pub keys: Vec<Key>,
    /// Integer fields that are added up.
    pub sums: Vec<String>,
    /// Kernel filter; empty for none.
    pub filter: String,
    /// Rows that the kernel's table has room for; 0 for the default.
    pub size: u32,
    /// Whether events of the daemon's own threads are counted too.
    pub include_self: bool,
}

/// The time from an event of one probe to the next event of a second probe with the same match key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencySpec {
    /// Probe at which a latency begins.
    pub start_probe: String,
    /// Probe at which it ends.
    pub end_probe: String,
    /// The field by which ends are matched to starts; empty for the thread.
    pub match_field: String,
    /// Kernel filter of the starts; empty for none.
    pub start_filter: String,
    /// Kernel filter of the ends; empty for none.
    pub end_filter: String,
    /// Width of a bucket; 0 for powers of two.
    pub bucket_ns: u64,
    /// Further keys that define a row.
    pub keys: Vec<ContextKey>,
    /// Rows of the table of results; 0 for the default.
    pub size: u32,
    /// Whether events of the daemon's own threads are measured too.
    pub include_self: bool,
}

/// A key: events with the same value of it share a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// A field of the events.
    Field {
        /// Its name.
        field: String,
        /// Which values share a row.
        scale: Scale,
    },
    /// Something that every event has.
    Context(ContextKey),
}

/// Which values of a field share a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// None.
    Exact,
    /// Those between two powers of two.
    Log2,
    /// Those in a bucket of that size.
    Linear(u64),
    /// Addresses in the same function.
    Symbol,
    /// None; addresses are shown as symbol and offset.
    SymbolOffset,
}

/// Something that every event has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextKey {
    /// Id and name of the thread.
    Thread,
    /// Name of the thread.
    Comm,
    /// The CPU.
    Cpu,
    /// The kernel's call stack.
    Stack,
}

/// An aggregation that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregation {
    /// Its name.
    pub name: String,
    /// What it counts, with full names of probes.
    pub spec: AggregationSpec,
    /// When it began.
    pub create_time: SystemTime,
    /// When it expires.
    pub expire_time: Option<SystemTime>,
    /// Whether it is deleted when the stream that reads it ends.
    pub bound_to_stream: bool,
    /// The keys of a row.
    pub keys: Vec<Column>,
    /// The sums of a row.
    pub sums: Vec<Column>,
}

/// A key or a sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// The field, or what the context key is called.
    pub name: String,
    /// Whether its integers are meant to be shown in hexadecimal.
    pub hexadecimal: bool,
}
