//! Recorded changes: requests as they are kept in the state and sent.
//!
//! Owns their form, and how a probe shows whether a request was carried out. Plain functions.

use kprobed_client::api::probe_change::Change as Asked;
use kprobed_client::api::{DeleteProbeRequest, Probe, ProbeChange};
use kprobed_document::{Document, changed, document_of};
use prost::Message as _;
use serde::{Deserialize, Serialize};

/// The longest request id that daemons take.
const ID_BYTES: usize = 128;

/// A change of one probe, and the request for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    pub(crate) probe: String,
    /// Chosen before the first attempt: the daemon carries out repeated requests once.
    pub(crate) request_id: String,
    /// The request: a `kprobed.v1.ProbeChange` in hexadecimal.
    pub(crate) request: String,
    /// The document of the probe before the change; absent if there was no probe.
    pub(crate) before: Option<String>,
    /// Its etag before the change.
    pub(crate) before_etag: Option<String>,
}

/// A probe as a change left it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Armed {
    pub(crate) uid: i64,
    pub(crate) etag: String,
}

/// Whether a request was carried out, as far as the probe shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChangeEvidence {
    /// The probe has not changed.
    NotDone,
    /// The probe is as the request makes it.
    Done(Armed),
    /// Another client has changed it.
    Foreign,
}

impl Change {
    /// Records a request under this id, with the probe before the change.
    pub(super) fn new(
        probe: &str,
        request_id: String,
        mut asked: Asked,
        before: Option<&Probe>,
    ) -> Result<Self, String> {
        match &mut asked {
            Asked::Create(request) => request.request_id.clone_from(&request_id),
            Asked::Update(request) => request.request_id.clone_from(&request_id),
            Asked::Delete(request) => request.request_id.clone_from(&request_id),
        }
        Ok(Self {
            probe: probe.to_owned(),
            request_id,
            request: hex::encode(ProbeChange { change: Some(asked) }.encode_to_vec()),
            before: before.map(written).transpose()?,
            before_etag: before.map(|probe| probe.etag.clone()),
        })
    }
}

/// The document of a probe as text.
fn written(probe: &Probe) -> Result<String, String> {
    kprobed_document::write(&[document_of(probe)])
        .map_err(|error| format!("`{}` cannot be written as a document: {error}", probe.name))
}

/// The request of a change, decoded.
pub(super) fn decoded(change: &Change) -> Result<Asked, String> {
    let bytes =
        hex::decode(&change.request).map_err(|error| format!("`request` is not hexadecimal: {error}"))?;
    let message = ProbeChange::decode(bytes.as_slice()).map_err(|error| format!("`request`: {error}"))?;
    let asked = message.change.ok_or("`request` asks for nothing")?;
    let id = match &asked {
        Asked::Create(request) => &request.request_id,
        Asked::Update(request) => &request.request_id,
        Asked::Delete(request) => &request.request_id,
    };
    if *id != change.request_id || id.is_empty() || id.len() > ID_BYTES {
        return Err(format!("`request` has the id `{id}`, and `request_id` is `{}`", change.request_id));
    }
    if let Some(before) = &change.before {
        document(before)?;
    }
    Ok(asked)
}

/// The one document of a text.
fn document(text: &str) -> Result<Document, String> {
    match kprobed_document::read(text) {
        Ok(mut entries) if entries.len() == 1 => Ok(entries.swap_remove(0).document),
        Ok(entries) => Err(format!("`before` has {} documents", entries.len())),
        Err(problems) => {
            let first = problems.first().map_or_else(String::new, |problem| problem.message.clone());
            Err(format!("`before`: {first}"))
        }
    }
}

/// Whether a change was carried out. `wanted` is the document of the probe after it; `armed` is the
/// host's answer, if there was one.
pub(super) fn trace(
    change: &Change,
    wanted: &Document,
    armed: Option<&Armed>,
    live: Option<&Probe>,
) -> ChangeEvidence {
    let Some(live) = live else {
        return if change.before.is_none() { ChangeEvidence::NotDone } else { ChangeEvidence::Foreign };
    };
    let is = Armed { uid: live.uid, etag: live.etag.clone() };
    if change.before_etag.as_deref() == Some(live.etag.as_str()) {
        return ChangeEvidence::NotDone;
    }
    match armed {
        Some(armed) if *armed == is => ChangeEvidence::Done(is),
        None if is_as_wanted(wanted, live) => ChangeEvidence::Done(is),
        Some(_) | None => ChangeEvidence::Foreign,
    }
}

/// Whether a probe is as its document says. The daemon can keep a definition as another text than
/// the document's; then the request has that text.
pub(super) fn is_as_wanted(wanted: &Document, live: &Probe) -> bool {
    wanted.definition == live.definition && changed(wanted, live, None).is_none()
}

/// The document of a probe after its change: with the definition that the request has.
pub(super) fn wanted_after(change: &Change, document: &Document) -> Result<Document, String> {
    let definition = match decoded(change)? {
        Asked::Create(_) | Asked::Delete(_) => return Ok(document.clone()),
        Asked::Update(request) => match (request.definition, &change.before) {
            (Some(text), _) => text,
            // The definition stays, with its own text.
            (None, Some(before)) => self::document(before)?.definition,
            (None, None) => return Ok(document.clone()),
        },
    };
    Ok(Document { definition, ..document.clone() })
}

/// The request that undoes a change of a probe. None: it is undone already.
pub(super) fn reversal(change: &Change, live: &Probe) -> Result<Option<Asked>, String> {
    let Some(before) = &change.before else {
        return Ok(Some(Asked::Delete(DeleteProbeRequest {
            name: live.name.clone(),
            etag: live.etag.clone(),
            ..DeleteProbeRequest::default()
        })));
    };
    let before = document(before)?;
    let definition = (before.definition != live.definition).then(|| before.definition.clone());
    Ok(changed(&before, live, definition).map(Asked::Update))
}

/// Whether a probe is back in its state before a change.
pub(super) fn is_back(change: &Change, live: Option<&Probe>) -> bool {
    match (&change.before, live) {
        (None, None) => true,
        (Some(before), Some(live)) => document(before).is_ok_and(|before| is_as_wanted(&before, live)),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_request_is_too_odd(request in "[0-9a-fg]{0,60}", before in proptest::option::of(".{0,40}")) {
            let change = Change {
                probe: "k/a".to_owned(),
                request_id: "x".to_owned(),
                request,
                before,
                before_etag: None,
            };
            decoded(&change).ok();
        }
    }
}
