//! The sink of the OTLP exporter: log records and spans of each chunk, in requests of limited size.

use std::time::{SystemTime, UNIX_EPOCH};

use tonic::transport::Channel;

use super::connection::Connection;
use super::pairs::Pairs;
use super::records::Records;
use super::request::{LOGS, Origin, Service, TRACES, send};
use super::resource::{Host, scope};
use super::{log_record, span};
use crate::export::read::Reader;
use crate::export::{Chunk, ChunkItem, Sent, Sink, SinkError};
use kprobed_trace::spool::Cursor;

/// What events are sent as.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    /// As log records.
    pub logs: bool,
    /// Pairs of them as spans.
    pub traces: bool,
}

/// The sink.
#[derive(Debug)]
pub struct OtlpSink {
    connection: Connection,
    host: Host,
    signals: Signals,
    max_request_bytes: usize,
    reader: Reader,
    open: Option<Channel>,
    pairs: Pairs,
    /// Those of the chunk that is sent. They are made anew when it is sent again.
    records: Records,
    /// Made, and not taken by the receiver yet.
    spans: Records,
}

impl OtlpSink {
    /// Sends to a receiver, in requests of a limited size.
    pub fn new(connection: Connection, host: Host, signals: Signals, max_request_bytes: usize) -> Self {
        Self {
            connection,
            host,
            signals,
            max_request_bytes,
            reader: Reader::default(),
            open: None,
            pairs: Pairs::default(),
            records: Records::default(),
            spans: Records::default(),
        }
    }

    /// Makes the records of a chunk. Spans that are whole are put to those that wait.
    fn take(&mut self, chunk: &Chunk) -> Result<(), SinkError> {
        let Self { signals: Signals { logs, traces }, reader, pairs, records, spans, .. } = self;
        let (logs, traces) = (*logs, *traces);
        let now_ns = now_ns();
        records.clear();
        let mut is_new = true;
        for item in &chunk.items {
            match item {
                ChunkItem::Epoch { cursor, may_miss } => {
                    reader.begin_epoch();
                    pairs.begin_epoch();
                    if logs {
                        records.push(false, |out| log_record::of_epoch(out, cursor, *may_miss, now_ns));
                    }
                }
                ChunkItem::Loss(loss) => {
                    let loss = reader.loss(loss);
                    if traces && is_new {
                        pairs.gap(loss.before_ns);
                    }
                    if logs {
                        records.push(false, |out| log_record::of_loss(out, &loss, now_ns));
                    }
                }
                ChunkItem::Events(delivery) => {
                    let batch =
                        reader.batch(delivery).map_err(|error| SinkError::new("read events", error))?;
                    is_new = !pairs.has_seen(delivery.sequence);
                    for (row, sequence) in batch.rows().zip(delivery.sequence..) {
                        if logs {
                            records.push(true, |out| log_record::of_event(out, &row, sequence, now_ns));
                        }
                        if traces && is_new {
                            pairs.push(&row, sequence);
                        }
                    }
                    pairs.saw(delivery.sequence + delivery.log_events);
                }
                ChunkItem::Watermark(watermark_ns) => {
                    let whole = pairs.until(*watermark_ns);
                    // A chunk is of one run of the daemon.
                    let Some(run) = &chunk.end else { continue };
                    for pair in &whole {
                        spans.push(true, |out| span::of_call(out, pair, run));
                    }
                }
            }
        }
        let has_moved = !records.is_empty() || chunk.walked.places > 0;
        if let Some(end) = chunk.end.as_ref().filter(|_| logs && has_moved) {
            records.push(false, |out| log_record::of_progress(out, end, &chunk.walked, now_ns));
        }
        Ok(())
    }

    /// Sends records of a run of the daemon to a service, one request after the other.
    async fn export(
        (connection, channel): (&Connection, &Channel),
        (service, origin): (Service, &Origin),
        records: &mut Records,
        limit: usize,
    ) -> Result<Sent, SinkError> {
        let mut sent = Sent::default();
        for part in records.parts(limit.saturating_sub(origin.around())) {
            let request = connection.request(origin.export(part.records.clone()));
            let of_part = send(channel.clone(), service, request, &part).await?;
            sent.dropped += of_part.dropped;
            if of_part.dropped > 0 {
                sent.reason = of_part.reason;
            }
        }
        records.clear();
        Ok(sent)
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
        let origin = Origin::new(&self.host.resource(), &scope(chunk.end.as_ref()));
        let Self { connection, max_request_bytes: limit, records, spans, .. } = self;
        let way = (&*connection, &channel);
        let mut sent = Self::export(way, (LOGS, &origin), records, *limit).await?;
        // Spans that the receiver refuses finally are dropped. They are not events, so no term
        // counts them.
        let of_spans = Self::export(way, (TRACES, &origin), spans, *limit).await?;
        if of_spans.dropped > 0 {
            sent.reason = format!("{} spans: {}", of_spans.dropped, of_spans.reason);
        }
        Ok(sent)
    }
}

/// The time, in nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
