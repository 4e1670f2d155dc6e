//! `AuditService`: the audit log over gRPC.
//!
//! Owns the messages, and which entries a client asked for. Never writes an entry, and never makes the
//! text of one anew: its digest is over the stored one.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, SystemTime};

use futures_util::stream;
use kprobed_audit::{Action, Head, Record};
use kprobed_proto::v1;
use kprobed_proto::v1::audit_service_server::AuditService;
use prost::Message as _;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::events::Responses;
use super::messages::known;
use super::probes::non_empty;
use kprobed_control::error::Error;
use kprobed_control::store::{AuditPage, Store, StoredEntry};
use kprobed_lang::model::Glob;

/// Entries that are read at a time.
const PAGE: u32 = 256;

/// Bytes of entries after which they are sent in another message: texts of clients make some long, and
/// clients accept messages of 4 MiB.
const MESSAGE_BYTES: usize = 256 << 10;

/// The service.
#[derive(Debug)]
pub(super) struct AuditServer {
    /// Has the log.
    pub(super) store: Store,
}

/// Which entries to send.
struct Filter {
    principals: HashSet<String>,
    actions: HashSet<v1::AuditAction>,
    probe: Option<Glob>,
    since_ns: u64,
}

impl Filter {
    fn of(message: v1::AuditFilter) -> Result<Self, Error> {
        let actions = message.actions.into_iter();
        let actions = actions.map(|action| known(v1::AuditAction::try_from(action), "filter.actions"));
        let since = message.since.unwrap_or_default();
        let seconds = u64::try_from(since.seconds).unwrap_or_default();
        let nanos = u64::try_from(since.nanos).unwrap_or_default();
        Ok(Self {
            principals: message.principals.into_iter().collect(),
            actions: actions.collect::<Result<_, _>>()?,
            probe: non_empty(message.probe_glob).map(Glob::new),
            since_ns: seconds.saturating_mul(1_000_000_000).saturating_add(nanos),
        })
    }

    fn takes(&self, record: &Record) -> bool {
        let entry = &record.entry;
        let is_about = |glob: &Glob| entry.probe.split(',').any(|name| glob.matches(name));
        record.time_unix_nano >= self.since_ns
            && (self.principals.is_empty() || self.principals.contains(&entry.principal))
            && (self.actions.is_empty() || self.actions.contains(&action(entry.action)))
            && self.probe.as_ref().is_none_or(is_about)
    }
}

/// A call under way.
struct Reading {
    store: Store,
    changes: watch::Receiver<()>,
    after: u64,
    follow: bool,
    filter: Filter,
    ready: VecDeque<v1::ReadAuditResponse>,
}

impl Reading {
    /// In a task of its own: a client that stops reading stops this stream at any point, and must not
    /// stop it while it has the connection to the database.
    async fn page(&self) -> Result<AuditPage, Error> {
        let (store, after) = (self.store.clone(), self.after);
        let read = Handle::current().spawn(async move { store.audit_page(after, PAGE).await });
        Ok(read.await.map_err(Error::internal)??)
    }

    async fn next(&mut self) -> Result<Option<v1::ReadAuditResponse>, Error> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Ok(Some(ready));
            }
            let page = self.page().await?;
            let Some(last) = page.entries.last() else {
                // The sender is a part of the store.
                if !self.follow || self.changes.changed().await.is_err() {
                    return Ok(None);
                }
                continue;
            };
            self.after = last.sequence;
            let (mut entries, mut bytes) = (Vec::new(), 0);
            for stored in page.entries {
                let record = Record::parse(&stored.record).map_err(|error| {
                    Error::internal(format!("entry {} of the audit log: {error}", stored.sequence))
                })?;
                if self.filter.takes(&record) {
                    let entry = message(stored, record);
                    bytes += entry.encoded_len();
                    entries.push(entry);
                }
                if bytes >= MESSAGE_BYTES {
                    bytes = 0;
                    self.ready.push_back(part(std::mem::take(&mut entries)));
                }
            }
            if !entries.is_empty() {
                self.ready.push_back(part(entries));
            }
        }
    }
}

#[tonic::async_trait]
impl AuditService for AuditServer {
    type ReadAuditStream = Responses<v1::ReadAuditResponse>;

    async fn read_audit(
        &self,
        request: Request<v1::ReadAuditRequest>,
    ) -> Result<Response<Self::ReadAuditStream>, Status> {
        let v1::ReadAuditRequest { after, follow, filter } = request.into_inner();
        let filter = Filter::of(filter.unwrap_or_default())?;
        let (store, changes) = (self.store.clone(), self.store.audit_changes());
        let mut reading = Reading { store, changes, after, follow, filter, ready: VecDeque::new() };
        let begin = head(reading.page().await?.after);
        reading.ready.push_back(v1::ReadAuditResponse { after: Some(begin), entries: Vec::new() });
        let stream = stream::try_unfold(reading, async |mut reading| {
            Ok::<_, Status>(reading.next().await?.map(|message| (message, reading)))
        });
        Ok(Response::new(Box::pin(stream) as Self::ReadAuditStream))
    }
}

const fn part(entries: Vec<v1::AuditEntry>) -> v1::ReadAuditResponse {
    v1::ReadAuditResponse { after: None, entries }
}

/// The end of the chain, as a message.
pub(super) fn head(head: Head) -> v1::AuditHead {
    v1::AuditHead { sequence: head.sequence, digest: head.digest.0.to_vec() }
}

const fn action(action: Action) -> v1::AuditAction {
    match action {
        Action::Changed => v1::AuditAction::Changed,
        Action::Failed => v1::AuditAction::Failed,
        Action::Refused => v1::AuditAction::Refused,
        Action::Read => v1::AuditAction::Read,
        Action::Ended => v1::AuditAction::Ended,
        Action::Rotated => v1::AuditAction::Rotated,
    }
}

fn message(stored: StoredEntry, record: Record) -> v1::AuditEntry {
    let entry = record.entry;
    v1::AuditEntry {
        sequence: stored.sequence,
        digest: stored.digest.0.to_vec(),
        record: stored.record,
        time: Some((SystemTime::UNIX_EPOCH + Duration::from_nanos(record.time_unix_nano)).into()),
        action: action(entry.action).into(),
        principal: entry.principal,
        method: entry.method,
        change: entry.change,
        rule: entry.rule,
        request_id: entry.request,
        operation: entry.operation,
        probe: entry.probe,
        definition: entry.definition,
        enabled: entry.enabled,
        filter: entry.filter,
        reason: entry.reason,
        times: entry.times,
    }
}

#[cfg(test)]
mod tests;
