//! The document of a probe, and requests that make a probe match its document.
//!
//! Owns the comparison of the two. Never sends a request: clients and the daemon
//! do.

use kprobed_proto::v1;

use crate::document::{Document, KernelChange, Lease};

/// The document of a probe: applying it to that probe changes nothing.
pub fn document_of(probe: &v1::Probe) -> Document {
    Document {
        name: probe.name.clone(),
        definition: probe.definition.clone(),
        enabled: probe.enabled,
        filter: probe.filter.clone(),
        labels: probe.labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        owner: probe.owner.clone(),
        description: probe.description.clone(),
        lease: probe.lease.as_ref().and_then(Lease::of_message),
        on_kernel_change: KernelChange::of_message(probe.on_kernel_change()),
    }
}

/// The request that creates the probe of a document.
pub fn creation(document: &Document) -> v1::CreateProbeRequest {
    v1::CreateProbeRequest {
        name: document.name.clone(),
        definition: document.definition.clone(),
        enabled: document.enabled,
        filter: document.filter.clone(),
        labels: document.labels.clone().into_iter().collect(),
        description: document.description.clone(),
        owner: document.owner.clone(),
        lease: document.lease.as_ref().map(Lease::message),
        on_kernel_change: document.on_kernel_change.message().into(),
        ..v1::CreateProbeRequest::default()
    }
}

/// Key of the label that a roll-out puts on the probes that it creates and changes: its value is the name
/// of the roll-out, whose probes share a budget.
pub const ROLLOUT_LABEL: &str = "kprobed/rollout";

/// The document with the mark of the roll-out that has made the probe. A document does not have it, and
/// leaves it as it is.
pub fn keeping_mark(document: &Document, probe: &v1::Probe) -> Document {
    let mut document = document.clone();
    if let Some(mark) = probe.labels.get(ROLLOUT_LABEL) {
        document.labels.entry(ROLLOUT_LABEL.to_owned()).or_insert_with(|| mark.clone());
    }
    document
}

/// The document of a probe after a change: `document` with the present definition of the probe, or
/// with `definition` if there is one.
pub fn described(document: &Document, probe: &v1::Probe, definition: Option<&str>) -> Document {
    let definition = definition.unwrap_or(&probe.definition).to_owned();
    Document { definition, ..document.clone() }
}

/// The request that makes a probe match its document; absent if it does already. `definition` is
/// the text of its new definition. A lease that lasts as long as the document says is not renewed, unless it has
/// ended: then it begins again.
pub fn changed(
    document: &Document,
    probe: &v1::Probe,
    definition: Option<String>,
) -> Option<v1::UpdateProbeRequest> {
    let is = document_of(probe);
    let wanted = described(document, probe, definition.as_deref());
    let has_expired = probe.state() == v1::ProbeState::Expired && wanted.lease.is_some();
    if is == wanted && !has_expired {
        return None;
    }
    let text = |is: &str, wanted: &str| (is != wanted).then(|| wanted.to_owned());
    Some(v1::UpdateProbeRequest {
        name: probe.name.clone(),
        etag: probe.etag.clone(),
        definition,
        enabled: (is.enabled != wanted.enabled).then_some(wanted.enabled),
        filter: text(&is.filter, &wanted.filter),
        set_labels: wanted
            .labels
            .iter()
            .filter(|(key, value)| is.labels.get(*key) != Some(value))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        remove_labels: is.labels.keys().filter(|key| !wanted.labels.contains_key(*key)).cloned().collect(),
        description: text(&is.description, &wanted.description),
        owner: text(&is.owner, &wanted.owner),
        lease: (is.lease != wanted.lease || has_expired)
            .then(|| wanted.lease.as_ref().map_or_else(v1::Lease::default, Lease::message)),
        on_kernel_change: if is.on_kernel_change == wanted.on_kernel_change {
            v1::KernelChange::Unspecified
        } else {
            wanted.on_kernel_change.message()
        }
        .into(),
        ..v1::UpdateProbeRequest::default()
    })
}
