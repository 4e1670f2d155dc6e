//! Verdicts as messages of the API.
//!
//! Owns what an answer contains, for the daemon and for a kernel image. Never judges: the checker does.

use std::collections::HashSet;
use std::ops::Range;

use kprobed_lang::definition::{Diagnostic, Dialect, RefusedBy, Severity};
use kprobed_lang::model::ProbeName;
use kprobed_proto::v1;
use nix::errno::Errno;

use crate::checker::{Against, CheckError, CheckOutcome, Checker, KernelLine, Taken};
use crate::validate::{Arming, Nearest, kernel_code};

/// How much an answer contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The verdict, and where a probe would work instead if its place is refused.
    Brief,
    /// With the instructions around the place, and the nearest places that work even for a probe that is accepted.
    Listing,
}

/// The answer for a definition that was judged. `taken`: what has its name already; `further`: a warning for a
/// definition that is accepted.
pub fn judged(
    checker: &Checker,
    outcome: &CheckOutcome,
    detail: Detail,
    taken: Option<&Taken>,
    further: Option<&Diagnostic>,
) -> v1::CheckProbeResponse {
    let against = outcome.against(taken);
    let (nearest, listing) = match (detail, against) {
        (Detail::Listing, _) => {
            let (listing, nearest) = outcome.surroundings();
            (nearest, listing)
        }
        (Detail::Brief, Some(Against::Place(_))) => (outcome.nearest(), Vec::new()),
        (Detail::Brief, _) => (Nearest::default(), Vec::new()),
    };
    let way = match detail {
        _ if against.is_some() => None,
        Detail::Listing => outcome.predicted_arming(),
        Detail::Brief => outcome.report.arming,
    };
    let mut response = match against {
        Some(Against::Place(refusal)) => {
            let found = refusal.clone().or_hint(|| nearest.hint());
            let kernel_reason = kernel_code(refusal).to_owned();
            v1::CheckProbeResponse { kernel_reason, ..unreadable(&[found]) }
        }
        Some(Against::Text(problem)) => unreadable(std::slice::from_ref(problem)),
        Some(Against::Name(taken)) => unreadable(std::slice::from_ref(&taken.problem)),
        None => v1::CheckProbeResponse { verdict: v1::Verdict::Accepted.into(), ..Default::default() },
    };
    let further = further.filter(|_| against.is_none());
    let CheckOutcome { definition, dialect: written, report, unread, .. } = outcome;
    if unread.is_empty() {
        response.diagnostics.extend(definition.warnings.iter().chain(further).map(diagnostic));
        let KernelLine { text, canonical, group, event } = checker.new_line(definition, &HashSet::new());
        response.name = [&group, "/", &event].concat();
        response.canonical = canonical;
        response.kernel_definition = text;
        response.dialect = dialect(*written).into();
    }
    response.diagnostics.extend(unread.iter().map(diagnostic));
    response.location = report.told_location();
    response.arming = way.map_or(v1::Arming::Unspecified, arming).into();
    response.listing = listing;
    response.nearest_before = nearest.before;
    response.nearest_after = nearest.after;
    response
}

/// The verdict on a text that is refused for these reasons.
pub fn unreadable(diagnostics: &[Diagnostic]) -> v1::CheckProbeResponse {
    let Some(first) = diagnostics.first() else {
        return refused(Errno::EINVAL, "", RefusedBy::Kprobed);
    };
    v1::CheckProbeResponse {
        diagnostics: diagnostics.iter().map(diagnostic).collect(),
        kernel_reason: first.code.name().to_owned(),
        ..refused(Errno::from_raw(first.errno), first.code.name(), first.by)
    }
}

/// The answer for a line that deletes these probes, or cannot.
///
/// # Errors
/// The given one, unless it is about the text.
pub fn deletion(
    text: &str,
    deleted: Result<Vec<ProbeName>, CheckError>,
) -> Result<v1::CheckProbeResponse, CheckError> {
    let canonical = text.split('#').next().unwrap_or_default().trim().to_owned();
    let dialect = v1::Dialect::Kernel.into();
    match deleted {
        Ok(_names) => {
            let warning = v1::Diagnostic {
                severity: v1::Severity::Warning.into(),
                ..finding(
                    "NOTHING_TO_CHECK",
                    ("this line deletes: there is nothing to check", ""),
                    0..text.len(),
                )
            };
            let (verdict, diagnostics) = (v1::Verdict::Accepted.into(), vec![warning]);
            Ok(v1::CheckProbeResponse { verdict, diagnostics, dialect, canonical, ..Default::default() })
        }
        Err(CheckError::Definition { diagnostics, .. }) => {
            Ok(v1::CheckProbeResponse { dialect, canonical, ..unreadable(&diagnostics) })
        }
        Err(error) => Err(error),
    }
}

/// The answer for what is refused for a rule.
pub fn refused(errno: Errno, rule: &str, by: RefusedBy) -> v1::CheckProbeResponse {
    v1::CheckProbeResponse {
        verdict: v1::Verdict::Refused.into(),
        errno: (errno as i32).unsigned_abs(),
        errno_name: format!("{errno:?}"),
        rule: rule.to_owned(),
        by: refused_by(by).into(),
        ..Default::default()
    }
}

/// How the kernel arms a probe.
pub const fn arming(arming: Arming) -> v1::Arming {
    match arming {
        Arming::Ftrace => v1::Arming::Ftrace,
        Arming::Breakpoint => v1::Arming::Breakpoint,
        Arming::Optimised => v1::Arming::Optimised,
    }
}

const fn dialect(dialect: Dialect) -> v1::Dialect {
    match dialect {
        Dialect::Kernel => v1::Dialect::Kernel,
        Dialect::Legacy => v1::Dialect::Dialect2009,
        Dialect::Prototype => v1::Dialect::Prototype,
    }
}

/// A length or position as 32 bits. Never saturates: gRPC bounds the size of a message.
pub fn length(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// An error in a text. It does not say who refuses the text.
pub fn finding(code: &str, (message, hint): (&str, &str), span: Range<usize>) -> v1::Diagnostic {
    v1::Diagnostic {
        severity: v1::Severity::Error.into(),
        code: code.to_owned(),
        message: message.to_owned(),
        hint: hint.to_owned(),
        span_start: length(span.start),
        span_end: length(span.end),
        by: v1::RefusedBy::Unspecified.into(),
    }
}

/// What is wrong, or doubtful, at a place of a definition.
pub fn diagnostic(found: &Diagnostic) -> v1::Diagnostic {
    let (severity, by) = match found.severity {
        Severity::Error => (v1::Severity::Error, refused_by(found.by)),
        Severity::Warning => (v1::Severity::Warning, v1::RefusedBy::Unspecified),
    };
    let texts = (found.message.as_str(), found.hint.as_deref().unwrap_or_default());
    let (severity, by) = (severity.into(), by.into());
    v1::Diagnostic { severity, by, ..finding(found.code.name(), texts, found.span.range()) }
}

/// Who refuses it.
pub const fn refused_by(by: RefusedBy) -> v1::RefusedBy {
    match by {
        RefusedBy::Kernel => v1::RefusedBy::Kernel,
        RefusedBy::Kprobed => v1::RefusedBy::Kprobed,
    }
}
