//! Conversion of verdicts to messages.
//!
//! Owns what an answer contains, for one check and for many. Never judges: the checker does.

use std::sync::Arc;

use kprobed_proto::v1;
use nix::errno::Errno;

use super::{hidden, meaning, messages, spec};
use kprobed_control::error;
use kprobed_control::{CostTable, Registry, Sight, livepatch_warning};
use kprobed_host::kernel::RecentFacts;
use kprobed_lang::definition::short::Expansion;
use kprobed_lang::definition::{
    Code, Definition, DeleteDefinition, Diagnostic, Place, ProbeDefinition, ProbeKind, RefusedBy, Span,
};
use kprobed_lang::model::ProbeName;
use kprobed_verdict::checker::{Against, CheckError, CheckOutcome, Checker, DefinitionText, Preview};
use kprobed_verdict::validate::{Arming, Nearest, ShownInstruction};

/// How much an answer contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The verdict, and where a probe would work instead if its place is refused.
    Brief,
    /// With the definition as fields, the instructions around the place, and the nearest places
    /// that work even for a probe that is accepted.
    Listing,
}

/// What a client may be told besides the verdict.
#[derive(Clone, Debug)]
pub(crate) struct Viewer {
    /// Which probes it may look at.
    pub(crate) sight: Sight,
    /// The probes.
    pub(crate) registry: Arc<Registry>,
    /// Whether it may see addresses.
    pub(crate) addresses: bool,
}

/// Judges one text, for a client. With a name, the definition is of that probe.
///
/// # Errors
/// If the facts of the kernel cannot be read. A text that is not a definition has a verdict too.
pub(crate) fn answer(
    checker: &Checker,
    text: &Arc<DefinitionText>,
    name: Option<&ProbeName>,
    facts: &mut RecentFacts<'_>,
    extent: (Detail, &Viewer),
) -> Result<v1::CheckProbeResponse, CheckError> {
    let mut answer = verdict(checker, text, name, facts, extent)?;
    if let Some(Expansion { lines, notes }) = &checker.reading(text).expansion {
        answer.lines.clone_from(lines);
        answer.notes.clone_from(notes);
    }
    Ok(answer)
}

fn verdict(
    checker: &Checker,
    text: &Arc<DefinitionText>,
    name: Option<&ProbeName>,
    facts: &mut RecentFacts<'_>,
    (detail, viewer): (Detail, &Viewer),
) -> Result<v1::CheckProbeResponse, CheckError> {
    match checker.check_text(text, facts) {
        // The verdict would say where the kernel is.
        Ok(outcome) if !viewer.addresses && matches!(outcome.definition.place, Place::Address { .. }) => {
            Ok(address_not_allowed(&outcome.definition))
        }
        Ok(outcome) => {
            let span = outcome.definition.span;
            let outcome = match name {
                Some(name) => match outcome.named(name) {
                    Ok(outcome) => outcome,
                    Err(found) => return Ok(of_another(&found, name, span)),
                },
                None => outcome,
            };
            let mut answer = judged(checker, &outcome, detail, Some(viewer));
            let is_said = outcome.definition.warnings.iter().any(|known| known.code == Code::ModuleAbsent);
            let waiting = outcome.waiting().filter(|_| !is_said && answer.verdict() == v1::Verdict::Accepted);
            answer.diagnostics.extend(waiting.as_ref().map(error::diagnostic));
            if !viewer.addresses {
                hidden::listing(&mut answer.listing);
            }
            Ok(answer)
        }
        Err(error) => unjudged(checker, text, error, Some(viewer)),
    }
}

/// What one hit of a probe takes.
pub(super) fn hit_cost(
    table: &CostTable,
    kind: ProbeKind,
    arming: Option<Arming>,
    line: &str,
) -> v1::HitCost {
    let cost = table.hit(kind, arming, line);
    v1::HitCost { ns: cost.ns, error_ns: cost.error_ns, calibrated: table.is_calibrated }
}

/// What one hit of a probe takes that was checked. Absent if it was refused.
pub(super) fn checked_cost(table: &CostTable, checked: &v1::CheckProbeResponse) -> Option<v1::HitCost> {
    let kind = if checked.kernel_definition.starts_with('r') { ProbeKind::Return } else { ProbeKind::Entry };
    let arming = match checked.arming() {
        v1::Arming::Ftrace => Some(Arming::Ftrace),
        v1::Arming::Breakpoint => Some(Arming::Breakpoint),
        v1::Arming::Optimised => Some(Arming::Optimised),
        v1::Arming::Unspecified => None,
    };
    let is_accepted = checked.verdict() == v1::Verdict::Accepted && !checked.kernel_definition.is_empty();
    is_accepted.then(|| hit_cost(table, kind, arming, &checked.kernel_definition))
}

/// The answer for a text that could not be judged as the definition of a probe.
///
/// # Errors
/// The given one, unless it is about the text.
pub(crate) fn unjudged(
    checker: &Checker,
    text: &Arc<DefinitionText>,
    error: CheckError,
    viewer: Option<&Viewer>,
) -> Result<v1::CheckProbeResponse, CheckError> {
    let CheckError::Definition { diagnostics, .. } = error else { return Err(error) };
    match checker.definition(text) {
        Ok(Definition::Delete(delete)) => deletion(checker, text.as_str(), &delete, viewer),
        _ => Ok(unreadable(&diagnostics)),
    }
}

