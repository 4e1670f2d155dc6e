//! History handle: starting, reading and ending the history, and its ledger terms.
//!
//! Owns the recorder's thread, and the marks by which a reader finds the exact end of the stored
//! log. Never writes an entry: the recorder does.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use thiserror::Error;
use tokio::sync::oneshot;

use super::recorder::{Counters, Recorder, wall_ns};
use super::{HistoryReader, HistoryStart};
use crate::pipeline::{Hub, Overflow, Pace, QueueLimits, Subscription, View};
use crate::spool::{BootId, Cursor, Limit, Recovery, Spool, SpoolError, SpoolOptions, SpoolStats};
use kprobed_lang::model::ProbeUid;

/// Bytes of events that may wait for the disk.
const QUEUE_BYTES: u64 = 16 << 20;

/// Why the history cannot be read.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// The spool failed.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The thread that writes the history has ended.
    #[error("the history is not written any more: the daemon stops, or its log says why")]
    Ended,
    /// The task that reads the history has panicked.
    #[error("reading the history failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Ledger terms of the history: read = stored + `in_memory` + `not_stored` + events that the
/// recorder has not taken yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryCounts {
    /// Events that were read while the daemon kept a history.
    pub read: u64,
    /// Events that the spool has written to its files.
    pub stored: u64,
    /// Events that the spool has taken, and not written yet.
    pub in_memory: u64,
    /// Events that the spool refused, or that the recorder's queue dropped.
    pub not_stored: u64,
    /// Events of any run that have expired since the daemon was started.
    pub expired: u64,
    /// Statistics of the spool.
    pub stats: SpoolStats,
}

/// The history of a host's events.
#[derive(Debug)]
pub struct History {
    spool: Spool,
    recorder: Arc<Subscription>,
    counters: Arc<Counters>,
    /// Events that had expired before this run.
    expired_before: u64,
    highest_uid: ProbeUid,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl History {
    /// Opens the spool, and writes everything that is published from now on into it. Call it before
    /// the first event is published.
    ///
    /// # Errors
    /// See [`SpoolError`]; [`SpoolError::Io`] also if the system refuses a thread.
    pub fn start(options: SpoolOptions, boot_id: BootId, hub: &Arc<Hub>) -> Result<Self, SpoolError> {
        let directory = options.directory.clone();
        let (spool, writer, recovery) = Spool::open(options, boot_id, wall_ns())?;
        tell(&recovery);
        let highest_uid = ProbeUid(i64::try_from(spool.highest_owner()).unwrap_or(i64::MAX));
        let view = View {
            pace: Pace::Throughput,
            limits: QueueLimits { events: u64::MAX, bytes: QUEUE_BYTES, overflow: Overflow::DropNewest },
            ..View::default()
        };
        let recorder = Arc::new(hub.subscribe_own(view));
        let counters = Arc::<Counters>::default();
        let writing = Recorder {
            subscription: Arc::clone(&recorder),
            spool: spool.clone(),
            writer,
            counters: Arc::clone(&counters),
            known: HashMap::new(),
            sequence: recorder.attach(),
            is_failing: false,
        };
        let runtime = tokio::runtime::Handle::current();
        let thread = Builder::new()
            .name("kprobed-spool".to_owned())
            .spawn(move || runtime.block_on(writing.run()))
            .map_err(|source| SpoolError::Io {
                action: "start the thread that writes to",
                path: directory,
                source,
            })?;
        let expired_before = spool.stats().expired_events;
        let thread = Mutex::new(Some(thread));
        Ok(Self { spool, recorder, counters, expired_before, highest_uid, thread })
    }

    /// The highest uid of a probe that has events of an earlier run here; 0 if none has.
    pub const fn highest_uid(&self) -> ProbeUid {
        self.highest_uid
    }

    /// This run of the daemon: its number is larger than that of any run before.
    pub fn epoch(&self) -> u64 {
        self.spool.stats().end.epoch
    }

    /// Waits until everything that was published until now is in the spool, or was given up.
    ///
    /// # Errors
    /// [`HistoryError::Ended`].
    pub async fn settle(&self) -> Result<Limit, HistoryError> {
        let (mark, limit) = oneshot::channel();
        self.recorder.mark(mark);
        limit.await.map_err(|_ended| HistoryError::Ended)
    }

    /// Attaches a subscription. Returns the log position at which it begins, and the limit of the
    /// spool just before that.
    ///
    /// # Errors
    /// [`HistoryError::Ended`].
    pub async fn attach(&self, subscription: &Subscription) -> Result<(u64, Limit), HistoryError> {
        let (mark, limit) = oneshot::channel();
        let sequence = subscription.attach_with_mark(&self.recorder, mark);
        Ok((sequence, limit.await.map_err(|_ended| HistoryError::Ended)?))
    }

    /// A reader for a subscription, from a position up to everything stored now.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub async fn read(
        &self,
        start: HistoryStart,
        subscription: Arc<Subscription>,
    ) -> Result<HistoryReader, HistoryError> {
        self.settle().await?;
        let spool = self.spool.clone();
        let opened = tokio::task::spawn_blocking(move || HistoryReader::open(&spool, start, subscription));
        Ok(opened.await??)
    }

    /// Ledger terms of the history.
    pub fn counts(&self) -> HistoryCounts {
        let (queue, stats) = (self.recorder.counts(), self.spool.stats());
        let in_memory = stats.unwritten_events;
        HistoryCounts {
            read: queue.read,
            stored: self.counters.stored.load(Ordering::Relaxed).saturating_sub(in_memory),
            in_memory,
            not_stored: self.counters.refused.load(Ordering::Relaxed) + queue.dropped,
            expired: stats.expired_events.saturating_sub(self.expired_before),
            stats,
        }
    }

    /// The log position after everything that is stored.
    pub fn end(&self) -> Cursor {
        self.spool.stats().end
    }

    /// Waits until everything is written, once the hub is closed.
    pub async fn stop(&self) {
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let joined: Result<Result<(), _>, _> = tokio::task::spawn_blocking(move || thread.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            tracing::error!("the thread that writes the history has panicked");
        }
    }
}

/// Logs what the recovery found and repaired.
fn tell(recovery: &Recovery) {
    tracing::info!(segments = recovery.segments, events = recovery.events, "the history is open");
    for reason in &recovery.reasons {
        tracing::warn!(reason, cut_bytes = recovery.cut_bytes, "a part of the history was damaged");
    }
}
