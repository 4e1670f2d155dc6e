//! Statuses of aggregation errors.
//!
//! Owns their codes, reasons and hints. Never sends a status.

use tonic::Code;

use super::{Parts, kernel_diagnostic};
use crate::control::AggregationError;

/// Maps every way in which an aggregation can fail.
pub(super) fn parts_of(error: &AggregationError) -> Parts {
    match error {
        AggregationError::Field { field, .. } => {
            Parts::new(Code::InvalidArgument, "BAD_ARGUMENT").field(field.clone())
        }
        AggregationError::Filter { field, error, message } => {
            let parts =
                Parts::new(Code::InvalidArgument, "BAD_FILTER").field(*field).with("errno", &error.errno());
            match message {
                Some(message) => {
                    parts.diagnostics(&message.command, vec![kernel_diagnostic(message, "BAD_FILTER")])
                }
                None => parts,
            }
        }
        AggregationError::NotBuilt { option } => {
            Parts::new(Code::FailedPrecondition, "NOT_BUILT").with("option", option)
        }
        AggregationError::NotFound(name) => {
            Parts::new(Code::NotFound, "NO_SUCH_AGGREGATION").with("aggregation", name)
        }
        AggregationError::Exists(name) => {
            Parts::new(Code::AlreadyExists, "AGGREGATION_EXISTS").with("aggregation", name)
        }
        AggregationError::TooMany(_) => Parts::new(Code::ResourceExhausted, "TOO_MANY_AGGREGATIONS"),
        AggregationError::InUse { probe, aggregation } => Parts::new(Code::FailedPrecondition, "COUNTED")
            .with("probe", probe)
            .with("aggregation", aggregation),
        AggregationError::Trigger(error) => {
            Parts::new(Code::FailedPrecondition, "TRIGGER_REFUSED").with("errno", &error.error.errno())
        }
        AggregationError::Table(_) => Parts::new(Code::DataLoss, "UNREADABLE_TABLE"),
    }
}
