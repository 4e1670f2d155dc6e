//! Verdicts as messages.
//!
//! Owns what an answer holds, for one check and for many. Never judges: that is the checker's.

use kprobed_proto::v1;

use super::{convert, spec, status};
use crate::control::{CheckOutcome, Checker, ControlError, Preview};
use crate::definition::{Definition, Diagnostic};
use crate::kernel::RecentFacts;
use crate::validate::{Nearest, ShownInstruction};

/// How much to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// The verdict, and where a probe would work instead if its place is refused.
    Brief,
    /// With the definition as fields, the instructions around the place, and the nearest places that work even for a probe that is accepted.
    Listing,
}

/// Judges one text.
///
/// # Errors
/// When the facts of the kernel cannot be read: a text that is no definition has a verdict too.
pub(super) fn answer(
    checker: &Checker,
    text: &str,
    facts: &mut RecentFacts<'_>,
    detail: Detail,
) -> Result<v1::CheckProbeResponse, ControlError> {
    match checker.check_with(text, facts) {
        Ok(outcome) => Ok(verdict(checker, outcome, detail)),
        Err(ControlError::Definition { diagnostics, .. }) => match checker.parse(text) {
            Ok(Definition::Delete(_)) => Ok(nothing_to_check(text)),
            _ => Ok(unreadable(checker, &diagnostics)),
        },
        Err(error) => Err(error),
    }
}

fn verdict(checker: &Checker, outcome: CheckOutcome, detail: Detail) -> v1::CheckProbeResponse {
    let (nearest, listing) = match detail {
        Detail::Listing => {
            let around = outcome.surroundings();
            (around.nearest, around.listing)
        }
        Detail::Brief if outcome.report.refusal.is_some() => (outcome.nearest(), Vec::new()),
        Detail::Brief => (Nearest::default(), Vec::new()),
    };
    let arming = match detail {
        Detail::Listing => outcome.predicted_arming(),
        Detail::Brief => outcome.report.arming,
    };
    let CheckOutcome { definition, dialect, report, misplaced, unread, .. } = outcome;
    let arming = arming.filter(|_| misplaced.is_none());
    let mut response = match (report.refusal, misplaced) {
        (Some(refusal), _) => {
            let (errno, rule, kernel_code) =
                (refusal.errno as i32, refusal.rule.name(), refusal.kernel_code());
            v1::CheckProbeResponse {
                diagnostics: vec![status::refusal_diagnostic(refusal.or_hint(|| nearest.hint()))],
                kernel_reason: kernel_code.to_owned(),
                ..refused(errno, rule)
            }
        }
        (None, Some(diagnostic)) => v1::CheckProbeResponse {
            diagnostics: vec![convert::diagnostic(&diagnostic)],
            kernel_reason: diagnostic.code.name().to_owned(),
            ..refused(diagnostic.code.errno(checker.features()), diagnostic.code.name())
        },
        (None, None) => {
            v1::CheckProbeResponse { verdict: v1::Verdict::Accepted.into(), ..Default::default() }
        }
    };
    response.diagnostics.extend(report.objection.map(status::objection_diagnostic));
    if unread.is_empty() {
        response.diagnostics.extend(definition.warnings.iter().map(convert::diagnostic));
        let Preview { name, canonical, kernel_definition } = checker.preview(&definition);
        if detail == Detail::Listing {
            response.spec = Some(spec::write(&definition));
        }
        response.name = name;
        response.canonical = canonical;
        response.kernel_definition = kernel_definition;
        response.dialect = convert::dialect(dialect).into();
    }
    response.diagnostics.extend(unread.iter().map(convert::diagnostic));
    response.location = report.location;
    response.arming = arming.map_or(v1::Arming::Unspecified, convert::arming).into();
    response.listing = listing.into_iter().map(instruction).collect();
    response.nearest_before = nearest.before;
    response.nearest_after = nearest.after;
    response
}

/// The verdict on a text that is no definition: it has one too.
pub(super) fn unreadable(checker: &Checker, diagnostics: &[Diagnostic]) -> v1::CheckProbeResponse {
    let errno = status::errno_of(diagnostics, checker.features());
    let code = diagnostics.first().map_or("", |first| first.code.name());
    v1::CheckProbeResponse {
        diagnostics: diagnostics.iter().map(convert::diagnostic).collect(),
        kernel_reason: code.to_owned(),
        ..refused(errno, code)
    }
}

/// The answer to a line that deletes. Whether the event exists is not asked: only its own daemon may delete it.
fn nothing_to_check(text: &str) -> v1::CheckProbeResponse {
    let warning = v1::Diagnostic {
        severity: v1::Severity::Warning.into(),
        code: "NOTHING_TO_CHECK".to_owned(),
        message: "this line deletes: there is nothing to check".to_owned(),
        hint: String::new(),
        span_start: 0,
        span_end: convert::length(text.len()),
        field: String::new(),
    };
    v1::CheckProbeResponse {
        verdict: v1::Verdict::Accepted.into(),
        diagnostics: vec![warning],
        dialect: v1::Dialect::Kernel.into(),
        canonical: text.split('#').next().unwrap_or_default().trim().to_owned(),
        ..Default::default()
    }
}

fn refused(errno: i32, rule: &str) -> v1::CheckProbeResponse {
    v1::CheckProbeResponse {
        verdict: v1::Verdict::Refused.into(),
        errno: errno.unsigned_abs(),
        errno_name: format!("{:?}", nix::errno::Errno::from_raw(errno)),
        rule: rule.to_owned(),
        ..Default::default()
    }
}

fn instruction(shown: ShownInstruction) -> v1::Instruction {
    v1::Instruction {
        offset: shown.instruction.offset,
        code: shown.instruction.bytes,
        text: shown.instruction.text,
        probeable: shown.refusal.is_none(),
        refusal: shown.refusal.unwrap_or_default(),
    }
}
