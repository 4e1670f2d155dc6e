//! Messages of domain values that several services send, and values that several requests have.
//!
//! Never decides anything.

use std::collections::HashMap;
use std::time::SystemTime;

use kprobed_proto::v1;
use prost_types::Timestamp;

use kprobed_control::error::Error;
use kprobed_control::store::ProbeSpec;
use kprobed_control::{CountedHits, PlannedStep, Probe, Trouble};
use kprobed_host::kernel::{ClockMapping, trace_clock_ns};
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::{
    HitProfile, KernelChange, LabelChange, LabelSelector, Labels, Lease, NameError, ProbeName, StateRecord,
};
use kprobed_trace::pipeline::Span;
use kprobed_trace::wire::schema_message;
use kprobed_verdict::message::diagnostic;

/// When a probe fires.
pub(crate) const fn kind(kind: ProbeKind) -> v1::ProbeKind {
    match kind {
        ProbeKind::Entry => v1::ProbeKind::Entry,
        ProbeKind::Return => v1::ProbeKind::Return,
        ProbeKind::Event => v1::ProbeKind::Event,
    }
}

/// A probe, with everything that is known of it but its fields by `spec`.
pub(crate) fn probe(probe: &Probe) -> v1::Probe {
    let (reason, message, hint) = match probe.state.trouble() {
        Some(Trouble { code, reason, hint }) => (*code, reason.as_str(), hint.as_str()),
        None => ("", "", ""),
    };
    let ProbeSpec { definition, enabled, filter, stack, labels, metadata } = &probe.spec;
    v1::Probe {
        name: probe.name.to_string(),
        uid: probe.uid.0,
        definition: definition.to_string(),
        kernel_definition: probe.kernel_definition.clone(),
        kind: kind(probe.kind).into(),
        enabled: *enabled,
        filter: filter.clone(),
        stack: *stack,
        labels: labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        state: probe.state.kind().into(),
        state_reason: reason.to_owned(),
        state_message: message.to_owned(),
        state_hint: hint.to_owned(),
        create_time: Some(probe.create_time.into()),
        update_time: Some(probe.update_time.into()),
        etag: probe.etag(),
        schema: probe.schema.as_ref().map(|fields| schema_message(0, &probe.name, probe.uid, fields, None)),
        warnings: probe.warnings.iter().map(diagnostic).collect(),
        location: probe.told_location.clone(),
        spec: None,
        description: metadata.description.clone(),
        owner: metadata.owner.clone(),
        declared_by: metadata.declared_by.clone().unwrap_or_default(),
        lease: metadata.lease.as_ref().map(|of_probe| lease(of_probe, (SystemTime::now(), trace_clock_ns()))),
        on_kernel_change: policy(metadata.on_kernel_change).into(),
        state_time: probe.state_time.map(Timestamp::from),
        hit_cost: None,
        creator: probe.creator.clone(),
        meaning_change: probe.guarded.change.as_deref().cloned(),
    }
}

/// How often a probe was hit.
pub(crate) fn profile(profile: &HitProfile) -> v1::HitProfile {
    v1::HitProfile {
        probe: profile.name.to_string(),
        probe_uid: profile.uid.0,
        boot_id: profile.boot_id.clone(),
        time: Some(profile.time.into()),
        hits: profile.hits.hits,
        nmissed: profile.hits.nmissed,
        ..v1::HitProfile::default()
    }
}

/// The same with the daemon's own part.
pub(crate) fn counted_hits(counted: &CountedHits) -> v1::HitProfile {
    v1::HitProfile {
        own: counted.own.ok(),
        own_unknown: counted.own.err().unwrap_or_default().to_owned(),
        ..profile(&counted.profile)
    }
}

/// A lease of a probe. Its end is by the wall clock as it is set at this time of the boot.
pub(crate) fn lease(lease: &Lease, now: (SystemTime, u64)) -> v1::Lease {
    match lease {
        Lease::Until { duration, end } => v1::Lease {
            duration: prost_types::Duration::try_from(*duration).ok(),
            expire_time: Some(end.wall_seen_from(now).into()),
            holder: String::new(),
        },
        Lease::Held { holder } => v1::Lease { holder: holder.clone(), ..v1::Lease::default() },
    }
}

