//! Loop from the event stream of one daemon to the printer, and its end.

use std::time::Duration;

use kprobed_client::Client;
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
    pub(super) stop: StopCondition,
    /// Events that wait for others, in the order of time.
    pub(super) ordered: Option<TimeOrdered>,
    pub(super) cursor_file: Option<CursorFile>,
    /// Where the batch begins that the limit cut: it is not printed to its end.
    pub(super) cut_sequence: Option<u64>,
    /// Probes that are deleted at the end.
    pub(super) temporary: Option<(Client, TemporaryProbes)>,
    /// The number of this subscriber, once the daemon has sent it.
    pub(super) subscriber: Option<u64>,
}

/// How long the last events may take after the probes are deleted.
const REST: Duration = Duration::from_secs(5);

impl Follow {
    /// Follows to the end, and prints and saves the rest, however the stream ended.
    pub(super) async fn run(mut self, printer: &mut EventPrinter<'_>) -> Result<End, Failure> {
        let mut end = self.follow(printer).await;
        if let Some((client, temporary)) = self.temporary.take() {
            end = self.delete(&client, temporary, end, printer).await;
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
        client: &Client,
        temporary: TemporaryProbes,
        end: Result<End, Failure>,
        printer: &mut EventPrinter<'_>,
    ) -> Result<End, Failure> {
        let Ok(end) = end else { return end };
        let deleted = tokio::select! {
            deleted = temporary.delete() => deleted,
            // A second signal stops the wait. The daemon deletes the probes by itself.
            () = self.stop.signal() => return Ok(End::Stopped(StopReason::Signal)),
        };
        if let Err(error) = deleted {
            printer.note(&format!("the daemon deletes the probes when this command has ended: {error}"));
        }
        if !matches!(end, End::Stopped(_)) {
            return Ok(end);
        }
        match tokio::time::timeout(REST, self.rest(client, printer)).await {
            Ok(Ok(true)) => Ok(End::Enough),
            Ok(Ok(false)) => Ok(end),
            Ok(Err(failure)) => Err(failure),
            Err(_elapsed) => {
                printer.note("the daemon did not send the last events in time");
                Ok(end)
            }
        }
    }

    /// Prints the events that the daemon still has for this command. Returns whether the limit was
    /// reached.
    async fn rest(&mut self, client: &Client, printer: &mut EventPrinter<'_>) -> Result<bool, Failure> {
        let ledger = client.ledger().await?;
        let ours =
            ledger.subscribers.iter().find(|one| self.subscriber.is_some_and(|id| id == one.subscriber_id));
        let Some(ours) = ours else { return Ok(false) };
        let all = ours.delivered + ours.queued;
        while printer.summary.delivered < all {
            match self.source.next().await? {
                Some(ResumingItem::Item(item)) => {
                    if self.item(item, printer)? {
                        return Ok(true);
                    }
                }
                Some(ResumingItem::Interrupted(interruption)) => printer.interrupted(&interruption)?,
                None => break,
            }
        }
        Ok(false)
    }

    async fn follow(&mut self, printer: &mut EventPrinter<'_>) -> Result<End, Failure> {
        let mut pending = false;
        loop {
            let item = tokio::select! {
                biased;
                reason = self.stop.wait() => return Ok(End::Stopped(reason)),
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
            StreamItem::Started(started) => {
                self.subscriber = Some(started.subscriber_id);
                printer.start()?;
            }
            StreamItem::Schema(_) => {}
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
