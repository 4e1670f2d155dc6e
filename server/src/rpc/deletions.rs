//! Deletions of probes, alone and several at once.

use kprobed_proto::v1;
use kprobed_proto::v1::probe_deletion::Outcome;
use tonic::Status;

use super::probes::{non_empty, request_key};
use super::{convert, status};
use crate::control::{ControlError, RemoveRequest, Removed};

/// Deletions in one request: each holds up the other changes for some tens of milliseconds.
const MOST: usize = 64;

/// What the control thread is to do for a request.
pub(super) fn asked(request: v1::DeleteProbeRequest) -> Result<RemoveRequest, Status> {
    Ok(RemoveRequest {
        request: request_key(request.request_id, format!("delete {:?}", request.name))?,
        name: request.name,
        etag: non_empty(request.etag),
        validate_only: request.validate_only,
    })
}

/// The same for several.
pub(super) fn all_asked(requests: Vec<v1::DeleteProbeRequest>) -> Result<Vec<RemoveRequest>, Status> {
    if requests.len() > MOST {
        let message = format!("one call deletes at most {MOST} probes; {} are named", requests.len());
        return Err(status::invalid("deletions", &message));
    }
    requests.into_iter().map(asked).collect()
}

/// What became of one of several.
pub(super) fn outcome(outcome: Result<Removed, ControlError>) -> v1::ProbeDeletion {
    let outcome = match outcome {
        Ok(Removed { name, profile, note }) => Outcome::Deleted(v1::DeletedProbe {
            name: name.to_string(),
            profile: profile.as_ref().map(convert::profile),
            note: note.to_owned(),
        }),
        Err(error) => Outcome::Failed(status::of_one(&Status::from(error))),
    };
    v1::ProbeDeletion { outcome: Some(outcome) }
}

#[cfg(test)]
mod tests {
    use kprobed_client::Error;
    use tonic::Code;

    use super::*;

    fn deletion(name: &str, request_id: &str) -> v1::DeleteProbeRequest {
        v1::DeleteProbeRequest {
            name: name.to_owned(),
            request_id: request_id.to_owned(),
            ..Default::default()
        }
    }

    /// The field that a refusal is about.
    fn refused_field(requests: Vec<v1::DeleteProbeRequest>) -> String {
        let Error::Rpc(error) = Error::from(all_asked(requests).unwrap_err()) else { panic!("no refusal") };
        assert_eq!(error.code, Code::InvalidArgument);
        error.fields[0].field.clone()
    }

    #[test]
    fn several_are_asked_like_one() {
        let given = v1::DeleteProbeRequest {
            etag: "e1".to_owned(),
            validate_only: true,
            ..deletion("kprobes/open", "id")
        };
        let several = all_asked(vec![given.clone(), deletion("read", "")]).unwrap();
        let names: Vec<_> = several.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["kprobes/open", "read"]);
        assert_eq!((several[0].etag.as_deref(), several[0].validate_only), (Some("e1"), true));
        assert_eq!(several[0].request, asked(given).unwrap().request);
        assert!(several[0].request.is_some() && several[1].request.is_none() && several[1].etag.is_none());
        assert_eq!(all_asked(vec![deletion("open", ""); MOST]).unwrap().len(), MOST);
        assert_eq!(refused_field(vec![deletion("open", ""); MOST + 1]), "deletions");
        assert_eq!(refused_field(vec![deletion("a", ""), deletion("b", &"x".repeat(129))]), "request_id");
    }

    #[test]
    fn a_failure_says_what_a_status_would() {
        let error = || ControlError::NotFound { name: "gone".to_owned(), foreign: false };
        let Some(Outcome::Failed(failed)) = outcome(Err(error())).outcome else { panic!("it failed") };
        let Error::Rpc(told) = Error::from(failed) else { panic!("no refusal") };
        let Error::Rpc(alone) = Error::from(Status::from(error())) else { panic!("no refusal") };
        assert_eq!((told.code, &told.message, &told.reason), (alone.code, &alone.message, &alone.reason));
        assert_eq!((told.code, &told.metadata), (Code::NotFound, &alone.metadata));
        let removed = Removed { name: "kprobes/open".parse().unwrap(), profile: None, note: "left alone" };
        let deleted = outcome(Ok(removed)).outcome;
        let expected = v1::DeletedProbe {
            name: "kprobes/open".to_owned(),
            profile: None,
            note: "left alone".to_owned(),
        };
        assert_eq!(deleted, Some(Outcome::Deleted(expected)));
    }
}
