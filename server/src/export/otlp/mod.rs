//! The OTLP/gRPC exporter: log records, spans and metrics.
//!
//! Owns what an event becomes in OTLP, and what an answer of the receiver means. A request without
//! an answer is made again from the log. OTLP cannot recognise repeats, so each record has its
//! position in the log (`kprobed.sequence`, with `kprobed.boot_id` and `kprobed.epoch` of its
//! scope), and spans have the same ids each time. There is no queue here.
//! What the receiver has taken of a chunk that failed is not sent again, and a signal that it refuses finally holds up
//! no other one.
//!
//! ```text
//! chunk --logs--> requests of limited size --connection--> receiver: taken, taken in part, refused, not answered
//!       --calls--> spans
//! figures of the ledger, at an interval --metrics-->
//! ```

mod answer;
mod calls;
mod connection;
mod log_record;
mod metrics;
mod records;
mod request;
mod resource;
mod span;
mod value;

pub use connection::Connection;
pub use metrics::report;
pub use resource::Host;

use std::time::{SystemTime, UNIX_EPOCH};

use kprobed_event::Row;
use kprobed_otlp::logs::LogRecord;
use kprobed_otlp::trace::Span;
use tonic::Code;
use tonic::transport::Channel;

use self::answer::read;
use self::calls::{Entry, SpanCalls};
use self::records::{Part, Records};
use self::request::{Origin, Signal};
use self::resource::scope;
use super::read::Reader;
use super::{Chunk, Sent, Sink, SinkError};
use crate::config::export::Otlp;
use crate::start_error::StartError;
use kprobed_trace::pipeline::Item;
use kprobed_trace::spool::Cursor;

/// The sink.
#[derive(Debug)]
pub struct OtlpSink {
    connection: Connection,
    host: Host,
    /// Whether events are sent as log records.
    logs: bool,
    /// Whether calls, which are an entry and its return, are sent as spans.
    traces: bool,
    max_request_bytes: usize,
    reader: Reader,
    open: Option<Channel>,
    calls: SpanCalls,
    /// Those of the chunk that is sent. They are made anew when it is sent again.
    records: Records<LogRecord>,
    /// Made, and not taken by the receiver yet.
    spans: Records<Span>,
    /// What was refused finally of the chunk that is sent.
    refused: Sent,
    /// The receiver has all log records before this place.
    told: Option<Cursor>,
}

impl OtlpSink {
    /// For settings that were judged.
    ///
    /// # Errors
    /// A file has changed since.
    pub fn new(settings: &Otlp, host: Host) -> Result<Self, StartError> {
        Ok(Self {
            connection: Connection::new(settings)?,
            host,
            logs: settings.logs,
            traces: settings.traces,
            max_request_bytes: settings.max_request_bytes(),
            reader: Reader::default(),
            open: None,
            calls: SpanCalls::default(),
            records: Records::default(),
            spans: Records::default(),
            refused: Sent::default(),
            told: None,
        })
    }

