//! Fake daemon with a history that cuts every connection.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use kprobed_client::api::event_service_server::{EventService, EventServiceServer};
use kprobed_client::api::stream_events_response::Message;
use kprobed_client::api::stream_start::Start;
use kprobed_client::api::*;
use tempfile::TempDir;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status};

use super::services::{Answer, BoxedStream};
use super::{answers, serve};

/// Events in an entry of the log: what `answers::batch` has.
const ENTRY_EVENTS: u64 = 3;

/// A log of batches. The first connection is cut after one message, the next after two, and so on.
pub(crate) struct History {
    _directory: TempDir,
    socket: PathBuf,
}

struct Service {
    entries: u64,
    /// Entries that have expired.
    expired: u64,
    connections: AtomicUsize,
}

impl History {
    /// Starts a fake with so many entries in its log, of which the first have expired. It lives in
    /// a thread until the process ends.
    pub(crate) fn start(entries: u64, expired: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("kprobed.sock");
        let service = Service { entries, expired, connections: AtomicUsize::new(0) };
        let server = tonic::transport::Server::builder().add_service(EventServiceServer::new(service));
        serve(&socket, server);
        Self { _directory: directory, socket }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Service {
    /// The messages for a client that has seen everything before this event. They begin one entry
    /// too early.
    fn messages(&self, seen: u64) -> Vec<Message> {
        let oldest = self.expired * ENTRY_EVENTS;
        let first = seen.saturating_sub(ENTRY_EVENTS).max(oldest);
        let mut messages = vec![
            Message::Started(answers::started()),
            Message::Epoch(answers::epoch(first)),
            Message::Schema(answers::schema()),
        ];
        if seen < oldest {
            messages.push(Message::Loss(answers::expired(oldest - seen)));
        }
        let entries = first / ENTRY_EVENTS..self.entries;
        messages.extend(entries.map(|entry| Message::Batch(answers::batch(entry * ENTRY_EVENTS))));
        messages.push(Message::CaughtUp(answers::cursor(self.entries * ENTRY_EVENTS)));
        messages
    }
}

#[tonic::async_trait]
impl EventService for Service {
    type StreamEventsStream = BoxedStream<StreamEventsResponse>;

    async fn stream_events(&self, request: Request<StreamEventsRequest>) -> Answer<Self::StreamEventsStream> {
        let seen = match request.into_inner().start.and_then(|start| start.start) {
            Some(Start::Cursor(cursor)) if (cursor.boot_id.as_str(), cursor.epoch) == ("b0", 2) => {
                cursor.sequence
            }
            Some(Start::Oldest(true)) => self.expired * ENTRY_EVENTS,
            other => return Err(Status::invalid_argument(format!("{other:?}"))),
        };
        let connection = self.connections.fetch_add(1, Ordering::Relaxed);
        // Before some of the answers.
        if connection % 3 == 2 {
            return Err(Status::unavailable("starting"));
        }
        let messages = self.messages(seen);
        let cut = connection + 1;
        let is_cut = cut < messages.len();
        let sent = tokio_stream::iter(messages.into_iter().take(cut))
            .map(|message| Ok(StreamEventsResponse { message: Some(message) }));
        let end = is_cut.then(|| Err(Status::unavailable("cut")));
        // Some ends are in order.
        let end = end.filter(|_| connection.is_multiple_of(2));
        Ok(Response::new(Box::pin(sent.chain(tokio_stream::iter(end)))))
    }

    async fn get_ledger(&self, _: Request<GetLedgerRequest>) -> Answer<GetLedgerResponse> {
        Err(Status::unimplemented("ledger"))
    }
}
