//! Verdicts as the caller may be told them, for one check and for many.
//!
//! Never judges: the checker does. What an answer contains is [`kprobed_verdict::message`]'s.

use std::sync::Arc;

use kprobed_proto::v1;
use nix::errno::Errno;

use super::{hidden, meaning, spec};
use kprobed_control::{CostTable, Registry, Sight, host_event_fields, livepatch_warning, permission};
use kprobed_host::kernel::RecentFacts;
use kprobed_host::tracefs::Tracefs;
use kprobed_lang::definition::short::Expansion;
use kprobed_lang::definition::{Code, Definition, ProbeKind, RefusedBy, Span};
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_trace::wire::schema_message;
use kprobed_verdict::checker::{CheckError, CheckOutcome, Checker, DefinitionText};
use kprobed_verdict::message::{self, Detail, finding};
use kprobed_verdict::validate::Arming;

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
    if let Some(written) = checker.reading(text).written()
        && let Err(refused) = permission::on_place(viewer.addresses, written)
    {
        let texts = (refused.message.as_str(), refused.hint());
        return Ok(against_rule((Errno::EPERM, "ADDRESS_NOT_ALLOWED"), written.place.span(), texts));
    }
    match checker.check_text(text, facts) {
        Ok(outcome) => {
            let span = outcome.definition.span;
            let outcome = match name {
                Some(name) => match outcome.named(name) {
                    Ok(outcome) => outcome,
                    Err(found) => return Ok(of_another(&found, name, span)),
                },
                None => outcome,
            };
            let mut answer = judged(checker, &outcome, detail, viewer);
            let is_said = outcome.definition.warnings.iter().any(|known| known.code == Code::ModuleAbsent);
            let waiting = outcome.waiting().filter(|_| !is_said && answer.verdict() == v1::Verdict::Accepted);
            answer.diagnostics.extend(waiting.as_ref().map(message::diagnostic));
            if !viewer.addresses {
                hidden::listing(&mut answer.listing);
            }
            Ok(answer)
        }
        Err(error) => unjudged(checker, text, error, viewer),
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

/// The fields of an event of the host that was checked with listings. Absent for every other answer.
pub(super) fn event_schema(
    tracefs: &Tracefs,
    checker: &Checker,
    checked: &v1::CheckProbeResponse,
) -> Option<v1::EventSchema> {
    checked.spec.as_ref().filter(|spec| spec.kind() == v1::ProbeKind::Event)?;
    let event = checked.name.parse::<ProbeName>().ok()?;
    let fields = host_event_fields(tracefs, checker, &event).ok()?;
    Some(schema_message(0, &event, ProbeUid(0), &fields, None))
}

/// The answer for a text that could not be judged as the definition of a probe.
///
/// # Errors
/// The given one, unless it is about the text.
fn unjudged(
    checker: &Checker,
    text: &DefinitionText,
    error: CheckError,
    viewer: &Viewer,
) -> Result<v1::CheckProbeResponse, CheckError> {
    let CheckError::Definition { diagnostics, .. } = error else { return Err(error) };
    let Ok(Definition::Delete(delete)) = checker.definition(text) else {
        return Ok(message::unreadable(&diagnostics));
    };
    let deleted = checker.deleted_by(text.as_str(), &delete);
    message::deletion(text.as_str(), viewer.sight.told_of_deletion(&viewer.registry, &delete, deleted))
}

/// The answer for a definition that was judged.
fn judged(
    checker: &Checker,
    outcome: &CheckOutcome,
    detail: Detail,
    viewer: &Viewer,
) -> v1::CheckProbeResponse {
    let taken = checker.taken(outcome).map(|taken| viewer.sight.told(&viewer.registry, taken));
    let livepatched = livepatch_warning(outcome, &checker.livepatches());
    let mut response = message::judged(checker, outcome, detail, taken.as_ref(), livepatched.as_ref());
    if detail == Detail::Listing {
        // A probe that has the name already does not change what the definition would record.
        if outcome.is_taken() && !outcome.definition.is_of_host_event() {
            response.meaning = meaning::checked(&outcome.meaning());
        }
        if outcome.unread.is_empty() {
            response.spec = Some(spec::write(&outcome.definition));
        }
    }
    response
}

/// The answer about a definition of another probe than the one that is meant.
fn of_another(found: &str, name: &ProbeName, span: Span) -> v1::CheckProbeResponse {
    let message = format!("the definition is of `{found}`, and the probe is `{name}`");
    let hint = format!("write `{name}` in it, or leave the name out");
    against_rule((Errno::EINVAL, "OTHER_NAME"), span, (&message, &hint))
}

/// The answer about a definition that a rule of the daemon refuses.
fn against_rule((errno, code): (Errno, &str), span: Span, texts: (&str, &str)) -> v1::CheckProbeResponse {
    let found = finding(code, texts, span.range());
    v1::CheckProbeResponse { diagnostics: vec![found], ..message::refused(errno, code, RefusedBy::Kprobed) }
}
