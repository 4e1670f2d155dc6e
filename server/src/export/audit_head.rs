//! Head of the audit log in what an exporter sends, so that a receiver holds a proof that cannot be taken
//! back on the host.
//!
//! Owns when a chunk is sent for the sake of the head alone. The head comes from a published value that
//! is set after the commit: no event waits for the database. Never reads an entry.

use std::time::Duration;

use kprobed_audit::Head;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Chunk;

/// The head, and what the receiver has of it.
#[derive(Debug)]
pub(super) struct HeadReport {
    log: watch::Receiver<Option<Head>>,
    /// Time between two chunks that are sent for the head alone.
    interval: Duration,
    /// The last head that the receiver keeps.
    kept: Option<Head>,
    next: Option<Instant>,
}

impl HeadReport {
    pub(super) const fn new(log: watch::Receiver<Option<Head>>, interval: Duration) -> Self {
        Self { log, interval, kept: None, next: None }
    }

    /// Waits until the receiver is to get a head that it does not have, although there are no events.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn due(&mut self) {
        let kept = self.kept;
        if self.log.wait_for(|head| head.is_some() && *head != kept).await.is_err() {
            // The log is closed: the daemon stops.
            std::future::pending::<()>().await;
        }
        if let Some(next) = self.next {
            tokio::time::sleep_until(next).await;
        }
    }

    /// Puts the head of now into a chunk, and whether the receiver must keep the chunk for its sake.
    pub(super) fn put(&self, chunk: &mut Chunk) {
        chunk.audit_head = *self.log.borrow();
        let is_new = chunk.audit_head.is_some() && chunk.audit_head != self.kept;
        let is_time = self.next.is_none_or(|next| next <= Instant::now());
        chunk.reports_head = chunk.end.is_some() && is_new && is_time;
    }

    /// The receiver has acknowledged a chunk.
    pub(super) fn sent(&mut self, chunk: &Chunk) {
        if chunk.reports_head || !chunk.only_marks() {
            self.kept = chunk.audit_head.or(self.kept);
            self.next = Some(Instant::now() + self.interval);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprobed_trace::spool::{BootId, Cursor};

    const INTERVAL: Duration = Duration::from_mins(1);

    fn chunk(report: &HeadReport) -> Chunk {
        let end = Some(Cursor { boot_id: BootId([7; 16]), epoch: 1, sequence: 5 });
        let mut chunk = Chunk { end, ..Chunk::default() };
        report.put(&mut chunk);
        chunk
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_is_reported_once_and_not_more_often_than_at_the_interval() {
        let (log, heads) = watch::channel(None);
        let mut report = HeadReport::new(heads, INTERVAL);
        assert!(!chunk(&report).reports_head, "nothing is known yet");
        let first = Head::default().then("a");
        log.send_replace(Some(first));
        report.due().await;
        let sent = chunk(&report);
        assert_eq!((sent.reports_head, sent.audit_head), (true, Some(first)));
        report.sent(&sent);
        assert!(!chunk(&report).reports_head, "the receiver has it");
        let before = Instant::now();
        let second = first.then("b");
        log.send_replace(Some(second));
        assert!(!chunk(&report).reports_head, "too early");
        report.due().await;
        assert_eq!(before.elapsed(), INTERVAL);
        let sent = chunk(&report);
        assert_eq!((sent.reports_head, sent.audit_head), (true, Some(second)));
        // It was not acknowledged: the next one has it again.
        assert!(chunk(&report).reports_head);
    }
}
