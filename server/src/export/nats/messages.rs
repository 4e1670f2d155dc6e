//! NATS messages of a chunk: one for each probe of each batch, each gap and each beginning of a run, in
//! the order of the log, and one with the account of all.
//!
//! Owns how a batch that is larger than the server allows is divided: between rows. Each piece has its
//! first row in a header, so that a reader knows what it has, however another piece was cut.

use std::collections::HashMap;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use async_nats::HeaderMap;
use bytes::Bytes;
use kprobed_event::published::{
    AFTER, BEFORE, DROPPED, END, EVENTS, EXPIRED, FIRST, MESSAGE_ID, NOT_SELECTED, READ, ROW, Subjects, Topic,
};
use kprobed_proto::v1;
use kprobed_proto::v1::stream_events_response::Message;
use prost::Message as _;

use crate::export::read::{cursor_of, started};
use crate::export::{Chunk, SinkError};
use kprobed_host::kernel::{ClockMapping, HostIdentity};
use kprobed_trace::decode::Columns;
use kprobed_trace::pipeline::{Delivery, Item, Origin};
use kprobed_trace::spool::Cursor;
use kprobed_trace::wire::{
    Envelope, GroupRows, MessagePool, Projection, Symbol, Task, encode, read_batch, schema_message,
};

/// Bytes of a message that its headers may take.
const HEADER_BYTES: usize = 2 << 10;

/// A message that is to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) subject: String,
    pub(super) headers: HeaderMap,
    pub(super) payload: Bytes,
    pub(super) events: u64,
}