/// The answer for a definition that was judged; without a viewer, for one who may see everything.
pub(crate) fn judged(
    checker: &Checker,
    outcome: &CheckOutcome,
    detail: Detail,
    viewer: Option<&Viewer>,
) -> v1::CheckProbeResponse {
    let taken = checker.taken(outcome).map(|taken| match viewer {
        Some(viewer) => viewer.sight.told(&viewer.registry, taken),
        None => taken,
    });
    let against = outcome.against(taken.as_ref());
    let (nearest, listing) = match (detail, against) {
        (Detail::Listing, _) => {
            let around = outcome.surroundings();
            (around.nearest, around.listing)
        }
        (Detail::Brief, Some(Against::Place(_))) => (outcome.nearest(), Vec::new()),
        (Detail::Brief, _) => (Nearest::default(), Vec::new()),
    };
    let arming = match detail {
        _ if against.is_some() => None,
        Detail::Listing => outcome.predicted_arming(),
        Detail::Brief => outcome.report.arming,
    };
    let mut response = match against {
        Some(Against::Place(refusal)) => {
            let found = refusal.clone().or_hint(|| nearest.hint());
            v1::CheckProbeResponse {
                diagnostics: vec![error::of_refusal(&found)],
                kernel_reason: refusal.kernel_code().to_owned(),
                ..refused(refusal.errno as i32, refusal.rule.name(), refusal.refused_by())
            }
        }
        Some(Against::Text(problem)) => unreadable(std::slice::from_ref(problem)),
        Some(Against::Name(taken)) => unreadable(std::slice::from_ref(&taken.problem)),
        None => v1::CheckProbeResponse { verdict: v1::Verdict::Accepted.into(), ..Default::default() },
    };
    let is_accepted = against.is_none();
    if is_accepted && detail == Detail::Listing && !outcome.definition.is_of_host_event() {
        response.meaning = meaning::checked(&outcome.meaning());
    }
    let livepatched = is_accepted.then(|| livepatch_warning(outcome, &checker.livepatches())).flatten();
    let CheckOutcome { definition, dialect, report, unread, .. } = outcome;
    if unread.is_empty() {
        response.diagnostics.extend(definition.warnings.iter().chain(&livepatched).map(error::diagnostic));
        let Preview { name, canonical, kernel_definition } = checker.preview(definition);
        if detail == Detail::Listing {
            response.spec = Some(spec::write(definition));
        }
        response.name = name;
        response.canonical = canonical;
        response.kernel_definition = kernel_definition;
        response.dialect = messages::dialect(*dialect).into();
    }
    response.diagnostics.extend(unread.iter().map(error::diagnostic));
    response.location = report.told_location();
    response.arming = arming.map_or(v1::Arming::Unspecified, messages::arming).into();
    response.listing = listing.into_iter().map(instruction).collect();
    response.nearest_before = nearest.before;
    response.nearest_after = nearest.after;
    response
}

/// The answer about a place that is an address, for a client that may not see addresses.
fn address_not_allowed(definition: &ProbeDefinition) -> v1::CheckProbeResponse {
    let message = "a place that is an address needs a role that may see addresses".to_owned();
    let hint = "name the function, or ask for a rule with `addresses` in `reads`".to_owned();
    against_rule((Errno::EPERM, "ADDRESS_NOT_ALLOWED"), definition.place.span(), message, hint)
}

/// The answer about a definition of another probe than the one that is meant.
fn of_another(found: &str, name: &ProbeName, span: Span) -> v1::CheckProbeResponse {
    let message = format!("the definition is of `{found}`, and the probe is `{name}`");
    let hint = format!("write `{name}` in it, or leave the name out");
    against_rule((Errno::EINVAL, "OTHER_NAME"), span, message, hint)
}

/// The answer about a definition that a rule of the daemon refuses.
fn against_rule(
    (errno, code): (Errno, &str),
    span: Span,
    message: String,
    hint: String,
) -> v1::CheckProbeResponse {
    let found = v1::Diagnostic {
        severity: v1::Severity::Error.into(),
        code: code.to_owned(),
        message,
        hint,
        span_start: error::length(span.start),
        span_end: error::length(span.end),
        ..Default::default()
    };
    v1::CheckProbeResponse { diagnostics: vec![found], ..refused(errno as i32, code, RefusedBy::Kprobed) }
}

/// The verdict on a text that is refused for these reasons.
fn unreadable(diagnostics: &[Diagnostic]) -> v1::CheckProbeResponse {
    let Some(first) = diagnostics.first() else {
        return refused(Errno::EINVAL as i32, "", RefusedBy::Kprobed);
    };
    v1::CheckProbeResponse {
        diagnostics: diagnostics.iter().map(error::diagnostic).collect(),
        kernel_reason: first.code.name().to_owned(),
        ..refused(first.errno, first.code.name(), first.by)
    }
}

/// The verdict on a line that deletes.
fn deletion(
    checker: &Checker,
    text: &str,
    delete: &DeleteDefinition,
    viewer: Option<&Viewer>,
) -> Result<v1::CheckProbeResponse, CheckError> {
    let canonical = text.split('#').next().unwrap_or_default().trim().to_owned();
    let dialect = v1::Dialect::Kernel.into();
    let deleted = checker.deleted_by(text, delete);
    let deleted = match viewer {
        Some(viewer) => viewer.sight.told_of_deletion(&viewer.registry, delete, deleted),
        None => deleted,
    };
    match deleted {
        Ok(_names) => {
            let warning = v1::Diagnostic {
                severity: v1::Severity::Warning.into(),
                code: "NOTHING_TO_CHECK".to_owned(),
                message: "this line deletes: there is nothing to check".to_owned(),
                span_end: error::length(text.len()),
                ..Default::default()
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

fn refused(errno: i32, rule: &str, by: RefusedBy) -> v1::CheckProbeResponse {
    v1::CheckProbeResponse {
        verdict: v1::Verdict::Refused.into(),
        errno: errno.unsigned_abs(),
        errno_name: format!("{:?}", Errno::from_raw(errno)),
        rule: rule.to_owned(),
        by: error::refused_by(by).into(),
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
