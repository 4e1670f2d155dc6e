//! History handle: starting, reading and ending the history, and its ledger terms.
//!
//! Owns the recorder's thread, and the marks by which a reader finds the exact end of the stored
//! log. Never writes an entry: the recorder does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::counters::Counters;
use super::recorder::{Marks, Recorder, wall_ns};
use super::{HistoryCounts, HistoryError, HistoryReader, HistoryStart};
use crate::pipeline::{Hub, Overflow, Pace, QueueLimits, Subscription, View};
use crate::spool::{BootId, Cursor, Limit, Recovery, Spool, SpoolError, SpoolOptions};
use kprobed_lang::model::ProbeUid;

/// Bytes of events that may wait for the disk.
const QUEUE_BYTES: u64 = 16 << 20;

/// The history of a host's events.
#[derive(Debug)]
pub struct History {
    spool: Spool,
    recorder: Arc<Subscription>,
    counters: Arc<Counters>,
    marks: Arc<Marks>,
    last_mark: AtomicU64,
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
        let marks = Arc::new(Marks::new());
        let writing = Recorder {
            subscription: Arc::clone(&recorder),
            spool: spool.clone(),
            writer,
            counters: Arc::clone(&counters),
            marks: Arc::clone(&marks),
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
        Ok(Self {
            spool,
            recorder,
            counters,
            marks,
            last_mark: AtomicU64::new(0),
            expired_before,
            highest_uid,
            thread,
        })
    }

    /// The highest uid of a probe that has events of an earlier run here; 0 if none has.
    pub const fn highest_uid(&self) -> ProbeUid {
        self.highest_uid
    }

    /// This run of the daemon: its number is larger than that of any run before.
    pub fn epoch(&self) -> u64 {
        self.spool.stats().end.epoch
    }

    fn next_mark(&self) -> u64 {
        self.last_mark.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until everything that was published until now is in the spool, or was given up.
    ///
    /// # Errors
    /// [`HistoryError::Ended`].
    pub async fn settle(&self) -> Result<Limit, HistoryError> {
        let mark = self.next_mark();
        let limit = self.marks.expect(mark);
        self.recorder.mark(mark);
        limit.await.map_err(|_ended| HistoryError::Ended)
    }

    /// Attaches a subscription. Returns the log position at which it begins, and the limit of the
    /// spool just before that.
    ///
    /// # Errors
    /// [`HistoryError::Ended`].
    pub async fn attach(&self, subscription: &Subscription) -> Result<(u64, Limit), HistoryError> {
        let mark = self.next_mark();
        let limit = self.marks.expect(mark);
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
        let queue = self.recorder.counts();
        self.counters.counts(queue.dropped, queue.read, self.expired_before, self.spool.stats())
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