/// What is done with it when the kernel is another build.
const fn policy(policy: KernelChange) -> v1::KernelChange {
    match policy {
        KernelChange::Hold => v1::KernelChange::Hold,
        KernelChange::ArmAnyway => v1::KernelChange::ArmAnyway,
    }
}

/// A value of an enumeration in a request. A value of a later version is refused.
pub(super) fn known<T, E>(value: Result<T, E>, field: &'static str) -> Result<T, Error> {
    value.map_err(|_unknown| {
        Error::bad_argument(
            field,
            format!("`{field}` has a value that this version of the daemon does not know"),
        )
    })
}

/// The steps that would be taken.
pub(super) fn plan(steps: &[PlannedStep]) -> Vec<v1::PlannedStep> {
    let step = |step: &PlannedStep| v1::PlannedStep {
        event: step.event.as_ref().map(ToString::to_string).unwrap_or_default(),
        command: step.command.clone(),
    };
    steps.iter().map(step).collect()
}

pub(super) fn state_record(record: &StateRecord) -> v1::ProbeStateRecord {
    let state = v1::ProbeState::from_str_name(&format!("PROBE_STATE_{}", record.state));
    v1::ProbeStateRecord {
        state: state.unwrap_or_default().into(),
        state_reason: record.reason.clone(),
        state_message: record.message.clone(),
        state_hint: record.hint.clone(),
        time: Some(record.time.into()),
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

/// The name of a probe.
pub(super) fn probe_name(text: &str) -> Result<ProbeName, Error> {
    text.parse().map_err(|error: NameError| Error::bad_argument("name", error.to_string()))
}

/// The labels of a new probe.
pub(super) fn labels(labels: HashMap<String, String>) -> Result<Labels, Error> {
    Labels::new(labels).map_err(|error| Error::labels("labels", &error))
}

/// The label changes of an update.
pub(super) fn label_change(set: HashMap<String, String>, remove: Vec<String>) -> Result<LabelChange, Error> {
    let set = Labels::new(set).map_err(|error| Error::labels("set_labels", &error))?;
    LabelChange::new(set, remove).map_err(|error| Error::labels("remove_labels", &error))
}

/// The selector of a listing, or of a stream of events. `field` is the field of the request with
/// the text.
pub(super) fn selector(field: &'static str, text: &str) -> Result<LabelSelector, Error> {
    text.parse().map_err(|error| Error::labels(field, &error))
}

#[cfg(test)]
mod tests {
    use kprobed_client::{Error, RpcError};
    use tonic::Status;

    use super::*;
    use kprobed_control::error;

    fn refusal<T>(result: Result<T, error::Error>) -> RpcError {
        match result.map(drop).map_err(|error| Error::from(Status::from(error))) {
            Err(Error::Rpc(error)) => *error,
            other => panic!("{other:?}"),
        }
    }

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// Field, text and span of a refusal.
    fn place(error: &RpcError) -> (&str, &str, (u32, u32)) {
        let found = error.diagnostics.as_ref().unwrap();
        let diagnostic = &found.diagnostics[0];
        assert!(error.reason == "BAD_LABEL" && diagnostic.code == "BAD_LABEL", "{error:?}");
        (&error.fields[0].field, &found.text, (diagnostic.span_start, diagnostic.span_end))
    }

    #[test]
    fn refusals_name_the_field_and_the_bytes() {
        let made = refusal(labels(map(&[("fine", ""), ("team", "a b")])));
        assert_eq!(place(&made), (r#"labels["team"]"#, "team=a b", (6, 7)));
        let set = refusal(label_change(map(&[("a:b", "")]), Vec::new()));
        assert_eq!(place(&set), (r#"set_labels["a:b"]"#, "a:b=", (1, 2)));
        let both = refusal(label_change(map(&[("team", "")]), vec!["team".to_owned()]));
        assert_eq!(place(&both), ("remove_labels", "team", (0, 4)));
        let selector = refusal(selector("label_selector", "team=a,tier in 2"));
        assert_eq!(place(&selector), ("label_selector", "team=a,tier in 2", (15, 15)));
        assert!(!selector.diagnostics.unwrap().diagnostics[0].hint.is_empty());
        // Too many labels have no single place.
        let many = refusal(labels((0..33).map(|number| (format!("k{number}"), String::new())).collect()));
        assert_eq!((many.fields[0].field.as_str(), many.diagnostics.is_none()), ("labels", true));
    }
}
