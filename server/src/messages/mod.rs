//! Conversion of domain values to API messages, for the services.
//!
//! Owns only messages that more than one of them sends. Never reads a request, and never decides
//! anything.

mod probe;
mod watch;

#[cfg(test)]
pub(crate) use probe::lease;
pub(crate) use probe::{counted_hits, probe, profile, state};
pub(crate) use watch::{watch_position, watched};

use std::time::SystemTime;

use kprobed_proto::v1;
use prost_types::Timestamp;

use kprobed_lang::definition::{Diagnostic, RefusedBy, Severity};

/// A length or position as 32 bits. Never saturates: gRPC bounds the size of a message.
pub(crate) fn length(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// A time.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::from(time)
}

/// What is wrong, or doubtful, at a place of a definition.
pub(crate) fn diagnostic(diagnostic: &Diagnostic) -> v1::Diagnostic {
    let severity = match diagnostic.severity {
        Severity::Error => v1::Severity::Error,
        Severity::Warning => v1::Severity::Warning,
    };
    v1::Diagnostic {
        severity: severity.into(),
        code: diagnostic.code.name().to_owned(),
        message: diagnostic.message.clone(),
        hint: diagnostic.hint.clone().unwrap_or_default(),
        span_start: length(diagnostic.span.start),
        span_end: length(diagnostic.span.end),
        by: match diagnostic.severity {
            Severity::Error => refused_by(diagnostic.by).into(),
            Severity::Warning => v1::RefusedBy::Unspecified.into(),
        },
    }
}

/// Who refuses it.
pub(crate) fn refused_by(by: RefusedBy) -> v1::RefusedBy {
    match by {
        RefusedBy::Kernel => v1::RefusedBy::Kernel,
        RefusedBy::Kprobed => v1::RefusedBy::Kprobed,
    }
}
