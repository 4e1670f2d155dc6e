//! Errors of aggregations: why the daemon did not create, read or delete one.
//!
//! Owns their texts. Never chooses a gRPC code: [`crate::rpc::status`] does.

use thiserror::Error;

use kprobed_host::tracefs::hist::{HistError, TriggerError};
use kprobed_host::tracefs::{KernelMessage, TracefsError};
use kprobed_lang::model::ProbeName;

/// Why an aggregation is not made, or not read.
#[derive(Debug, Error)]
pub enum AggregationError {
    /// A field of the request is malformed, out of range, or names nothing that exists.
    #[error("{message}")]
    Field {
        /// Its path from the request, such as `spec.histogram.keys[1].field.field`.
        field: String,
        /// What is wrong, and what would be accepted.
        message: String,
    },
    /// The kernel refused a filter.
    #[error("the kernel refused the filter: {}", message.as_ref().map_or_else(|| error.to_string(), |m| m.text.clone()))]
    Filter {
        /// Path of the field.
        field: &'static str,
        /// The kernel's answer.
        error: TracefsError,
        /// What it wrote to its log, if anything.
        message: Option<KernelMessage>,
    },
    /// The kernel was built without an option that counting needs.
    #[error("this kernel cannot count events: it was built without `{option}`")]
    NotBuilt {
        /// The missing option.
        option: &'static str,
    },
    /// No aggregation of that name.
    #[error("there is no aggregation `{0}`")]
    NotFound(String),
    /// The name is taken.
    #[error("there is an aggregation `{0}` already")]
    Exists(String),
    /// The host has as many as it can have.
    #[error("there are {0} aggregations, the most that a host can have: delete one first")]
    TooMany(usize),
    /// The probe cannot be deleted.
    #[error("`{probe}` is counted by the aggregation `{aggregation}`: delete that first")]
    InUse {
        /// The probe.
        probe: ProbeName,
        /// The first aggregation that uses it.
        aggregation: String,
    },
    /// The kernel refused a trigger that should be valid.
    #[error(transparent)]
    Trigger(Box<TriggerError>),
    /// The kernel's table cannot be read.
    #[error("cannot read what the kernel has counted: {0}")]
    Table(#[from] HistError),
}
