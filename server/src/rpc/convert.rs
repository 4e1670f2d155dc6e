//! Domain values as messages.

use std::time::SystemTime;

use kprobed_proto::v1;
use prost_types::Timestamp;

use super::metadata::{lease_message, policy_message};
use crate::control::{DeclarationProblem, MeaningChange, PlannedStep, Probe, ProbeState, Trouble};
use crate::definition::explain::{ExplainedArgument, Explanation};
use crate::definition::file::Entry;
use crate::definition::{Definition, Diagnostic, Dialect, ProbeKind, RefusedBy, Severity};
use crate::kernel::ClockMapping;
use crate::meaning::{Build, Difference};
use crate::model::{HitProfile, StateRecord};
use crate::pipeline::Span;
use crate::validate::Arming;
use crate::wire::schema_message;

/// A length or position as the wire has it. Texts that long do not get here: gRPC bounds the size of a message.
pub(super) fn length(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::from(time)
}

/// A time from the wire. One that cannot be represented is none.
pub(super) fn time(timestamp: Timestamp) -> Option<SystemTime> {
    SystemTime::try_from(timestamp).ok()
}

pub(super) fn diagnostic(diagnostic: &Diagnostic) -> v1::Diagnostic {
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
        field: String::new(),
        by: match diagnostic.severity {
            Severity::Error => refused_by(diagnostic.by).into(),
            Severity::Warning => v1::RefusedBy::Unspecified.into(),
        },
    }
}

pub(super) fn refused_by(by: RefusedBy) -> v1::RefusedBy {
    match by {
        RefusedBy::Kernel => v1::RefusedBy::Kernel,
        RefusedBy::Kprobed => v1::RefusedBy::Kprobed,
    }
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

/// What would be done.
pub(super) fn plan(steps: &[PlannedStep]) -> Vec<v1::PlannedStep> {
    let step = |step: &PlannedStep| v1::PlannedStep {
        event: step.event().map(ToString::to_string).unwrap_or_default(),
        command: step.to_string(),
    };
    steps.iter().map(step).collect()
}

pub(super) fn explanation(explanation: Explanation, warnings: &[Diagnostic]) -> v1::ExplainProbeResponse {
    let text = explanation.to_string();
    let argument = |argument: ExplainedArgument| v1::ExplainedArgument {
        text: argument.text,
        meaning: argument.meaning,
    };
    v1::ExplainProbeResponse {
        dialect: dialect(explanation.dialect).into(),
        kernel_definition: explanation.line,
        when: explanation.when,
        arguments: explanation.arguments.into_iter().map(argument).collect(),
        fields: explanation
            .fields
            .into_iter()
            .map(|field| v1::ExplainedField { name: field.name, r#type: field.ty })
            .collect(),
        assumptions: explanation.assumptions,
        warnings: warnings.iter().map(diagnostic).collect(),
        text,
        spec: None,
        definition: String::new(),
        definition_2009: explanation.old_form.unwrap_or_default(),
    }
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

pub(super) fn file_definition(entry: Entry) -> v1::FileDefinition {
    let (read_as, deletes, diagnostics) = match &entry.reading.result {
        Ok(Definition::Probe(probe)) => (dialect(entry.reading.dialect), false, probe.warnings.as_slice()),
        Ok(Definition::Delete(_)) => (dialect(entry.reading.dialect), true, [].as_slice()),
        Err(problems) => (v1::Dialect::Unspecified, false, problems.as_slice()),
    };
    v1::FileDefinition {
        line: length(entry.line),
        offset: length(entry.span.start),
        dialect: read_as.into(),
        deletes,
        diagnostics: diagnostics.iter().map(diagnostic).collect(),
        text: entry.text,
    }
}

pub(super) const fn state(state: &ProbeState) -> v1::ProbeState {
    match state {
        ProbeState::Pending => v1::ProbeState::Pending,
        ProbeState::Armed => v1::ProbeState::Armed,
        ProbeState::Disabled => v1::ProbeState::Disabled,
        ProbeState::PendingModule => v1::ProbeState::PendingModule,
        ProbeState::Failed(_) => v1::ProbeState::Failed,
        ProbeState::Drifted(_) => v1::ProbeState::Drifted,
        ProbeState::HeldBack(_) => v1::ProbeState::HeldBack,
        ProbeState::ShadowedByLivepatch(_) => v1::ProbeState::ShadowedByLivepatch,
        ProbeState::Expired(_) => v1::ProbeState::Expired,
    }
}

pub(super) fn probe(probe: &Probe) -> v1::Probe {
    let (reason, message, hint) = match probe.state.trouble() {
        Some(Trouble { code, reason, hint }) => (*code, reason.as_str(), hint.as_str()),
        None if probe.state == ProbeState::PendingModule => ("MODULE_ABSENT", "its module is not loaded", ""),
        None => ("", "", ""),
    };
    let kind = match probe.kind {
        ProbeKind::Entry => v1::ProbeKind::Entry,
        ProbeKind::Return => v1::ProbeKind::Return,
    };
    let metadata = &probe.metadata;
    v1::Probe {
        name: probe.name.to_string(),
        uid: probe.uid.0,
        definition: probe.definition.clone(),
        kernel_definition: probe.kernel_definition.clone(),
        kind: kind.into(),
        enabled: probe.enabled,
        filter: probe.filter.clone(),
        labels: probe.labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        state: state(&probe.state).into(),
        state_reason: reason.to_owned(),
        state_message: message.to_owned(),
        state_hint: hint.to_owned(),
        create_time: Some(timestamp(probe.create_time)),
        update_time: Some(timestamp(probe.update_time)),
        etag: probe.etag(),
        schema: probe.schema.as_ref().map(|fields| schema_message(0, &probe.name, probe.uid, fields, None)),
        warnings: probe.warnings.iter().map(diagnostic).collect(),
        location: probe.location.clone(),
        spec: None,
        description: metadata.description.clone(),
        owner: metadata.owner.clone(),
        declared_by: metadata.declared_by.clone().unwrap_or_default(),
        lease: metadata.lease.as_ref().map(lease_message),
        on_kernel_change: policy_message(metadata.on_kernel_change).into(),
        state_time: probe.state_time.map(timestamp),
        meaning_change: probe.guarded.change.as_deref().map(meaning_change),
    }
}

fn meaning_change(change: &MeaningChange) -> v1::MeaningChange {
    let build = |build: &Build| v1::KernelBuild {
        name: build.name.clone(),
        build_id: build.id.clone().unwrap_or_default(),
    };
    let difference = |found: &Difference| v1::MeaningDifference {
        code: found.kind.code().to_owned(),
        argument: found.argument.clone(),
        message: found.message.clone(),
        before: found.before.clone(),
        after: found.after.clone(),
    };
    v1::MeaningChange {
        made_for: change.before.as_ref().map(build),
        module_made_for: change.module_before.as_ref().map(build),
        running: Some(build(&change.now)),
        module_running: change.module_now.as_ref().map(build),
        differences: change.differences.iter().map(difference).collect(),
        offered_definition: change.offered.clone().unwrap_or_default(),
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

pub(super) fn profile(profile: &HitProfile) -> v1::HitProfile {
    v1::HitProfile {
        probe: profile.name.to_string(),
        probe_uid: profile.uid.0,
        boot_id: profile.boot_id.clone(),
        time: Some(timestamp(profile.time)),
        hits: profile.hits.hits,
        nmissed: profile.hits.nmissed,
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
