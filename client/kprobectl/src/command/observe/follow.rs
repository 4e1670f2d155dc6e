//! Loop from the event stream of one daemon to the printer, and its end.

use std::time::Duration;

use kprobed_client::Error;
use kprobed_client::event::{
    Batch, Cursor, EventStream, ResumingItem, ResumingStream, StreamItem, TimeOrdered,
};

use super::cursor_file::CursorFile;
use super::temporary_probes::TemporaryProbes;
use crate::command::Failure;
use crate::command::stop_condition::{StopCondition, StopReason};
use crate::output::EventPrinter;

/// Where events come from.
pub(super) enum EventSource {
    /// One connection.
    Once(Box<EventStream>),
    /// As many as it takes.
    Resuming(Box<ResumingStream>),
}

impl EventSource {
    async fn next(&mut self) -> Result<Option<ResumingItem>, Failure> {
        Ok(match self {
            Self::Once(stream) => stream.next().await?.map(ResumingItem::Item),
            Self::Resuming(stream) => stream.next().await?,
        })
    }

    fn cursor(&self) -> Option<&Cursor> {
        match self {
            Self::Once(stream) => stream.cursor(),
            Self::Resuming(stream) => stream.cursor(),
        }
    }
}

/// How a stream ended.
pub(super) enum End {
    /// The limit of events was reached.
    Enough,
    /// A signal, or the time was up.
    Stopped(StopReason),
    /// The daemon ended the stream.
    ByDaemon,
}

/// A stream to follow, with its limits.
pub(super) struct Follow {
    pub(super) source: EventSource,
    pub(super) limit: Option<u64>,
    /// Events that wait for others, in the order of time.
    pub(super) ordered: Option<TimeOrdered>,
    pub(super) cursor_file: Option<CursorFile>,
    /// Where the batch begins that the limit cut: it is not printed to its end.
    pub(super) cut_sequence: Option<u64>,
    pub(super) traced: Option<Traced>,
}

/// Probes that are deleted at the end, and the one stream of their events.
pub(super) struct Traced {
    pub(super) probes: TemporaryProbes,
    /// Identifies the stream in the daemon's ledger.
    pub(super) subscriber_id: u64,
}

/// How long the last events may take after the probes are deleted.
pub(super) const REST: Duration = Duration::from_secs(5);

/// What became of the last events.
enum Last {
    /// The limit of events was reached.
    Enough,
    /// All of them were read.
    Whole,
    /// Some may be missing.
    Unread(&'static str),
}

impl Follow {
    /// Follows to the end, unless `is_over`: a signal came while the stream began. Prints and saves
    /// the rest, however the stream ended.
    pub(super) async fn run(
        mut self,
        is_over: bool,
        stop: &mut StopCondition,
        printer: &mut EventPrinter<'_>,
    ) -> Result<End, Failure> {
        let mut end =
            if is_over { Ok(End::Stopped(StopReason::Signal)) } else { self.follow(stop, printer).await };
        if let Some(traced) = self.traced.take() {
            end = self.delete(&traced, end, stop, printer).await;
        }
        if end.as_ref().is_err_and(Failure::is_broken_pipe) {
            return end;
        }
        if let Some(ordered) = &mut self.ordered
            && !matches!(end, Ok(End::Enough))
        {
            ordered.finish();
            self.print_ordered(printer)?;
        }
        if let Some(ordered) = &self.ordered {
            printer.summary.late = ordered.late_events();
        }
        printer.flush()?;
        self.save()?;
        end
    }

    /// Deletes the probes, and prints what they recorded until then if following was stopped.
    async fn delete(
        &mut self,
        traced: &Traced,
        end: Result<End, Failure>,
        stop: &mut StopCondition,
        printer: &mut EventPrinter<'_>,
    ) -> Result<End, Failure> {
        let reason = match end {
            Ok(End::Stopped(reason)) => reason,
            Ok(End::Enough) => {
                tokio::select! {
                    deleted = traced.probes.delete() => note_not_deleted(deleted.err(), printer),
                    () = stop.signal() => return Ok(End::Stopped(StopReason::Signal)),
                }
                return end;
            }
            Ok(End::ByDaemon) => {
                printer.summary.unread = Some("the stream ended before them".to_owned());
                return end;
            }
            Err(_) => {
                printer.summary.unread = Some("an error came before them".to_owned());
                return end;
            }
        };
        let last = tokio::select! {
            last = self.last(traced, printer) => last,
            // A second signal stops the wait. The daemon deletes the probes by itself.
            () = stop.signal() => {
                printer.summary.unread = Some("interrupted".to_owned());
                return Ok(End::Stopped(StopReason::Signal));
            }
        };
        match last {
            Ok(Last::Enough) => Ok(End::Enough),
            Ok(Last::Whole) => Ok(End::Stopped(reason)),
            Ok(Last::Unread(why)) => {
                printer.summary.unread = Some(why.to_owned());
                Ok(End::Stopped(reason))
            }
            Err(failure) => {
                printer.summary.unread = Some("an error came before them".to_owned());
                Err(failure)
            }
        }
    }

