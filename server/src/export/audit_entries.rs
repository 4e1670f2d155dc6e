//! Entries of the audit log on their way to a receiver: the cursor of one exporter over the log.
//!
//! Owns which entries are next, and that none is skipped in silence: those that were deleted before the
//! receiver had them are counted. The cursor advances when the receiver has acknowledged them. Never
//! writes to the log, and never makes the text of an entry anew.

use std::sync::Arc;
use std::time::Duration;

use kprobed_audit::{ExportedEntry, Head};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Chunk;
use super::status::Shared;
use crate::store::{AuditPage, Store, StoreError};

/// Entries that are read at once.
const PAGE: u32 = 256;

/// Bytes of records in a chunk, if it has more than one: texts of clients make some long.
const RECORD_BYTES: usize = 512 << 10;

/// Time after which the log is read again if it could not be read.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The cursor.
#[derive(Debug)]
pub(super) struct AuditEntries {
    store: Store,
    shared: Arc<Shared>,
    log: watch::Receiver<Option<Head>>,
    /// The receiver has everything up to this entry. Absent until it is known.
    place: Option<Head>,
    /// When the log is read again, after a failure.
    retry: Option<Instant>,
}

impl AuditEntries {
    pub(super) fn new(store: Store, shared: Arc<Shared>) -> Self {
        let log = store.durable_audit_head();
        Self { store, shared, log, place: None, retry: None }
    }

    /// Goes on where the receiver itself is; if it does not say that, after what it has acknowledged.
    ///
    /// # Errors
    /// Why that cannot be read.
    pub(super) async fn resume(&mut self, own: Option<Head>) -> Result<(), StoreError> {
        let known = match own.or(self.place) {
            Some(known) => known,
            None => self.store.exporter_audit(self.shared.name()).await?.unwrap_or_default(),
        };
        match self.place.filter(|place| place.sequence < known.sequence) {
            // It has entries whose acknowledgement was lost.
            Some(place) => self.shared.audit_sent(known, known.sequence - place.sequence, 0),
            None => self.shared.audit_at(known),
        }
        self.place = Some(known);
        Ok(())
    }

    /// Waits until there are entries that the receiver does not have.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn due(&mut self) {
        let Some(place) = self.place else { return std::future::pending().await };
        if let Some(retry) = self.retry {
            tokio::time::sleep_until(retry).await;
        }
        if self.log.wait_for(|head| head.is_some_and(|head| head != place)).await.is_err() {
            // The log is closed: the daemon stops.
            std::future::pending::<()>().await;
        }
    }

    /// Puts the next entries into a chunk, as many as fit. A log that cannot be read keeps no event
    /// back.
    pub(super) async fn put(&mut self, chunk: &mut Chunk) {
        let Some(place) = self.place else { return };
        chunk.audit_sent = Some(place);
        let is_behind = self.log.borrow().is_some_and(|head| head != place);
        if !is_behind || self.retry.is_some_and(|retry| Instant::now() < retry) {
            return;
        }
        match self.next_page(place).await {
            Ok(page) => {
                self.retry = None;
                self.shared.audit_read(None);
                chunk.audit_entries = entries(page);
                chunk.audit_sent = chunk.audit_entries.last().map(ExportedEntry::head).or(self.place);
            }
            Err(error) => {
                self.retry = Some(Instant::now() + AGAIN_AFTER);
                self.shared.audit_read(Some(error.to_string()));
            }
        }
    }

    /// The entries that follow the cursor. It moves to the oldest entry that is kept if those before it
    /// were deleted, and to the beginning if it is of another log.
    async fn next_page(&mut self, place: Head) -> Result<AuditPage, StoreError> {
        let (mut place, mut page) = (place, self.store.audit_page(place.sequence, PAGE).await?);
        if place != page.after && place.sequence >= page.after.sequence {
            tracing::warn!(
                exporter = self.shared.name(),
                receiver_has = %place,
                "the receiver has another audit log: sending this one from its beginning"
            );
            place = Head::default();
            page = self.store.audit_page(place.sequence, PAGE).await?;
        }
        let expired = page.after.sequence.saturating_sub(place.sequence);
        if expired > 0 {
            tracing::warn!(
                exporter = self.shared.name(),
                expired,
                "entries of the audit log were deleted before the receiver had them"
            );
            self.shared.audit_expired(expired);
        }
        if self.place != Some(page.after) {
            self.place = Some(page.after);
            self.shared.audit_at(page.after);
        }
        Ok(page)
    }

    /// The receiver has acknowledged a chunk, and refused so many of its entries finally. Returns the
    /// cursor if it has moved.
    pub(super) fn sent(&mut self, chunk: &Chunk, dropped: u64) -> Option<Head> {
        let last = chunk.audit_entries.last()?.head();
        self.place = Some(last);
        let count = chunk.audit_entries.len() as u64;
        self.shared.audit_sent(last, count, dropped.min(count));
        Some(last)
    }
}

/// The entries of a page that go into one chunk.
fn entries(page: AuditPage) -> Vec<ExportedEntry> {
    let (mut before, mut bytes) = (page.after.digest, 0);
    let mut entries = Vec::new();
    for stored in page.entries {
        bytes += stored.record.len();
        if bytes > RECORD_BYTES && !entries.is_empty() {
            break;
        }
        let (sequence, digest, record) = (stored.sequence, stored.digest, stored.record);
        entries.push(ExportedEntry { sequence, before, digest, record });
        before = digest;
    }
    entries
}
