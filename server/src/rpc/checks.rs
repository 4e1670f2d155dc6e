//! Streamed checks: many definitions judged in one stream.
//!
//! Owns the conversion of pieces of text into messages of verdicts. The client's pace drives it:
//! the daemon reads the next piece after it has sent the verdicts before it, so that it does not
//! read from a client that does not read either, and only one piece and one message wait. The
//! checks themselves run on a blocking thread, one message at a time, and no thread waits for a
//! client. Never judges a definition itself.

use std::sync::Arc;

use futures_util::{TryStreamExt as _, stream};
use kprobed_proto::v1;
use kprobed_rights::Principal;
use prost::Message as _;
use tonic::{Status, Streaming};

use super::events::Responses;
use super::verdict::{Viewer, answer, event_schema};
use kprobed_control::auth::Rights;
use kprobed_control::error::Error;
use kprobed_host::tracefs::Tracefs;
use kprobed_lang::definition::{CutDefinition, Cutter};
use kprobed_verdict::checker::{Checker, DefinitionText};
use kprobed_verdict::message::Detail;

/// Most verdicts in one message: small enough that the first of many arrive soon.
const MESSAGE_CHECKS: usize = 512;

/// A message is sent when it has so many bytes, which keeps it well below the 4 MiB that gRPC
/// clients take by default.
const MESSAGE_BYTES: usize = 256 << 10;

/// A stream of checks under way.
struct Checks {
    checker: Arc<Checker>,
    tracefs: Tracefs,
    rights: Arc<Rights>,
    principal: Arc<Principal>,
    requests: Streaming<v1::CheckProbesRequest>,
    viewer: Viewer,
    /// As requested in the first message.
    detail: Option<Detail>,
    /// Absent if the text has ended and all of it was judged.
    cutter: Option<Cutter>,
    ended: bool,
}

/// Answers a stream of checks, as fast as the roles of its principal allow.
pub(super) fn stream(
    (checker, tracefs): (Arc<Checker>, Tracefs),
    (rights, principal): (Arc<Rights>, Arc<Principal>),
    requests: Streaming<v1::CheckProbesRequest>,
    viewer: Viewer,
) -> Responses<v1::CheckProbesResponse> {
    let checks = Checks {
        checker,
        tracefs,
        rights,
        principal,
        requests,
        viewer,
        detail: None,
        cutter: Some(Cutter::default()),
        ended: false,
    };
    Box::pin(stream::try_unfold(checks, Checks::next).try_filter(|response| {
        let any = !response.checked.is_empty();
        async move { any }
    }))
}

impl Checks {
    /// The verdicts on the text received so far; none if all of it was judged and more is to come.
    async fn next(mut self) -> Result<Option<(v1::CheckProbesResponse, Self)>, Status> {
        let Some(cutter) = self.cutter.take() else { return Ok(None) };
        let (checker, tracefs, ended) = (Arc::clone(&self.checker), self.tracefs.clone(), self.ended);
        let (detail, viewer) = (self.detail.unwrap_or(Detail::Brief), self.viewer.clone());
        // Reads kernel memory, and the symbol table when modules have changed.
        let work = move || judge((&checker, &tracefs), cutter, ended, (detail, &viewer));
        let judged = tokio::task::spawn_blocking(work);
        let judged = judged.await.map_err(Error::internal).flatten();
        let (checked, cutter) = judged?;
        self.cutter = cutter;
        // A stream is slowed down, where a call would be refused.
        tokio::time::sleep(self.rights.pace(&self.principal, checked.len() as u64)).await;
        if checked.is_empty() && !self.ended {
            self.read().await?;
        }
        Ok(Some((v1::CheckProbesResponse { checked }, self)))
    }

    /// Waits for the next piece of text.
    async fn read(&mut self) -> Result<(), Status> {
        let Some(request) = self.requests.message().await? else {
            self.ended = true;
            return Ok(());
        };
        self.detail.get_or_insert(if request.listings { Detail::Listing } else { Detail::Brief });
        if let Some(cutter) = &mut self.cutter {
            cutter.push(&request.text);
        }
        Ok(())
    }
}

/// Judges as many definitions as fit a message. Returns the rest of the text, unless the text has
/// ended.
fn judge(
    (checker, tracefs): (&Checker, &Tracefs),
    mut cutter: Cutter,
    ended: bool,
    detail: (Detail, &Viewer),
) -> Result<(Vec<v1::CheckedDefinition>, Option<Cutter>), Error> {
    let mut facts = checker.recent_facts();
    let mut checked = Vec::new();
    let mut bytes = 0;
    let mut judge = |CutDefinition { line, offset, text }| {
        let definition = Arc::new(DefinitionText::new(text.as_str()));
        let mut check = answer(checker, &definition, None, &mut facts, detail)?;
        check.schema = event_schema(tracefs, checker, &check);
        Ok::<_, Error>(v1::CheckedDefinition { line, offset, definition: text, check: Some(check) })
    };
    while checked.len() < MESSAGE_CHECKS && bytes < MESSAGE_BYTES {
        let Some(cut) = cutter.next_complete() else {
            if !ended {
                return Ok((checked, Some(cutter)));
            }
            if let Some(last) = cutter.finish() {
                checked.push(judge(last)?);
            }
            return Ok((checked, None));
        };
        let one = judge(cut)?;
        bytes += one.encoded_len();
        checked.push(one);
    }
    Ok((checked, Some(cutter)))
}
