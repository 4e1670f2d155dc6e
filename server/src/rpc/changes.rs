//! Change requests: conversion of one or several changes of probes from messages.
//!
//! Owns the limit of a batch, and what makes a request safe to repeat. Never carries a change out.

use std::sync::Arc;

use kprobed_proto::v1;
use kprobed_proto::v1::probe_change::Change as Asked;
use kprobed_proto::v1::probe_outcome::Outcome;

use super::messages;
use super::probes::{non_empty, request_key};
use super::{labels, metadata, status};
use crate::control::{Change, CreateRequest, RemoveRequest, Removed, Unit, UpdateRequest};
use crate::error::Error;
use kprobed_lang::model::{NameError, ProbeName};
use kprobed_verdict::checker::DefinitionText;

/// Most changes in one request: each delays those of other requests for some milliseconds, and its
/// answer is up to some kilobytes long.
pub(super) const MOST: usize = 1000;

/// A request to create a probe.
pub(super) fn creation(request: v1::CreateProbeRequest) -> Result<CreateRequest, Error> {
    let metadata = metadata::of(&request)?;
    let labels = labels::of(request.labels)?;
    let fingerprint = format!(
        "create {} {:?} {:?} {:?} {labels} {metadata:?}",
        request.enabled, request.filter, request.definition, request.name
    );
    Ok(CreateRequest {
        definition: Arc::new(DefinitionText::new(request.definition)),
        name: name(request.name)?,
        enabled: request.enabled,
        filter: request.filter,
        labels,
        metadata,
        request: request_key(request.request_id, fingerprint)?,
        validate_only: request.validate_only,
    })
}

/// A name that a request gives a probe.
pub(super) fn name(text: String) -> Result<Option<ProbeName>, Error> {
    let name = non_empty(text).map(|text| text.parse()).transpose();
    name.map_err(|error: NameError| Error::bad_argument("name", error.to_string()))
}

/// A request to change a probe.
pub(super) fn update(request: v1::UpdateProbeRequest) -> Result<UpdateRequest, Error> {
    if request.accept {
        only_accepts(&request)?;
    }
    let metadata = metadata::change(&request)?;
    let labels = labels::change(request.set_labels, request.remove_labels)?;
    let fingerprint = format!(
        "update {:?} {:?} {:?} {:?} {labels:?} {metadata:?} {} {}",
        request.name, request.enabled, request.filter, request.definition, request.take_over, request.accept
    );
    Ok(UpdateRequest {
        name: request.name,
        definition: request.definition.map(|text| Arc::new(DefinitionText::new(text))),
        enabled: request.enabled,
        filter: request.filter,
        labels,
        metadata,
        take_over: request.take_over,
        accept: request.accept,
        etag: non_empty(request.etag),
        request: request_key(request.request_id, fingerprint)?,
        validate_only: request.validate_only,
    })
}

/// A request to create a probe that a file declares: judged by the same rules as those of clients.
pub(crate) fn declared_creation(request: v1::CreateProbeRequest, file: &str) -> Result<CreateRequest, Error> {
    let mut create = creation(request)?;
    create.metadata.declared_by = Some(Some(file.to_owned()));
    Ok(create)
}

/// A request to change a probe that a file declares.
pub(crate) fn declared_update(request: v1::UpdateProbeRequest, file: &str) -> Result<UpdateRequest, Error> {
    let mut update = update(request)?;
    update.take_over = true;
    update.metadata.declared_by = Some(Some(file.to_owned()));
    Ok(update)
}

/// Refuses an acceptance with another change of the probe.
fn only_accepts(request: &v1::UpdateProbeRequest) -> Result<(), Error> {
    let others = [
        ("enabled", request.enabled.is_some()),
        ("filter", request.filter.is_some()),
        ("set_labels", !request.set_labels.is_empty()),
        ("remove_labels", !request.remove_labels.is_empty()),
        ("definition", request.definition.is_some()),
        ("description", request.description.is_some()),
        ("owner", request.owner.is_some()),
        ("lease", request.lease.is_some()),
        ("on_kernel_change", request.on_kernel_change() != v1::KernelChange::Unspecified),
        ("take_over", request.take_over),
    ];
    let given: Vec<_> =
        others.iter().filter(|(_, is_given)| *is_given).map(|(field, _)| format!("`{field}`")).collect();
    if given.is_empty() {
        return Ok(());
    }
    let message = format!("`accept` is a change of its own: send {} in another request", given.join(", "));
    Err(Error::bad_argument("accept", message))
}

/// A request to delete a probe.
pub(super) fn deletion(request: v1::DeleteProbeRequest) -> Result<RemoveRequest, Error> {
    Ok(RemoveRequest {
        request: request_key(request.request_id, format!("delete {:?}", request.name))?,
        name: request.name,
        take_over: request.take_over,
        etag: non_empty(request.etag),
        validate_only: request.validate_only,
    })
}

/// Several requests.
pub(super) fn all(changes: Vec<v1::ProbeChange>, unit: Unit) -> Result<Vec<Change>, Error> {
    if changes.len() > MOST {
        let message = format!("one call makes at most {MOST} changes; {} are requested", changes.len());
        return Err(Error::bad_argument("changes", message));
    }
    let one = |change: v1::ProbeChange| match change.change {
        Some(Asked::Create(request)) => creation(request).map(Change::Create),
        Some(Asked::Update(request)) if request.accept && unit == Unit::All => {
            Err(Error::bad_argument("changes", "an `accept` is not possible with `all_or_nothing`"))
        }
        Some(Asked::Update(request)) => update(request).map(Change::Update),
        Some(Asked::Delete(request)) => deletion(request).map(Change::Remove),
        None => Err(Error::bad_argument("changes", "a change must be `create`, `update` or `delete`")),
    };
    changes.into_iter().map(one).collect()
}