/// The messages of a chunk, without the one that ends it.
#[derive(Debug)]
pub(super) struct Messages {
    pub(super) all: Vec<Outgoing>,
    first: Cursor,
    end: Cursor,
    /// Events of this run with those of the chunk.
    pub(super) total: u64,
    terms: [(&'static str, u64); 3],
    /// Payload of the message that ends it.
    ending: Vec<u8>,
}

/// Makes messages of chunks.
#[derive(Debug)]
pub(super) struct MessageMaker {
    host: HostIdentity,
    subjects: Subjects,
    /// The largest payload for the server, with its headers.
    pub(super) max_payload: usize,
    /// Schemas of this run of the daemon, as they stand in messages.
    schemas: HashMap<u32, Arc<Schema>>,
    wall_offset_ns: Option<i64>,
    /// Events of this run before the next chunk.
    pub(super) total: u64,
}

#[derive(Debug)]
struct Schema {
    origin: Arc<Origin>,
    topic: Topic,
    frame: Vec<u8>,
}

/// Events of one probe from one batch: rows from `row` on, as a message of the stream.
struct Piece {
    row: usize,
    events: u64,
    message: Bytes,
}

fn frame(message: Message) -> Vec<u8> {
    v1::StreamEventsResponse { message: Some(message) }.encode_length_delimited_to_vec()
}

impl MessageMaker {
    pub(super) fn new(host: HostIdentity, subjects: Subjects) -> Self {
        let (max_payload, schemas) = (usize::MAX, HashMap::new());
        Self { host, subjects, max_payload, schemas, wall_offset_ns: None, total: 0 }
    }

    /// The messages of a chunk. None if it is of no place in the log.
    ///
    /// # Errors
    /// When bytes of the daemon itself cannot be read.
    pub(super) fn of(&mut self, chunk: &Chunk) -> Result<Option<Messages>, SinkError> {
        let Some(end) = chunk.end else { return Ok(None) };
        let first = chunk.items.iter().find_map(|item| match item {
            Item::Epoch { cursor, .. } => Some(*cursor),
            _ => None,
        });
        let sequence = end.sequence.saturating_sub(chunk.walked.places);
        let first = first.unwrap_or(Cursor { sequence, ..end });
        let (mut place, mut watermark, mut all, mut total) = (first, None, Vec::new(), self.total);
        for item in &chunk.items {
            match item {
                Item::Epoch { cursor, may_miss } => {
                    self.schemas.clear();
                    self.wall_offset_ns = None;
                    (place, total) = (*cursor, 0);
                    let (cursor, may_miss) = (Some(cursor_of(cursor).into()), *may_miss);
                    let begins = frame(Message::Epoch(v1::EpochStarted { cursor, may_miss }));
                    all.push(self.message(&Topic::Epoch, (place, place), &[&begins], (0, total)));
                }
                Item::Loss(loss) => {
                    let gap = frame(Message::Loss(loss.into()));
                    all.push(self.message(&Topic::Loss, (place, place), &[&gap], (0, total)));
                }
                Item::Watermark(watermark_ns) => watermark = Some(*watermark_ns),
                Item::Batch(delivery) => {
                    self.wall_offset_ns = Some(delivery.wall_offset_ns);
                    self.events(delivery, place, &mut total, &mut all)?;
                    place.sequence = place.sequence.max(delivery.sequence + delivery.log_events);
                }
                Item::CaughtUp(_) | Item::Progress(_) | Item::Mark(_) => {}
            }
        }
        let mark = |watermark_ns| Message::Watermark(v1::Watermark { watermark_ns, late_events: 0 });
        let mut ending = watermark.map(|watermark_ns| frame(mark(watermark_ns))).unwrap_or_default();
        ending.extend(frame(Message::Progress(cursor_of(&end).into())));
        let walked = &chunk.walked;
        let terms = [(READ, walked.places), (NOT_SELECTED, walked.not_selected), (EXPIRED, walked.expired)];
        Ok(Some(Messages { all, first, end, total, terms, ending }))
    }

    /// The message that ends a chunk, with its account.
    pub(super) fn end(&self, messages: &Messages, events: u64, dropped: u64) -> Outgoing {
        let Messages { first, end, total, terms, ending, .. } = messages;
        let mut message = self.message(&Topic::Ledger, (*first, *end), &[ending], (events, *total));
        for (name, value) in terms {
            message.headers.insert(*name, value.to_string());
        }
        message.headers.insert(DROPPED, dropped.to_string());
        message
    }

    /// A heartbeat in the place of a chunk without events, after this message of the stream.
    pub(super) fn alive(&self, messages: &Messages, after: u64) -> Outgoing {
        let Messages { first, end, total, ending, .. } = messages;
        let mut message = self.message(&Topic::Alive, (*first, *end), &[ending], (0, *total));
        message.headers.insert(AFTER, after.to_string());
        message
    }

    /// Adds the messages of a batch.
    fn events(
        &mut self,
        delivery: &Delivery,
        run: Cursor,
        total: &mut u64,
        all: &mut Vec<Outgoing>,
    ) -> Result<(), SinkError> {
        let unreadable = |why: &dyn std::fmt::Display| SinkError::new("read events", why);
        let mut batch =
            read_batch(&delivery.message).ok_or_else(|| unreadable(&"it is not a batch message"))?;
        let groups = mem::take(&mut batch.groups);
        let is_alone = groups.len() == 1;
        let first = Cursor { sequence: delivery.sequence, ..run };
        let end = Cursor { sequence: delivery.sequence + delivery.log_events, ..run };
        for group in groups {
            let schema = self
                .schema(delivery, group.schema_id)
                .ok_or_else(|| unreadable(&"a batch of events has no schema"))?;
            let head = HEADER_BYTES + self.started().len() + schema.frame.len() + 10;
            let room = self.max_payload.saturating_sub(head);
            let whole = if is_alone { delivery.message.clone() } else { alone(&batch, &group) };
            let pieces = if whole.len() <= room || group.rows <= 1 {
                vec![Piece { row: 0, events: group.rows.into(), message: whole }]
            } else {
                let columns = Columns::from_message(Arc::clone(&schema.origin.schema), group)
                    .ok_or_else(|| unreadable(&"a group of a batch does not fit its schema"))?;
                divided(&batch, (&schema.origin, &columns), room)
            };
            for Piece { row, events, message } in pieces {
                let length = prost::length_delimiter_len(message.len());
                let mut delimiter = Vec::with_capacity(length);
                prost::encoding::encode_varint(message.len() as u64, &mut delimiter);
                let contents = [&schema.frame[..], &delimiter, &message];
                let mut message = self.message(&schema.topic, (first, end), &contents, (events, *total));
                message.headers.insert(ROW, row.to_string());
                all.push(message);
                *total += events;
            }
        }
        Ok(())
    }

    fn schema(&mut self, delivery: &Delivery, schema_id: u32) -> Option<Arc<Schema>> {
        if let Some(schema) = self.schemas.get(&schema_id) {
            return Some(Arc::clone(schema));
        }
        let origin = delivery.origins.iter().find(|origin| origin.schema_id == schema_id)?;
        let message = schema_message(schema_id, &origin.name, origin.uid, &origin.schema, None);
        let topic = Topic::Events(origin.name.to_string());
        let schema = Schema { origin: Arc::clone(origin), topic, frame: frame(Message::Schema(message)) };
        let schema = Arc::new(schema);
        self.schemas.insert(schema_id, Arc::clone(&schema));
        Some(schema)
    }

    fn message(
        &self,
        topic: &Topic,
        (first, end): (Cursor, Cursor),
        contents: &[&[u8]],
        (events, before): (u64, u64),
    ) -> Outgoing {
        let subject = self.subjects.of(&self.host.hostname, topic);
        let mut payload = self.started();
        let mut checksum = crc32fast::Hasher::new();
        for content in contents {
            payload.extend_from_slice(content);
            checksum.update(content);
        }
        // The same contents have the same id, and others never: what is read again may be cut
        // elsewhere.
        let checksum = checksum.finalize();
        let first = cursor_of(&first).to_string();
        let mut headers = HeaderMap::new();
        headers.insert(MESSAGE_ID, format!("{first}-{}:{subject}:{checksum:08x}", end.sequence));
        headers.insert(FIRST, first);
        headers.insert(END, cursor_of(&end).to_string());
        headers.insert(EVENTS, events.to_string());
        headers.insert(BEFORE, before.to_string());
        Outgoing { subject, headers, payload: payload.into(), events }
    }

    /// What each payload begins with. The clock is that of the latest events.
    fn started(&self) -> Vec<u8> {
        let wall_offset_ns = self.wall_offset_ns.unwrap_or_else(|| ClockMapping::sample().wall_offset_ns);
        let clock = v1::ClockMapping { wall_offset_ns, ..v1::ClockMapping::default() };
        frame(Message::Started(started(&self.host, clock)))
    }
}

/// One group of a batch, whose other fields are these, as a message of the stream.
fn alone(batch: &v1::EventBatch, group: &v1::EventGroup) -> Bytes {
    let tids = group.tids.as_chunks().0.iter().map(|tid| i32::from_le_bytes(*tid)).collect::<Vec<_>>();
    let tasks = batch.tasks.iter().filter(|task| tids.contains(&task.tid)).cloned().collect();
    let own = v1::EventBatch { groups: vec![group.clone()], tasks, ..batch.clone() };
    v1::StreamEventsResponse { message: Some(Message::Batch(own)) }.encode_to_vec().into()
}

/// The rows of a group in pieces that have room, each of at least one row.
fn divided(batch: &v1::EventBatch, (origin, columns): (&Origin, &Columns), room: usize) -> Vec<Piece> {
    let clock = batch.clock.unwrap_or_default();
    let clock = ClockMapping {
        wall_offset_ns: clock.wall_offset_ns,
        error_bound_ns: clock.error_bound_ns,
        sampled_at_ns: clock.sampled_at_ns,
    };
    let tasks = batch.tasks.iter();
    let tasks: Vec<Task> =
        tasks.map(|task| Task { tid: task.tid, comm: task.comm.clone().into(), tgid: task.tgid }).collect();
    let symbols = batch.symbols.iter();
    let symbols: Vec<Symbol> =
        symbols.map(|symbol| Symbol { address: symbol.address, text: symbol.text.as_str().into() }).collect();
    let (projected, pool) = (Projection::default().of(&origin.schema.fields), MessagePool::default());
    let encoded = |rows: &Range<usize>| {
        let rows: Vec<u32> = rows.clone().filter_map(|row| u32::try_from(row).ok()).collect();
        let of_row = |row: &u32| Some(i32::from_le_bytes(columns.tids.row(*row as usize)?.try_into().ok()?));
        let tids: Vec<i32> = rows.iter().filter_map(of_row).collect();
        let tasks: Vec<Task> = tasks.iter().filter(|task| tids.contains(&task.tid)).cloned().collect();
        let envelope = Envelope {
            cpu: batch.cpu,
            sequence: batch.sequence,
            log_events: batch.log_events,
            clock,
            tasks: &tasks,
            symbols: &symbols,
        };
        let (schema_id, rows) = (origin.schema_id, Some(rows.as_slice()));
        encode(&envelope, &[GroupRows { schema_id, columns, rows, projected: &projected }], &pool)
    };
    let mut pieces = Vec::new();
    let mut waiting: Vec<Range<usize>> = std::iter::once(0..columns.len()).collect();
    while let Some(rows) = waiting.pop() {
        let message = encoded(&rows);
        if message.len() > room && rows.len() > 1 {
            let middle = rows.start.midpoint(rows.end);
            waiting.extend([middle..rows.end, rows.start..middle]);
        } else {
            pieces.push(Piece { row: rows.start, events: rows.len() as u64, message });
        }
    }
    pieces
}
