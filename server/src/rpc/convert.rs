//! Conversion of domain values that only services send.
//!
//! Owns times, durations, enumerations and plans. Never converts probes and events:
//! [`crate::messages`] does.

use std::time::{Duration, SystemTime};

use kprobed_proto::v1;
use prost_types::Timestamp;
use tonic::Status;

use super::status;
use crate::control::{DeclarationProblem, PlannedStep};
use crate::messages::{length, timestamp};
use kprobed_host::kernel::ClockMapping;
use kprobed_lang::definition::Dialect;
use kprobed_lang::model::StateRecord;
use kprobed_trace::pipeline::Span;
use kprobed_verdict::validate::Arming;

/// A time in a request. Absent if it cannot be represented.
pub(super) fn time(timestamp: Timestamp) -> Option<SystemTime> {
    SystemTime::try_from(timestamp).ok()
}

/// A value of an enumeration in a request. A value of a later version is refused.
pub(super) fn known<T, E>(value: Result<T, E>, field: &'static str) -> Result<T, Status> {
    value.map_err(|_unknown| {
        status::invalid(
            field,
            &format!("`{field}` has a value that this version of the daemon does not know"),
        )
    })
}

/// A duration as a message. Absent if it cannot be represented.
pub(super) fn duration(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

pub(super) fn arming(arming: Arming) -> v1::Arming {
    match arming {
        Arming::Ftrace => v1::Arming::Ftrace,
        Arming::Breakpoint => v1::Arming::Breakpoint,
        Arming::Optimised => v1::Arming::Optimised,
    }
}

pub(super) fn dialect(dialect: Dialect) -> v1::Dialect {
    match dialect {
        Dialect::Kernel => v1::Dialect::Kernel,
        Dialect::Legacy => v1::Dialect::Dialect2009,
        Dialect::Prototype => v1::Dialect::Prototype,
    }
}

/// The steps that would be taken.
pub(super) fn plan(steps: &[PlannedStep]) -> Vec<v1::PlannedStep> {
    let step = |step: &PlannedStep| v1::PlannedStep {
        event: step.event().map(ToString::to_string).unwrap_or_default(),
        command: step.to_string(),
    };
    steps.iter().map(step).collect()
}

pub(super) fn declaration_problem(problem: &DeclarationProblem) -> v1::DeclarationProblem {
    let (line, column) = problem.place.unwrap_or_default();
    v1::DeclarationProblem {
        file: problem.file.clone(),
        line: length(line),
        column: length(column),
        probe: problem.probe.as_ref().map(ToString::to_string).unwrap_or_default(),
        message: problem.message.clone(),
        hint: problem.hint.clone(),
    }
}

pub(super) fn state_record(record: &StateRecord) -> v1::ProbeStateRecord {
    let state = v1::ProbeState::from_str_name(&format!("PROBE_STATE_{}", record.state));
    v1::ProbeStateRecord {
        state: state.unwrap_or_default().into(),
        state_reason: record.reason.clone(),
        state_message: record.message.clone(),
        state_hint: record.hint.clone(),
        time: Some(timestamp(record.time)),
    }
}

pub(super) fn clock(mapping: ClockMapping) -> v1::ClockMapping {
    v1::ClockMapping {
        wall_offset_ns: mapping.wall_offset_ns,
        error_bound_ns: mapping.error_bound_ns,
        sampled_at_ns: mapping.sampled_at_ns,
    }
}

pub(super) fn span(span: Span) -> Option<v1::TermSpan> {
    (span.last_ns != 0).then_some(v1::TermSpan { first_ns: span.first_ns, last_ns: span.last_ns })
}
