//! Queue of audit entries about requests that change nothing: refusals, and reads.
//!
//! Owns its bound. A request never waits for the audit log: what finds the queue full is counted, and
//! the log says how many there were. Changes do not go through it: see [`crate::store::Store::begin`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kprobed_audit::Entry;
use tokio::sync::mpsc;

/// Entries that may wait to be written.
const QUEUE: usize = 1024;

/// The side of requests.
#[derive(Clone, Debug)]
pub struct AuditQueue {
    entries: mpsc::Sender<Entry>,
    omitted: Arc<AtomicU64>,
}

/// The side of the log.
#[derive(Debug)]
pub struct AuditInbox {
    /// The entries, in their order.
    pub entries: mpsc::Receiver<Entry>,
    omitted: Arc<AtomicU64>,
}

impl AuditQueue {
    /// A queue, and its end.
    pub fn new() -> (Self, AuditInbox) {
        let (sender, entries) = mpsc::channel(QUEUE);
        let omitted = Arc::default();
        (Self { entries: sender, omitted: Arc::clone(&omitted) }, AuditInbox { entries, omitted })
    }

    /// Adds an entry. Its texts are cut before it waits: clients write some of them.
    pub fn note(&self, entry: Entry) {
        if self.entries.try_send(entry.bounded()).is_err() {
            self.omitted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl AuditInbox {
    /// How many entries found no place since the last call.
    pub fn take_omitted(&self) -> u64 {
        self.omitted.swap(0, Ordering::Relaxed)
    }
}
