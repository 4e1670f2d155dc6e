//! Requests: made once, written down, and sent as they were written.
//!
//! Owns their form in the state, what cannot be put back, and how a probe shows whether a request was carried out. Plain functions.

use kprobed_client::api::probe_change::Change as Asked;
use kprobed_client::api::{DeleteProbeRequest, Probe, ProbeChange};
use kprobed_document::{Document, changed, document_of, is_as_described};
use prost::Message as _;

use super::state::{Armed, Change, State};
use super::world::Planned;

/// The longest request id that daemons take.
const ID_BYTES: usize = 128;

/// What became of a request, as far as a probe shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trace {
    /// The probe is as it was before.
    NotDone,
    /// The probe is as the request makes it.
    Done(Armed),
    /// Someone else has changed it.
    Foreign,
}

impl State {
    /// Writes a request down under an id of its own.
    pub(super) fn intend(
        &mut self,
        probe: &str,
        mut asked: Asked,
        before: Option<&Probe>,
    ) -> Result<Change, String> {
        let request_id = format!("{}-{}", self.id, self.next_request);
        self.next_request = self.next_request.saturating_add(1);
        match &mut asked {
            Asked::Create(request) => request.request_id.clone_from(&request_id),
            Asked::Update(request) => request.request_id.clone_from(&request_id),
            Asked::Delete(request) => request.request_id.clone_from(&request_id),
        }
        Ok(Change {
            probe: probe.to_owned(),
            request_id,
            request: hex(&ProbeChange { change: Some(asked) }.encode_to_vec()),
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

/// Why a probe could not be put back after this change. None: it could.
pub(super) fn obstacle(planned: &Planned) -> Option<String> {
    let live = planned.live.as_ref()?;
    planned.change.as_ref()?;
    let holder = live.lease.as_ref().map_or("", |lease| lease.holder.as_str());
    (!holder.is_empty()).then(|| {
        format!(
            "`{}` lives as long as a client holds it, and could not be put back: end that client, or use another name",
            planned.name
        )
    })
}

/// The request of a change, as it is sent.
pub(super) fn decoded(change: &Change) -> Result<Asked, String> {
    let bytes = unhex(&change.request).ok_or("`request` is not hexadecimal")?;
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

/// Finds out whether a change was carried out. `wanted` is the document of the probe after it; `armed` is what the host said, if it did.
pub(super) fn trace(
    change: &Change,
    wanted: &Document,
    armed: Option<&Armed>,
    live: Option<&Probe>,
) -> Trace {
    let Some(live) = live else {
        return if change.before.is_none() { Trace::NotDone } else { Trace::Foreign };
    };
    let is = Armed { uid: live.uid, etag: live.etag.clone() };
    if change.before_etag.as_deref() == Some(live.etag.as_str()) {
        return Trace::NotDone;
    }
    match armed {
        Some(armed) if *armed == is => Trace::Done(is),
        None if is_as_wanted(wanted, live) => Trace::Done(is),
        Some(_) | None => Trace::Foreign,
    }
}

/// Whether a probe is as its document says. A definition can be kept as another text than that of the document: then the request has that text.
pub(super) fn is_as_wanted(wanted: &Document, live: &Probe) -> bool {
    is_as_described(wanted, live) && changed(wanted, live, None).is_none()
}

/// The document of a probe after its change: with the definition that the request has.
pub(super) fn wanted_after(change: &Change, document: &Document) -> Result<Document, String> {
    let definition = match decoded(change)? {
        Asked::Create(_) | Asked::Delete(_) => return Ok(document.clone()),
        Asked::Update(request) => match (request.definition, &change.before) {
            (Some(text), _) => kprobed_document::Definition::Text(text),
            // The definition stays, with its own words.
            (None, Some(before)) => self::document(before)?.definition,
            (None, None) => return Ok(document.clone()),
        },
    };
    Ok(Document { definition, ..document.clone() })
}

/// What puts a probe back that a change has made to what it is now. None: it is back already.
pub(super) fn reversal(change: &Change, live: &Probe) -> Result<Option<Asked>, String> {
    let Some(before) = &change.before else {
        return Ok(Some(Asked::Delete(DeleteProbeRequest {
            name: live.name.clone(),
            etag: live.etag.clone(),
            ..DeleteProbeRequest::default()
        })));
    };
    let before = document(before)?;
    let text = match &before.definition {
        kprobed_document::Definition::Text(text) => text.clone(),
        kprobed_document::Definition::Fields(_) => {
            return Err("`before` must have its definition as text".to_owned());
        }
    };
    let definition = (text != live.definition).then_some(text);
    Ok(changed(&before, live, definition).map(Asked::Update))
}

/// Whether a probe is as it was before a change.
pub(super) fn is_back(change: &Change, live: Option<&Probe>) -> bool {
    match (&change.before, live) {
        (None, None) => true,
        (Some(before), Some(live)) => document(before).is_ok_and(|before| is_as_wanted(&before, live)),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 0xf])
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hexadecimal_is_read_back(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(unhex(&hex(&bytes)), Some(bytes));
        }

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
