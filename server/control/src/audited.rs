//! Audit entries of changes: what the log says of each.
//!
//! Owns their contents. Never writes them: the store does, in the transaction of the change.

use kprobed_audit::{Action, Entry};
use kprobed_rights::RuleName;

use super::command::{Asked, Change};
use crate::auth::Caller;
use crate::error::Error;
use crate::store::{OWN_NAME, ProbeSpec, Record, RequestKey};

/// A change that this rule allows, and after which the probe is this; or the removal of this one.
pub(super) fn of_probe(
    change: &'static str,
    (caller, rule): (&Caller, Option<RuleName>),
    request: Option<&RequestKey>,
    record: &Record,
) -> Entry {
    let ProbeSpec { definition, enabled, filter, stack, .. } = &record.spec;
    let line = &record.kernel_definition;
    // An event of the host has no line.
    let line = if line.is_empty() { definition.to_string() } else { line.clone() };
    Entry {
        probe: record.name.to_string(),
        definition: if *stack { format!("{line} # with call stacks") } else { line },
        enabled: Some(*enabled),
        filter: filter.clone(),
        request: request.map(|request| request.id.clone()).unwrap_or_default(),
        ..entry(change, (caller, rule))
    }
}

/// A change of something else.
pub(super) fn entry(change: &'static str, (caller, rule): (&Caller, Option<RuleName>)) -> Entry {
    Entry {
        change: change.to_owned(),
        rule: rule.map(|rule| rule.to_string()).unwrap_or_default(),
        operation: caller.operation.to_string(),
        ..caller.entry(Action::Changed)
    }
}

/// A change that was refused before it was begun. Absent for one that the roles or their limits refuse,
/// which is in the log already, and for one that was only checked.
pub(super) fn refused(asked: &Asked, error: &Error) -> Option<Entry> {
    if asked.change.validate_only() || error.is_of_roles() {
        return None;
    }
    let (change, request, probe, definition) = match &asked.change {
        Change::Create(request) => ("create", &request.request, String::new(), request.definition.as_str()),
        Change::Update(request) => {
            let definition = request.definition.as_ref().map_or("", |definition| definition.as_str());
            (request.change(), &request.request, request.name.clone(), definition)
        }
        Change::Remove(request) => ("delete", &request.request, request.name.clone(), ""),
        Change::Adopt(request) => ("adopt", &request.request, request.name.to_string(), ""),
    };
    Some(Entry {
        change: change.to_owned(),
        request: request.as_ref().map(|request| request.id.clone()).unwrap_or_default(),
        probe,
        definition: definition.to_owned(),
        reason: error.to_string(),
        ..asked.caller.entry(Action::Refused)
    })
}

/// That a change was not made because the daemon ended before.
pub(super) fn interrupted(record: &Record) -> Entry {
    let reason = "the daemon ended before the change was complete: it was rolled back";
    Entry { action: Action::Failed, ..entry_of_end(record, reason) }
}

/// That the daemon ended a probe itself.
pub(super) fn entry_of_end(record: &Record, reason: &str) -> Entry {
    Entry {
        probe: record.name.to_string(),
        definition: record.kernel_definition.clone(),
        reason: reason.to_owned(),
        ..Entry::new(Action::Ended, OWN_NAME)
    }
}