    /// Makes the records of a chunk which the receiver does not have yet. Spans that are whole are put to those that
    /// wait.
    fn take(&mut self, chunk: &Chunk) -> Result<(), SinkError> {
        let Self { logs, traces, reader, calls, records, spans, .. } = self;
        let (logs, traces) = (*logs, *traces);
        let now_ns = nanoseconds(SystemTime::now());
        records.clear();
        let mut is_new = true;
        // A chunk is of one run of the daemon. An earlier one began in the same place, and failed.
        let same_run = |told: &Cursor, end: &Cursor| (told.boot_id, told.epoch) == (end.boot_id, end.epoch);
        let told = self.told.zip(chunk.end).filter(|(told, end)| same_run(told, end));
        let told = told.map(|(told, _)| told.sequence);
        let mut at = chunk.end.map_or(0, |end| end.sequence.saturating_sub(chunk.walked.places));
        let mut show = |entry: Entry, exit: &Row<'_>| {
            if let Some(run) = &chunk.end {
                spans.push(true, None, span::of_call(entry, exit, run));
            }
        };
        for item in &chunk.items {
            match item {
                Item::Epoch { cursor, may_miss } => {
                    reader.begin_epoch();
                    calls.begin_epoch();
                    if logs && told.is_none() {
                        records.push(false, None, log_record::of_epoch(cursor, *may_miss, now_ns));
                    }
                }
                Item::Loss(loss) => {
                    let loss = reader.loss(loss);
                    if traces && is_new {
                        calls.gap(&loss);
                    }
                    if logs && told.is_none_or(|told| told <= at) {
                        records.push(false, None, log_record::of_loss(&loss, now_ns));
                    }
                }
                Item::Batch(delivery) => {
                    let batch =
                        reader.batch(delivery).map_err(|error| SinkError::new("read events", error))?;
                    is_new = delivery.sequence >= calls.seen;
                    for (row, sequence) in batch.rows().zip(delivery.sequence..) {
                        if logs && told.is_none_or(|told| told <= sequence) {
                            let record = log_record::of_event(&row, sequence, now_ns);
                            records.push(true, sequence.checked_add(1), record);
                        }
                    }
                    if traces && is_new {
                        calls.push(batch, &mut show);
                    }
                    at = delivery.sequence + delivery.log_events;
                    calls.seen = calls.seen.max(at);
                }
                Item::Watermark(watermark_ns) => calls.until(*watermark_ns, &mut show),
                Item::CaughtUp(_) | Item::Progress(_) | Item::Mark(_) => {}
            }
        }
        // A part of the log that could not be sent whole is not counted again.
        if let Some(given_up) = calls.given_up() {
            self.refused.dropped_spans += given_up.calls;
            self.refused.reason = given_up.to_string();
        }
        Ok(())
    }

    /// Sends records to their service, one request after the other. What the receiver has taken is noted at once: the
    /// rest may be cancelled. A service that may be absent refuses finally: the receiver takes something else.
    async fn export<R: Signal>(
        (connection, channel): (&Connection, &Channel),
        origin: &Origin,
        records: &mut Records<R>,
        limit: usize,
        may_be_absent: bool,
        mut note: impl FnMut(Option<u64>, Sent),
    ) -> Result<(), SinkError> {
        while let Some(Part { records: part, items, next }) =
            records.part(limit.saturating_sub(origin.around()))
        {
            let count = part.len();
            let sent = match R::export((connection, channel.clone()), origin.clone(), part).await {
                Err(status) if may_be_absent && status.code() == Code::Unimplemented => {
                    let reason = format!("the receiver takes log records and no {}", R::NAME);
                    Sent { dropped: items, reason, ..Sent::default() }
                }
                answer => read(R::NAME, items, answer)?,
            };
            records.took(count);
            note(next, sent);
        }
        Ok(())
    }

    /// Sends the log records that are made. The receiver has all of the log up to their events then.
    async fn export_logs(
        &mut self,
        channel: &Channel,
        origin: &Origin,
        end: Option<Cursor>,
    ) -> Result<(), SinkError> {
        let Self { connection, max_request_bytes: limit, records, refused, told, .. } = self;
        Self::export((connection, channel), origin, records, *limit, false, |next, sent| {
            *told = end.zip(next).map(|(end, sequence)| Cursor { sequence, ..end }).or(*told);
            refused.dropped += sent.dropped;
            if sent.dropped > 0 {
                refused.reason = sent.reason;
            }
        })
        .await
    }

    /// Sends the spans that wait.
    async fn export_spans(&mut self, channel: &Channel, origin: &Origin) -> Result<(), SinkError> {
        let may_be_absent = self.logs;
        let Self { connection, max_request_bytes: limit, spans, refused, .. } = self;
        // They are not events: the sum of the account does not have them.
        Self::export((connection, channel), origin, spans, *limit, may_be_absent, |_, sent| {
            refused.dropped_spans += sent.dropped;
            if sent.dropped > 0 {
                refused.reason = format!("spans: {}", sent.reason);
            }
        })
        .await
    }
}

impl Sink for OtlpSink {
    async fn open(&mut self) -> Result<Option<Cursor>, SinkError> {
        self.open = None;
        self.open = Some(self.connection.open().await?);
        Ok(None)
    }

    async fn send(&mut self, chunk: &Chunk) -> Result<Sent, SinkError> {
        let Some(channel) = self.open.clone() else { return Err(SinkError::new("send", "not connected")) };
        self.take(chunk)?;
        let origin = Origin { resource: self.host.resource(), scope: scope(chunk.end.as_ref()) };
        let has_records = !self.records.is_empty();
        // The record of how far the others go is the last one, so that the receiver gets it once.
        let is_last = self.spans.is_empty();
        if is_last {
            self.push_progress(chunk, has_records);
        }
        self.export_logs(&channel, &origin, chunk.end).await?;
        if !is_last {
            self.told = chunk.end.or(self.told);
            self.export_spans(&channel, &origin).await?;
            self.push_progress(chunk, has_records);
            self.export_logs(&channel, &origin, chunk.end).await?;
        }
        self.told = None;
        Ok(std::mem::take(&mut self.refused))
    }
}

impl OtlpSink {
    /// A record of how far those of a chunk go, if it has any or has passed something.
    fn push_progress(&mut self, chunk: &Chunk, has_records: bool) {
        let has_moved = has_records || chunk.walked.places > 0;
        if let Some(end) = chunk.end.as_ref().filter(|_| self.logs && has_moved) {
            let record = log_record::of_progress(end, &chunk.walked, nanoseconds(SystemTime::now()));
            self.records.push(false, None, record);
        }
    }
}

/// A time, in nanoseconds since 1970.
fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