/// The outcome of a deletion.
pub(super) fn deleted(Removed { name, profile, note }: Removed) -> v1::DeletedProbe {
    v1::DeletedProbe {
        name: name.to_string(),
        profile: profile.as_ref().map(messages::profile),
        note: note.to_owned(),
    }
}

/// The outcome of a change that failed.
pub(super) fn failed(error: &Error) -> v1::ProbeOutcome {
    v1::ProbeOutcome { outcome: Some(Outcome::Failed(status::of_one(error))) }
}

#[cfg(test)]
mod tests {
    use kprobed_client::Error;
    use tonic::{Code, Status};

    use super::*;
    use crate::error;

    fn to_delete(name: &str, request_id: &str) -> v1::ProbeChange {
        let request = v1::DeleteProbeRequest {
            name: name.to_owned(),
            etag: "e1".to_owned(),
            request_id: request_id.to_owned(),
            validate_only: true,
            take_over: false,
        };
        v1::ProbeChange { change: Some(Asked::Delete(request)) }
    }

    fn to_create(definition: &str) -> v1::ProbeChange {
        let request = v1::CreateProbeRequest { definition: definition.to_owned(), ..Default::default() };
        v1::ProbeChange { change: Some(Asked::Create(request)) }
    }

    #[test]
    fn a_request_can_name_its_probe() {
        let named = |name: &str| {
            let name = name.to_owned();
            creation(v1::CreateProbeRequest { definition: "p f".to_owned(), name, ..Default::default() })
        };
        assert_eq!(named("mine/open").unwrap().name, Some("mine/open".parse().unwrap()));
        assert_eq!(named("").unwrap().name, None);
        for wrong in ["open", "mine/a b", "../open"] {
            let Error::Rpc(error) = Error::from(Status::from(named(wrong).unwrap_err())) else {
                panic!("no refusal")
            };
            assert_eq!((error.code, error.fields[0].field.as_str()), (Code::InvalidArgument, "name"));
        }
    }

    /// The field that a refusal is about.
    fn refused_field(changes: Vec<v1::ProbeChange>) -> String {
        let Error::Rpc(error) = Error::from(Status::from(all(changes, Unit::Each).unwrap_err())) else {
            panic!("no refusal")
        };
        assert_eq!(error.code, Code::InvalidArgument);
        error.fields[0].field.clone()
    }

    #[test]
    fn several_are_asked_like_one() {
        let update =
            v1::UpdateProbeRequest { name: "read".to_owned(), enabled: Some(true), ..Default::default() };
        let update = v1::ProbeChange { change: Some(Asked::Update(update)) };
        let several =
            all(vec![to_delete("kprobes/open", "id"), to_create("p:a f"), update], Unit::Each).unwrap();
        let [Change::Remove(remove), Change::Create(create), Change::Update(update)] = several.as_slice()
        else {
            panic!("{several:?}");
        };
        assert_eq!(
            (remove.name.as_str(), remove.etag.as_deref(), remove.validate_only),
            ("kprobes/open", Some("e1"), true)
        );
        assert!(remove.request.is_some() && create.request.is_none() && update.request.is_none());
        assert_eq!(create.definition.as_str(), "p:a f");
        assert_eq!((update.name.as_str(), update.enabled), ("read", Some(true)));
        assert_eq!(all(vec![to_delete("open", ""); MOST], Unit::Each).unwrap().len(), MOST);
        assert_eq!(refused_field(vec![to_delete("open", ""); MOST + 1]), "changes");
        assert_eq!(refused_field(vec![v1::ProbeChange { change: None }]), "changes");
        assert_eq!(refused_field(vec![to_delete("a", ""), to_delete("b", &"x".repeat(129))]), "request_id");
    }

    #[test]
    fn a_failure_says_what_a_status_would() {
        let error = || error::Error::no_probe("gone");
        let failed = failed(&error()).outcome;
        let Some(Outcome::Failed(failed)) = failed else { panic!("it failed") };
        let Error::Rpc(told) = Error::from(failed) else { panic!("no refusal") };
        let Error::Rpc(alone) = Error::from(Status::from(error())) else { panic!("no refusal") };
        assert_eq!((told.code, &told.message, &told.reason), (alone.code, &alone.message, &alone.reason));
        assert_eq!((told.code, &told.metadata), (Code::NotFound, &alone.metadata));
        let removed = Removed { name: "kprobes/open".parse().unwrap(), profile: None, note: "left alone" };
        let expected = v1::DeletedProbe {
            name: "kprobes/open".to_owned(),
            profile: None,
            note: "left alone".to_owned(),
        };
        assert_eq!(deleted(removed), expected);
    }

    #[test]
    fn an_acceptance_is_a_change_of_its_own() {
        let accept = v1::UpdateProbeRequest {
            name: "open".to_owned(),
            etag: "e1".to_owned(),
            request_id: "id".to_owned(),
            accept: true,
            ..Default::default()
        };
        assert!(update(accept.clone()).unwrap().accept);
        let more = v1::UpdateProbeRequest { filter: Some(String::new()), take_over: true, ..accept.clone() };
        let Error::Rpc(error) = Error::from(Status::from(update(more).unwrap_err())) else {
            panic!("no refusal")
        };
        assert_eq!(
            error.message,
            "`accept` is a change of its own: send `filter`, `take_over` in another request"
        );
        assert_eq!((error.code, error.fields[0].field.as_str()), (Code::InvalidArgument, "accept"));
        let change = || vec![v1::ProbeChange { change: Some(Asked::Update(accept.clone())) }];
        assert!(all(change(), Unit::Each).is_ok());
        assert!(all(change(), Unit::All).is_err());
    }
}
