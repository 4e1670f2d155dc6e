//! The receiver as the other side of an exporter: log records and spans of each chunk, in requests of a limited size.

use std::time::{SystemTime, UNIX_EPOCH};

use kprobed_otlp::resource::Resource;
use kprobed_otlp::trace::{ResourceSpans, ScopeSpans, Span};
use kprobed_otlp::trace_service::ExportTraceServiceRequest;
use kprobed_otlp::trace_service::trace_service_client::TraceServiceClient;
use prost::Message;
use tonic::transport::Channel;

use super::answer::{Partial, read};
use super::connection::Connection;
use super::encoded::{Logs, Record, export};
use super::pairs::Pairs;
use super::resource::scope;
use super::{log_record, span};
use crate::export::read::Reader;
use crate::export::{Chunk, ChunkItem, Sent, Sink, SinkError};
use crate::spool::Cursor;

/// Bytes around a record in its request, at most: a tag and a length.
const FRAME: usize = 8;

/// Bytes of the scope, at most.
const SCOPE: usize = 256;

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
    resource: Resource,
    signals: Signals,
    max_request_bytes: usize,
    reader: Reader,
    open: Option<Channel>,
    pairs: Pairs,
    /// Made, and not taken by the receiver yet.
    spans: Vec<Span>,
}

impl OtlpSink {
    /// Sends to a receiver, in requests of a limited size.
    pub fn new(
        connection: Connection,
        resource: Resource,
        signals: Signals,
        max_request_bytes: usize,
    ) -> Self {
        Self {
            connection,
            resource,
            signals,
            max_request_bytes,
            reader: Reader::default(),
            open: None,
            pairs: Pairs::default(),
            spans: Vec::new(),
        }
    }

    /// The records of a chunk. Spans that are whole are put to those that wait.
    fn take(&mut self, chunk: &Chunk) -> Result<Vec<Record>, SinkError> {
        let Signals { logs, traces } = self.signals;
        let now_ns = now_ns();
        let mut records = Vec::new();
        let mut is_new = true;
        for item in &chunk.items {
            match item {
                ChunkItem::Epoch { cursor, may_miss } => {
                    self.reader.begin_epoch();
                    self.pairs.begin_epoch();
                    records.extend(logs.then(|| log_record::of_epoch(cursor, *may_miss, now_ns).into()));
                }
                ChunkItem::Loss(loss) => {
                    let loss = self.reader.loss(loss);
                    if traces && is_new {
                        self.pairs.gap(loss.before_ns);
                    }
                    records.extend(logs.then(|| log_record::of_loss(&loss, now_ns).into()));
                }
                ChunkItem::Events(delivery) => {
                    let batch =
                        self.reader.batch(delivery).map_err(|error| SinkError::new("read events", error))?;
                    is_new = !self.pairs.has_seen(delivery.sequence);
                    for (row, sequence) in batch.rows().zip(delivery.sequence..) {
                        records.extend(logs.then(|| log_record::of_event(&row, sequence, now_ns).into()));
                        if traces && is_new {
                            self.pairs.push(&row, sequence);
                        }
                    }
                    self.pairs.saw(delivery.sequence + delivery.log_events);
                }
                ChunkItem::Watermark(watermark_ns) => {
                    let pairs = self.pairs.until(*watermark_ns).into_iter();
                    // A chunk is of one run of the daemon.
                    let Some(run) = &chunk.end else { continue };
                    self.spans.extend(pairs.map(|pair| span::of_call(pair, run)));
                }
            }
        }
        let has_moved = !records.is_empty() || chunk.walked.places > 0;
        if let Some(end) = chunk.end.as_ref().filter(|_| logs && has_moved) {
            records.push(log_record::of_progress(end, &chunk.walked, now_ns).into());
        }
        Ok(records)
    }

    async fn send_logs(
        &self,
        channel: &Channel,
        run: Option<&Cursor>,
        records: Vec<Record>,
    ) -> Result<Sent, SinkError> {
        let mut sent = Sent::default();
        let around = self.resource.encoded_len();
        for part in parts(records, self.max_request_bytes, around, Record::encoded_len) {
            let events = part.iter().filter(|record| record.is_event).count() as u64;
            let request = Logs::new(self.resource.clone(), scope(run), part);
            let part = export(channel.clone(), self.connection.request(request), events).await?;
            sent.dropped += part.dropped;
            if part.dropped > 0 {
                sent.reason = part.reason;
            }
        }
        Ok(sent)
    }

    /// Sends the spans that wait. Those that the receiver refuses for good are gone: they are no events, and so in no term.
    async fn send_spans(&mut self, channel: &Channel, run: Option<&Cursor>) -> Result<String, SinkError> {
        let mut reason = String::new();
        let around = self.resource.encoded_len();
        for spans in parts(self.spans.clone(), self.max_request_bytes, around, Span::encoded_len) {
            let count = spans.len() as u64;
            let scope_spans = ScopeSpans { scope: Some(scope(run)), spans, ..ScopeSpans::default() };
            let of_resource = ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![scope_spans],
                ..ResourceSpans::default()
            };
            let request = ExportTraceServiceRequest { resource_spans: vec![of_resource] };
            let request = self.connection.request(request);
            let answer = TraceServiceClient::new(channel.clone()).export(request).await.map(|answer| {
                let partial = answer.into_inner().partial_success.unwrap_or_default();
                Partial { rejected: partial.rejected_spans, message: partial.error_message }
            });
            let part = read("traces", count, answer)?;
            if part.dropped > 0 {
                reason = format!("{} spans: {}", part.dropped, part.reason);
            }
        }
        self.spans.clear();
        Ok(reason)
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
        let run = chunk.end.as_ref();
        let records = self.take(chunk)?;
        let mut sent = self.send_logs(&channel, run, records).await?;
        let reason = self.send_spans(&channel, run).await?;
        if !reason.is_empty() {
            sent.reason = reason;
        }
        Ok(sent)
    }
}

/// Records in as many parts as the limit on a request asks for, when so many bytes are around them. One that is larger than the limit is alone.
fn parts<T>(records: Vec<T>, limit: usize, around: usize, length: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let around = around + 16 * FRAME + SCOPE;
    let mut parts = Vec::new();
    let (mut part, mut bytes) = (Vec::new(), around);
    for record in records {
        let length = length(&record) + FRAME;
        if bytes + length > limit && !part.is_empty() {
            parts.push(std::mem::take(&mut part));
            bytes = around;
        }
        bytes += length;
        part.push(record);
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

/// The time, in nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
