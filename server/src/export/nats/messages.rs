//! NATS messages of a chunk: one for each probe and some 256 KiB of its events, and one that ends
//! it.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use kprobed_event::published::{
    AFTER, DROPPED, END, EVENTS, EXPIRED, FIRST, MESSAGE_ID, NOT_SELECTED, PARTS, READ, Subjects, Topic,
    frames,
};
use kprobed_proto::v1;
use kprobed_proto::v1::stream_events_response::Message;
use prost::Message as _;

use crate::export::read::cursor_of;
use crate::export::{Chunk, ChunkItem, SinkError};
use kprobed_host::kernel::{ClockMapping, HostIdentity, TRACE_CLOCK};
use kprobed_trace::pipeline::{Delivery, Origin, WATERMARK_SLACK};
use kprobed_trace::spool::Cursor;
use kprobed_trace::wire::schema_message;

/// Buffers of messages that are kept for the next ones. A fresh one costs more than what is written
/// to it: the kernel clears its pages.
const SPARE: usize = 16;

/// A message that is to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) subject: String,
    pub(super) id: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) payload: Bytes,
    pub(super) events: u64,
}

/// The messages of a part, without the one that ends it.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) messages: Vec<Outgoing>,
    last: Last,
}

/// Content of the message that ends a part.
#[derive(Debug)]
struct Last {
    first: Cursor,
    end: Cursor,
    terms: [(&'static str, u64); 3],
    payload: Vec<v1::StreamEventsResponse>,
}

/// Makes messages of chunks.
#[derive(Debug)]
pub(super) struct MessageMaker {
    host: HostIdentity,
    subjects: Subjects,
    max_bytes: usize,
    /// Schemas of this run of the daemon, as they stand in messages.
    schemas: HashMap<u32, Arc<Schema>>,
    wall_offset_ns: Option<i64>,
    spare: Vec<BytesMut>,
}

#[derive(Debug)]
struct Schema {
    probe: String,
    frame: Vec<u8>,
}

/// Events of one probe from one batch, and how many.
struct Frame {
    schema: Arc<Schema>,
    message: Bytes,
    events: u64,
}

impl Frame {
    /// Length of the frame, with its length prefix, in bytes.
    fn len(&self) -> usize {
        prost::length_delimiter_len(self.message.len()) + self.message.len()
    }

    fn write(&self, payload: &mut BytesMut) {
        prost::encoding::encode_varint(self.message.len() as u64, payload);
        payload.put_slice(&self.message);
    }
}

/// The events of a probe that are gathered.
#[derive(Debug)]
struct Gathered {
    schema: Arc<Schema>,
    payload: BytesMut,
    first: u64,
    end: u64,
    events: u64,
}

fn response(message: Message) -> v1::StreamEventsResponse {
    v1::StreamEventsResponse { message: Some(message) }
}

fn cursor_message(cursor: &Cursor) -> v1::Cursor {
    cursor_of(cursor).into()
}

fn progress(cursor: &Cursor) -> v1::StreamEventsResponse {
    response(Message::Progress(v1::Progress { cursor: Some(cursor_message(cursor)) }))
}

impl MessageMaker {
    pub(super) fn new(host: HostIdentity, subjects: Subjects, max_bytes: usize) -> Self {
        Self { host, subjects, max_bytes, schemas: HashMap::new(), wall_offset_ns: None, spare: Vec::new() }
    }

    /// The messages of a chunk. None if it is of no place in the log.
    ///
    /// # Errors
    /// When bytes of the daemon itself cannot be read.
    pub(super) fn of(&mut self, chunk: &Chunk) -> Result<Option<Part>, SinkError> {
        let Some(end) = chunk.end else { return Ok(None) };
        let first = chunk.items.iter().find_map(|item| match item {
            ChunkItem::Epoch { cursor, .. } => Some(*cursor),
            _ => None,
        });
        let sequence = end.sequence.saturating_sub(chunk.walked.places);
        let first = first.unwrap_or(Cursor { sequence, ..end });
        let mut place = first;
        let (mut gaps, mut ending, mut watermark) = (Vec::new(), Vec::new(), None);
        let mut messages = Vec::new();
        // In the order in which they begin: with as many probes as a chunk has, looking through
        // them costs little.
        let mut gathered: Vec<Gathered> = Vec::new();
        for item in &chunk.items {
            match item {
                ChunkItem::Epoch { cursor, may_miss } => {
                    self.schemas.clear();
                    self.wall_offset_ns = None;
                    place = *cursor;
                    let (cursor, may_miss) = (Some(cursor_message(cursor)), *may_miss);
                    ending.push(response(Message::Epoch(v1::EpochStarted { cursor, may_miss })));
                }
                ChunkItem::Loss(loss) => {
                    gaps.extend([progress(&place), response(Message::Loss(loss.into()))]);
                }
                ChunkItem::Watermark(watermark_ns) => watermark = Some(*watermark_ns),
                ChunkItem::Events(delivery) => {
                    self.wall_offset_ns = Some(delivery.wall_offset_ns);
                    for frame in self.split(delivery)? {
                        self.gather(&mut gathered, &mut messages, &first, delivery, frame);
                    }
                    place.sequence = place.sequence.max(delivery.sequence + delivery.log_events);
                }
            }
        }
        messages.extend(gathered.into_iter().map(|gathered| self.events(&first, gathered)));
        let started = self.started();
        if !gaps.is_empty() {
            gaps.insert(0, started.clone());
            let payload = frames(&gaps).into();
            messages.push(self.message(&Topic::Loss, (first, end), payload, 0));
        }
        ending.insert(0, started);
        let mark = |watermark_ns| Message::Watermark(v1::Watermark { watermark_ns, late_events: 0 });
        ending.extend(watermark.map(|watermark_ns| response(mark(watermark_ns))));
        ending.push(progress(&end));
        let walked = &chunk.walked;
        let terms = [(READ, walked.places), (NOT_SELECTED, walked.not_selected), (EXPIRED, walked.expired)];
        Ok(Some(Part { messages, last: Last { first, end, terms, payload: ending } }))
    }

    /// The message that ends a part, of whose messages these were taken.
    pub(super) fn end(&self, part: &Part, ids: &[&str], events: u64, dropped: u64) -> Outgoing {
        let Last { first, end, terms, payload } = &part.last;
        let mut message = self.message(&Topic::Ledger, (*first, *end), frames(payload).into(), events);
        message.headers.extend(terms.iter().map(|(name, value)| (*name, value.to_string())));
        message.headers.push((DROPPED, dropped.to_string()));
        if !ids.is_empty() {
            message.headers.push((PARTS, ids.join(" ")));
        }
        message
    }

    /// A heartbeat in the place of a part without events, after this message of the stream.
    pub(super) fn alive(&self, part: &Part, after: u64) -> Outgoing {
        let Last { first, end, payload, .. } = &part.last;
        let mut message = self.message(&Topic::Alive, (*first, *end), frames(payload).into(), 0);
        message.headers.push((AFTER, after.to_string()));
        message
    }

    /// The events of each probe of a batch, as frames.
    fn split(&mut self, delivery: &Delivery) -> Result<Vec<Frame>, SinkError> {
        let unreadable = |why: &dyn std::fmt::Display| SinkError::new("read events", why);
        let message = v1::StreamEventsResponse::decode(delivery.message().clone())
            .map_err(|error| unreadable(&error))?;
        let Some(Message::Batch(mut batch)) = message.message else {
            return Err(unreadable(&"a batch of events is another message"));
        };
        let groups = mem::take(&mut batch.groups);
        let is_alone = groups.len() == 1;
        let mut frames = Vec::with_capacity(groups.len());
        for group in groups {
            let schema = self
                .schema(delivery, group.schema_id)
                .ok_or_else(|| unreadable(&"a batch of events has no schema"))?;
            let events = u64::from(group.rows);
            let message = if is_alone {
                delivery.message().clone()
            } else {
                let tids: Vec<i32> =
                    group.tids.as_chunks().0.iter().map(|tid| i32::from_le_bytes(*tid)).collect();
                let tasks = batch.tasks.iter().filter(|task| tids.contains(&task.tid)).cloned().collect();
                let groups = vec![group];
                let own = v1::EventBatch { groups, tasks, symbols: batch.symbols.clone(), ..batch };
                response(Message::Batch(own)).encode_to_vec().into()
            };
            frames.push(Frame { schema, message, events });
        }
        Ok(frames)
    }

    fn schema(&mut self, delivery: &Delivery, schema_id: u32) -> Option<Arc<Schema>> {
        if let Some(schema) = self.schemas.get(&schema_id) {
            return Some(Arc::clone(schema));
        }
        let origin: &Origin = delivery.origins.iter().find(|origin| origin.schema_id == schema_id)?;
        let message = schema_message(schema_id, &origin.name, origin.uid, &origin.schema, None);
        let frame = response(Message::Schema(message)).encode_length_delimited_to_vec();
        let schema = Arc::new(Schema { probe: origin.name.to_string(), frame });
        self.schemas.insert(schema_id, Arc::clone(&schema));
        Some(schema)
    }

    /// Puts events to those of their probe. What has become large enough is a message.
    fn gather(
        &mut self,
        gathered: &mut Vec<Gathered>,
        messages: &mut Vec<Outgoing>,
        run: &Cursor,
        delivery: &Delivery,
        frame: Frame,
    ) {
        let end = delivery.sequence + delivery.log_events;
        let at = gathered.iter().position(|gathered| Arc::ptr_eq(&gathered.schema, &frame.schema));
        let at = match at {
            Some(at)
                if gathered.get(at).is_some_and(|own| own.payload.len() + frame.len() > self.max_bytes) =>
            {
                messages.push(self.events(run, gathered.remove(at)));
                None
            }
            at => at,
        };
        if let Some(own) = at.and_then(|at| gathered.get_mut(at)) {
            frame.write(&mut own.payload);
            own.end = end;
            own.events += frame.events;
            return;
        }
        let mut payload = self.spare.pop().unwrap_or_default();
        payload.reserve(frame.schema.frame.len() + frame.len());
        payload.put_slice(&frame.schema.frame);
        frame.write(&mut payload);
        let Frame { schema, events, .. } = frame;
        gathered.push(Gathered { schema, payload, first: delivery.sequence, end, events });
    }

    /// Takes the buffers of messages back that were published.
    pub(super) fn reuse(&mut self, part: Part) {
        for message in part.messages {
            if let Ok(mut buffer) = message.payload.try_into_mut()
                && self.spare.len() < SPARE
            {
                buffer.clear();
                self.spare.push(buffer);
            }
        }
    }

    fn events(&self, run: &Cursor, gathered: Gathered) -> Outgoing {
        let Gathered { schema, payload, first, end, events } = gathered;
        let at = |sequence| Cursor { sequence, ..*run };
        let topic = Topic::Events(schema.probe.clone());
        self.message(&topic, (at(first), at(end)), payload.freeze(), events)
    }

    fn message(
        &self,
        topic: &Topic,
        (first, end): (Cursor, Cursor),
        payload: Bytes,
        events: u64,
    ) -> Outgoing {
        let subject = self.subjects.of(&self.host.hostname, topic);
        // The same bytes have the same id, and others never: what is read again may be cut
        // elsewhere.
        let checksum = crc32fast::hash(&payload);
        let first = cursor_of(&first).to_string();
        let id = format!("{first}-{}:{subject}:{checksum:08x}", end.sequence);
        let headers = vec![
            (MESSAGE_ID, id.clone()),
            (FIRST, first),
            (END, cursor_of(&end).to_string()),
            (EVENTS, events.to_string()),
        ];
        Outgoing { subject, id, headers, payload, events }
    }

    /// What a stream begins with. The clock is that of the latest events, so that a part that is
    /// published again is the same.
    fn started(&self) -> v1::StreamEventsResponse {
        let wall_offset_ns = self.wall_offset_ns.unwrap_or_else(|| ClockMapping::sample().wall_offset_ns);
        let clock = v1::ClockMapping { wall_offset_ns, ..v1::ClockMapping::default() };
        response(Message::Started(v1::StreamStarted {
            subscriber_id: 0,
            hostname: self.host.hostname.clone(),
            kernel_release: self.host.kernel_release.clone(),
            clock_name: TRACE_CLOCK.to_owned(),
            clock: Some(clock),
            watermark_slack_ns: u64::try_from(WATERMARK_SLACK.as_nanos()).unwrap_or(u64::MAX),
            filters: Vec::new(),
        }))
    }
}
