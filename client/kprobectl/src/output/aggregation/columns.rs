//! Columns of an aggregation: names and types of its keys and sums.

use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::aggregation_spec::Aggregation as Spec;
use kprobed_client::api::{Aggregation, AggregationColumn, AggregationKey, ContextKey, Diagnostic, KeyScale};

use super::bucket::{LatencyUnit, Quantity, Scale};

/// The name of the latency among the keys and the sums of an aggregation that measures latencies.
pub(crate) const LATENCY_COLUMN: &str = "latency_ns";

/// A key, or a sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CountColumn {
    /// No two keys have the same one.
    pub(super) name: String,
    pub(super) quantity: Quantity,
    /// Of keys that are ranges.
    pub(super) scale: Option<Scale>,
    /// Whether nothing shows that its values were read.
    pub(super) unproven: bool,
}

impl CountColumn {
    /// Its name, with the mark of values that are unproven.
    pub(super) fn label(&self) -> String {
        if self.unproven { format!("{}(?)", self.name) } else { self.name.clone() }
    }
}

/// All of them, in the order of the rows.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    pub(super) keys: Vec<CountColumn>,
    pub(super) sums: Vec<CountColumn>,
    /// The key along which counts are drawn: the last that is a range.
    pub(super) axis: Option<usize>,
    /// The key that is a call stack.
    pub(super) stack: Option<usize>,
    pub(super) is_latency: bool,
    /// What the daemon says of the counts.
    pub(super) warnings: Vec<Diagnostic>,
}

impl Columns {
    pub(super) fn of(aggregation: &Aggregation, unit: LatencyUnit) -> Self {
        let spec = aggregation.spec.as_ref().and_then(|spec| spec.aggregation.as_ref());
        let is_latency = matches!(spec, Some(Spec::Latency(_)));
        let quantity = |column: &AggregationColumn| match column.name.as_str() {
            LATENCY_COLUMN if is_latency => Quantity::Nanoseconds(unit),
            _ if column.hexadecimal => Quantity::Hexadecimal,
            _ => Quantity::Number,
        };
        let mut keys: Vec<CountColumn> = Vec::with_capacity(aggregation.keys.len());
        for (index, column) in aggregation.keys.iter().enumerate() {
            let mut name = column.name.clone();
            // A field can be a key in two forms, or have the name of something else.
            while keys.iter().any(|key| key.name == name) {
                name.push('\'');
            }
            let (quantity, scale) = (quantity(column), scale(spec, index));
            keys.push(CountColumn { name, quantity, scale, unproven: column.unproven });
        }
        let sums = aggregation.sums.iter();
        let sums = sums.map(|sum| CountColumn {
            name: sum.name.clone(),
            quantity: quantity(sum),
            scale: None,
            unproven: sum.unproven,
        });
        let (sums, warnings) = (sums.collect(), aggregation.warnings.clone());
        let axis = keys.iter().rposition(|key| key.scale.is_some());
        let is_stack = |key: &AggregationKey| key.key == Some(Key::Context(ContextKey::Stack.into()));
        let stack = match spec {
            Some(Spec::Histogram(spec)) => spec.keys.iter().position(is_stack),
            _ => None,
        };
        Self { keys, sums, axis, stack, is_latency, warnings }
    }
}

/// The scale of a key, if its values are ranges.
fn scale(spec: Option<&Spec>, index: usize) -> Option<Scale> {
    match spec? {
        Spec::Latency(spec) => match (index, spec.bucket_ns) {
            (0, 0) => Some(Scale::Log2),
            (0, width) => Some(Scale::Linear(width)),
            _ => None,
        },
        Spec::Histogram(spec) => match spec.keys.get(index)?.key.as_ref()? {
            Key::Context(_) => None,
            Key::Field(field) => match field.scale() {
                KeyScale::Log2 => Some(Scale::Log2),
                KeyScale::Linear => Some(Scale::Linear(field.bucket_size.max(1))),
                KeyScale::Unspecified | KeyScale::Symbol | KeyScale::SymbolOffset => None,
            },
        },
    }
}

/// A key as it is written on a command line.
pub(crate) fn key_notation(key: &AggregationKey) -> String {
    match &key.key {
        Some(Key::Context(key)) => context_name(ContextKey::try_from(*key).unwrap_or_default()).to_owned(),
        Some(Key::Field(field)) => {
            let form = match field.scale() {
                KeyScale::Unspecified if context_key(&field.field).is_some() => ".exact".to_owned(),
                KeyScale::Unspecified => String::new(),
                KeyScale::Log2 => ".log2".to_owned(),
                KeyScale::Linear => format!(".buckets={}", field.bucket_size),
                KeyScale::Symbol => ".sym".to_owned(),
                KeyScale::SymbolOffset => ".sym-offset".to_owned(),
            };
            format!("{}{form}", field.field)
        }
        None => "?".to_owned(),
    }
}

/// A key that every event has, as it is written on a command line.
pub(super) fn context_name(key: ContextKey) -> &'static str {
    match key {
        ContextKey::Thread => "thread",
        ContextKey::Comm => "comm",
        ContextKey::Cpu => "cpu",
        ContextKey::Stack => "stack",
        ContextKey::Unspecified => "?",
    }
}

/// Keys that every event has, by kprobed's name or the kernel's.
pub(crate) fn context_key(name: &str) -> Option<ContextKey> {
    match name {
        "thread" | "common_pid" => Some(ContextKey::Thread),
        "comm" => Some(ContextKey::Comm),
        "cpu" | "common_cpu" => Some(ContextKey::Cpu),
        "stack" | "stacktrace" | "common_stacktrace" => Some(ContextKey::Stack),
        _ => None,
    }
}
