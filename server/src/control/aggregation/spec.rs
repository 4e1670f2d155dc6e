//! What is asked for.

use std::time::SystemTime;

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AggregationSpec {
    /// Events of one probe by their keys.
    Histogram(HistogramSpec),
    /// The time between events of two probes.
    Latency(LatencySpec),
}

/// Counts and sums over the events of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSpec {
    /// The probe.
    pub probe: String,
    /// What events are told apart by.
    pub keys: Vec<Key>,
    /// Integer fields that are added up.
    pub sums: Vec<String>,
    /// Kernel filter; empty for none.
    pub filter: String,
    /// Rows that the kernel's table has room for; 0 for the default.
    pub size: u32,
}

/// The time from an event of one probe to the next event of another one with the same match key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencySpec {
    /// Where it begins.
    pub start_probe: String,
    /// Where it ends.
    pub end_probe: String,
    /// The field that says which end belongs to which beginning; empty for the thread.
    pub match_field: String,
    /// Kernel filter of beginnings; empty for none.
    pub start_filter: String,
    /// Kernel filter of ends; empty for none.
    pub end_filter: String,
    /// Width of a bucket; 0 for powers of two.
    pub bucket_ns: u64,
    /// What latencies are told apart by besides.
    pub keys: Vec<ContextKey>,
    /// Rows of the table of results; 0 for the default.
    pub size: u32,
}

/// What a row is told apart by.
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
    /// When it ends by itself.
    pub expire_time: Option<SystemTime>,
    /// Whether it ends with a stream.
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
