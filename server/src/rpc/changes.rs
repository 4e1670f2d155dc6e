//! Change requests: conversion of one or several changes of probes from messages.
//!
//! Owns the limit of a batch, and what makes a request safe to repeat. Never carries a change out.

use std::collections::HashMap;
use std::mem::take;
use std::sync::Arc;

use kprobed_proto::v1;
use kprobed_proto::v1::probe_change::Change as Asked;
use kprobed_proto::v1::probe_outcome::Outcome;

use super::probes::{non_empty, request_key};
use super::{messages, metadata};
use kprobed_control::auth::Caller;
use kprobed_control::error::Error;
use kprobed_control::status;
use kprobed_control::{Change, CreateRequest, RemoveRequest, Removed, Unit, UpdateRequest};
use kprobed_lang::model::ProbeName;
use kprobed_verdict::checker::DefinitionText;

/// Most changes in one request: each delays those of other requests for some milliseconds, and its
/// answer is up to some kilobytes long.
pub(super) const MOST: usize = 1000;

/// A request to create a probe.
pub(super) fn creation(caller: &Caller, mut request: v1::CreateProbeRequest) -> Result<CreateRequest, Error> {
    let metadata = metadata::of(&request)?;
    if request.stack && request.lease.is_none() {
        let message = "call stacks are recorded for a limited time: give the probe a lease";
        return Err(Error::bad_argument("stack", message));
    }
    let (id, validate_only) = (take(&mut request.request_id), take(&mut request.validate_only));
    let labels = take(&mut request.labels);
    let key = request_key(caller, &id, "create", &request, &labels)?;
    let labels = messages::labels(labels)?;
    Ok(CreateRequest {
        definition: Arc::new(DefinitionText::new(request.definition)),
        name: name(request.name)?,
        enabled: request.enabled,
        filter: request.filter,
        stack: request.stack,
        labels,
        metadata,
        request: key,
        validate_only,
    })
}

/// A name that a request gives a probe.
pub(super) fn name(text: String) -> Result<Option<ProbeName>, Error> {
    non_empty(text).map(|text| messages::probe_name(&text)).transpose()
}

/// A request to change a probe.
pub(super) fn update(caller: &Caller, mut request: v1::UpdateProbeRequest) -> Result<UpdateRequest, Error> {
    if request.accept {
        only_accepts(&request)?;
    }
    let metadata = metadata::change(&request)?;
    let (id, validate_only) = (take(&mut request.request_id), take(&mut request.validate_only));
    // Whoever repeats a request can have read the probe again in between.
    let etag = non_empty(take(&mut request.etag));
    let labels = take(&mut request.set_labels);
    let key = request_key(caller, &id, "update", &request, &labels)?;
    let labels = messages::label_change(labels, request.remove_labels)?;
    Ok(UpdateRequest {
        name: request.name,
        definition: request.definition.map(|text| Arc::new(DefinitionText::new(text))),
        enabled: request.enabled,
        filter: request.filter,
        labels,
        metadata,
        take_over: request.take_over,
        accept: request.accept,
        etag,
        request: key,
        validate_only,
    })
}

/// A request to create a probe that a file declares: judged by the same rules as those of clients.
pub(crate) fn declared_creation(request: v1::CreateProbeRequest, file: &str) -> Result<CreateRequest, Error> {
    let mut create = creation(&Caller::daemon(), request)?;
    create.metadata.declared_by = Some(Some(file.to_owned()));
    Ok(create)
}

