//! Auditor: writes what requests that change nothing add to the audit log, and keeps the log within
//! its limit.
//!
//! Owns how equal entries are joined: a client that is refused a thousand times a second must neither
//! fill the disk nor push older entries out. Changes are not written here: their entries belong to
//! their transactions.

mod joined;

use std::time::Duration;

use futures_util::future::OptionFuture;
use kprobed_audit::Entry;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::joined::Joined;
use kprobed_control::auth::AuditInbox;
use kprobed_control::store::Store;

/// Entries that are written at the cost of one.
const AT_ONCE: usize = 256;

/// Time after which entries that could not be written are tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The task.
#[derive(Debug)]
pub struct Auditor {
    /// Where the entries are written.
    pub store: Store,
    /// Where they come from.
    pub inbox: AuditInbox,
    /// Most entries that the log keeps.
    pub most: u64,
}

impl Auditor {
    /// Writes entries until the daemon stops, then the last ones.
    pub async fn run(mut self, stopping: CancellationToken) {
        let mut joined = Joined::default();
        let mut unwritten = Vec::new();
        loop {
            let mut arrived = Vec::new();
            let due = if unwritten.is_empty() { joined.due() } else { Some(Instant::now() + AGAIN_AFTER) };
            let is_last = tokio::select! {
                count = self.inbox.entries.recv_many(&mut arrived, AT_ONCE) => count == 0,
                Some(()) = OptionFuture::from(due.map(sleep_until)) => false,
                () = stopping.cancelled() => true,
            };
            if is_last {
                while let Ok(entry) = self.inbox.entries.try_recv() {
                    arrived.push(entry);
                }
            }
            let now = Instant::now();
            unwritten.extend(arrived.into_iter().filter_map(|entry| joined.add(entry, now)));
            unwritten.extend(joined.take_over(now, is_last));
            unwritten.extend(joined::omitted(self.inbox.take_omitted()));
            self.write(&mut unwritten).await;
            if is_last {
                return;
            }
        }
    }

    async fn write(&self, entries: &mut Vec<Entry>) {
        if entries.is_empty() {
            return;
        }
        match self.store.add_audit(entries).await {
            Ok(()) => entries.clear(),
            Err(error) => {
                // As long as the disk fails no change is made either: these few are all that waits.
                tracing::warn!(%error, entries = entries.len(), "cannot write the audit log");
                if entries.len() > AT_ONCE {
                    let left_out = entries.split_off(AT_ONCE);
                    entries.extend(joined::omitted(left_out.iter().map(|entry| entry.times).sum()));
                }
                return;
            }
        }
        match self.store.rotate_audit(self.most).await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(deleted, "deleted the oldest entries of the audit log"),
            Err(error) => tracing::warn!(%error, "cannot delete the oldest entries of the audit log"),
        }
    }
}

#[cfg(test)]
mod tests;