    /// Deletes the probes, and prints the events that the daemon then has for this command.
    async fn last(&mut self, traced: &Traced, printer: &mut EventPrinter<'_>) -> Result<Last, Failure> {
        let failed = traced.probes.delete().await.err();
        let is_deleted = failed.is_none();
        note_not_deleted(failed, printer);
        match tokio::time::timeout(REST, self.rest(traced, printer)).await {
            // What is still in the kernel's buffers is read when the probes are deleted.
            Ok(Ok(Last::Whole)) if !is_deleted => Ok(Last::Unread("the probes still record")),
            Ok(last) => last,
            Err(_elapsed) => Ok(Last::Unread("the daemon did not send them in time")),
        }
    }

    async fn rest(&mut self, traced: &Traced, printer: &mut EventPrinter<'_>) -> Result<Last, Failure> {
        let ledger = traced.probes.client().ledger().await?;
        let ours = ledger.subscribers.iter().find(|one| one.subscriber_id == traced.subscriber_id);
        let Some(ours) = ours else {
            return Ok(Last::Unread("the daemon does not know this command any more"));
        };
        // The queue reports what it left out after the events before that.
        let (events, left_out) = (ours.delivered + ours.queued, ours.dropped + ours.limited);
        while printer.summary.delivered < events || printer.summary.left_out() < left_out {
            match self.source.next().await? {
                Some(ResumingItem::Item(item)) => {
                    if self.item(item, printer)? {
                        return Ok(Last::Enough);
                    }
                }
                Some(ResumingItem::Interrupted(interruption)) => printer.interrupted(&interruption)?,
                None => return Ok(Last::Unread("the stream ended before them")),
            }
        }
        Ok(Last::Whole)
    }

    async fn follow(
        &mut self,
        stop: &mut StopCondition,
        printer: &mut EventPrinter<'_>,
    ) -> Result<End, Failure> {
        let mut pending = false;
        loop {
            let item = tokio::select! {
                biased;
                reason = stop.wait() => return Ok(End::Stopped(reason)),
                item = self.source.next() => item?,
                // Nothing has arrived: flush the output.
                () = std::future::ready(()), if pending => {
                    printer.flush()?;
                    pending = false;
                    continue;
                }
            };
            pending = true;
            match item {
                None => return Ok(End::ByDaemon),
                Some(ResumingItem::Interrupted(interruption)) => printer.interrupted(&interruption)?,
                Some(ResumingItem::Item(item)) => {
                    if self.item(item, printer)? {
                        return Ok(End::Enough);
                    }
                }
            }
            // On a terminal every line is flushed.
            if printer.is_terminal() {
                printer.flush()?;
            }
            if self.cursor_file.as_ref().is_some_and(CursorFile::is_due) {
                printer.flush()?;
                self.save()?;
            }
        }
    }

    /// Prints what an item has, and says whether that was enough.
    fn item(&mut self, item: StreamItem, printer: &mut EventPrinter<'_>) -> Result<bool, Failure> {
        match item {
            StreamItem::Started(_) | StreamItem::Schema(_) => {}
            StreamItem::Loss(loss) => printer.loss(&loss)?,
            StreamItem::CaughtUp(cursor) => printer.caught_up(&cursor)?,
            StreamItem::Epoch(epoch) => {
                if let Some(ordered) = &mut self.ordered {
                    ordered.finish();
                }
                if self.print_ordered(printer)? {
                    return Ok(true);
                }
                if epoch.may_miss {
                    printer.may_miss(&epoch.cursor)?;
                }
            }
            StreamItem::Watermark(watermark) => {
                if let Some(ordered) = &mut self.ordered {
                    ordered.advance(watermark.watermark_ns);
                }
                return self.print_ordered(printer);
            }
            StreamItem::Batch(batch) => {
                printer.summary.delivered += batch.len() as u64;
                let Some(ordered) = &mut self.ordered else { return self.print(&batch, printer) };
                ordered.push(batch);
                return self.print_ordered(printer);
            }
        }
        Ok(false)
    }

    fn print(&mut self, batch: &Batch, printer: &mut EventPrinter<'_>) -> Result<bool, Failure> {
        let mut rows = batch.rows();
        while let Some(row) = rows.next() {
            printer.row(&row)?;
            if self.limit.is_some_and(|limit| printer.summary.shown >= limit) {
                self.cut_sequence = (rows.len() > 0).then(|| batch.sequence());
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn print_ordered(&mut self, printer: &mut EventPrinter<'_>) -> Result<bool, Failure> {
        let Some(ordered) = &mut self.ordered else { return Ok(false) };
        while self.limit.is_none_or(|limit| printer.summary.shown < limit) {
            match ordered.next_row() {
                Some(row) => printer.row(&row)?,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Saves the cursor: every event before it has been printed.
    fn save(&mut self) -> Result<(), Failure> {
        let (Some(cursor_file), Some(cursor)) = (&mut self.cursor_file, self.source.cursor()) else {
            return Ok(());
        };
        let waiting = self.ordered.as_ref().and_then(TimeOrdered::oldest_sequence);
        let mut cursor = cursor.clone();
        cursor.sequence = [waiting, self.cut_sequence].into_iter().flatten().fold(cursor.sequence, u64::min);
        cursor_file.save(&cursor)
    }
}

fn note_not_deleted(failed: Option<Error>, printer: &mut EventPrinter<'_>) {
    if let Some(error) = failed {
        printer.note(&format!("the daemon deletes the probes when this command has ended: {error}"));
    }
}