/// A request to change a probe that a file declares.
pub(crate) fn declared_update(request: v1::UpdateProbeRequest, file: &str) -> Result<UpdateRequest, Error> {
    let mut update = update(&Caller::daemon(), request)?;
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
pub(super) fn deletion(caller: &Caller, mut request: v1::DeleteProbeRequest) -> Result<RemoveRequest, Error> {
    let (id, validate_only) = (take(&mut request.request_id), take(&mut request.validate_only));
    let (etag, take_over) = (non_empty(take(&mut request.etag)), take(&mut request.take_over));
    let key = request_key(caller, &id, "delete", &request, &HashMap::new())?;
    Ok(RemoveRequest { request: key, name: request.name, take_over, etag, validate_only })
}

/// Several requests.
pub(super) fn all(caller: &Caller, changes: Vec<v1::ProbeChange>, unit: Unit) -> Result<Vec<Change>, Error> {
    if changes.len() > MOST {
        let message = format!("one call makes at most {MOST} changes; {} are requested", changes.len());
        return Err(Error::bad_argument("changes", message));
    }
    let one = |change: v1::ProbeChange| match change.change {
        Some(Asked::Create(request)) => creation(caller, request).map(Change::Create),
        Some(Asked::Update(request)) if request.accept && unit == Unit::All => {
            Err(Error::bad_argument("changes", "an `accept` is not possible with `all_or_nothing`"))
        }
        Some(Asked::Update(request)) => update(caller, request).map(Change::Update),
        Some(Asked::Delete(request)) => deletion(caller, request).map(Change::Remove),
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
    use kprobed_client::Error as ClientError;
    use kprobed_rights::{Method, Principal};
    use tonic::{Code, Status};

    use super::*;
    use kprobed_control::auth::Operation;

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
            let request = v1::CreateProbeRequest { definition: "p f".to_owned(), name, ..Default::default() };
            creation(&Caller::daemon(), request)
        };
        assert_eq!(named("mine/open").unwrap().name, Some("mine/open".parse().unwrap()));
        assert_eq!(named("").unwrap().name, None);
        for wrong in ["open", "mine/a b", "../open"] {
            let ClientError::Rpc(error) = ClientError::from(Status::from(named(wrong).unwrap_err())) else {
                panic!("no refusal")
            };
            assert_eq!((error.code, error.fields[0].field.as_str()), (Code::InvalidArgument, "name"));
        }
    }

    fn several_of(changes: Vec<v1::ProbeChange>, unit: Unit) -> Result<Vec<Change>, Error> {
        all(&Caller::daemon(), changes, unit)
    }

    /// A message with the same labels is the same request, in whichever order a client sends them; and one with
    /// anything else in it is another one, whether or not the daemon has a name for that.
    #[test]
    fn a_request_is_the_bytes_of_its_message_and_belongs_to_who_sends_it() {
        let uid = |uid: &str| Principal::of_names(&[uid.to_owned()]).unwrap();
        let method = Method::named("CreateProbe").unwrap();
        let by = |who: &str| Caller::new(Arc::new(uid(who)), method, Operation::default());
        let request = |pairs: &[(&str, &str)]| v1::CreateProbeRequest {
            definition: "p:a/b f".to_owned(),
            request_id: "deploy-1".to_owned(),
            labels: pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..Default::default()
        };
        let key = |who: &str, request| creation(&by(who), request).unwrap().request.unwrap();
        let labels = [("team", "net"), ("tier", "one"), ("x", "")];
        let first = key("uid:1", request(&labels));
        assert_eq!((first.principal.as_str(), first.id.as_str()), ("uid:1", "deploy-1"));
        let hex = first.fingerprint.strip_prefix("create ").unwrap();
        assert!(hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hex}");
        for _ in 0..20 {
            let mut shuffled = labels;
            shuffled.reverse();
            assert_eq!(key("uid:1", request(&shuffled)), first);
        }
        // To check a repeat is to repeat it.
        assert_eq!(key("uid:1", v1::CreateProbeRequest { validate_only: true, ..request(&labels) }), first);
        let others = [
            request(&[("team", "net"), ("tier", "onex"), ("x", "")]),
            request(&[("team", "net"), ("tier", "one")]),
            v1::CreateProbeRequest { enabled: true, ..request(&labels) },
            v1::CreateProbeRequest { description: "x".to_owned(), ..request(&labels) },
            v1::CreateProbeRequest { name: "a/b".to_owned(), ..request(&labels) },
        ];
        for other in others {
            assert_ne!(key("uid:1", other.clone()).fingerprint, first.fingerprint, "{other:?}");
        }
        let same = key("uid:2", request(&labels));
        assert_eq!((same.principal.as_str(), &same.fingerprint), ("uid:2", &first.fingerprint));
    }

    /// The field that a refusal is about.
    fn refused_field(changes: Vec<v1::ProbeChange>) -> String {
        let ClientError::Rpc(error) =
            ClientError::from(Status::from(all(&Caller::daemon(), changes, Unit::Each).unwrap_err()))
        else {
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
            several_of(vec![to_delete("kprobes/open", "id"), to_create("p:a f"), update], Unit::Each)
                .unwrap();
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
        assert_eq!(several_of(vec![to_delete("open", ""); MOST], Unit::Each).unwrap().len(), MOST);
        assert_eq!(refused_field(vec![to_delete("open", ""); MOST + 1]), "changes");
        assert_eq!(refused_field(vec![v1::ProbeChange { change: None }]), "changes");
        assert_eq!(refused_field(vec![to_delete("a", ""), to_delete("b", &"x".repeat(129))]), "request_id");
    }

    #[test]
    fn a_failure_says_what_a_status_would() {
        let error = || Error::no_probe("gone");
        let failed = failed(&error()).outcome;
        let Some(Outcome::Failed(failed)) = failed else { panic!("it failed") };
        let ClientError::Rpc(told) = ClientError::from(failed) else { panic!("no refusal") };
        let ClientError::Rpc(alone) = ClientError::from(Status::from(error())) else { panic!("no refusal") };
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
        assert!(update(&Caller::daemon(), accept.clone()).unwrap().accept);
        let more = v1::UpdateProbeRequest { filter: Some(String::new()), take_over: true, ..accept.clone() };
        let ClientError::Rpc(error) =
            ClientError::from(Status::from(update(&Caller::daemon(), more).unwrap_err()))
        else {
            panic!("no refusal")
        };
        assert_eq!(
            error.message,
            "`accept` is a change of its own: send `filter`, `take_over` in another request"
        );
        assert_eq!((error.code, error.fields[0].field.as_str()), (Code::InvalidArgument, "accept"));
        let change = || vec![v1::ProbeChange { change: Some(Asked::Update(accept.clone())) }];
        assert!(several_of(change(), Unit::Each).is_ok());
        assert!(several_of(change(), Unit::All).is_err());
    }
}
