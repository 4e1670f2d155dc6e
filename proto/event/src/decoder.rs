//! Stream decoder: from the messages of an event stream to its items.
//!
//! Owns the state between messages: schemas, the latest clock mapping, and the position of the
//! stream. Never knows where messages come from: a connection, a recording, or the daemon itself.

use std::collections::HashMap;
use std::sync::Arc;

use thiserror::Error;

use crate::api;
use crate::api::stream_events_response::Message;
use crate::batch::Batch;
use crate::cursor::Cursor;
use crate::loss::Loss;
use crate::schema::Schema;

/// One item of a stream.
#[derive(Clone, Debug)]
pub enum StreamItem {
    /// The first item.
    Started(api::StreamStarted),
    /// The second item, and again whenever the history continues with the next run of the daemon.
    /// Earlier schemas are no longer valid.
    Epoch(Epoch),
    /// A schema, before the first batch that needs it.
    Schema(Arc<Schema>),
    /// Events.
    Batch(Batch),
    /// A gap, before the first event that follows it.
    Loss(Loss),
    /// The end of the history: events after this are new.
    CaughtUp(Cursor),
    /// Only in a stream in the order of time: all earlier events were sent.
    Watermark(api::Watermark),
}

/// Beginning of a run of the daemon: at the start of a stream, or within the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// The position at which the stream continues.
    pub cursor: Cursor,
    /// Events may be missing before this: the previous run of the daemon did not stop cleanly, or
    /// its end is not in the history.
    pub may_miss: bool,
}

/// A message that contradicts the API or its schema: what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct MalformedError(pub(crate) String);

/// State of a stream between messages.
#[derive(Debug, Default)]
pub struct Decoder {
    schemas: HashMap<u32, Arc<Schema>>,
    wall_offset_ns: i64,
    cursor: Option<Cursor>,
}

impl Decoder {
    /// Decodes a message into an item. `None` for one that only reports the position of the stream.
    ///
    /// # Errors
    /// [`MalformedError`]; the state stays as it was, and the next message can be read.
    pub fn item(
        &mut self,
        response: api::StreamEventsResponse,
    ) -> Result<Option<StreamItem>, MalformedError> {
        let malformed = |message: &str| MalformedError(message.to_owned());
        let empty = || malformed("stream message without content");
        Ok(Some(match response.message.ok_or_else(empty)? {
            Message::Started(started) => {
                self.learn_clock(started.clock.as_ref());
                StreamItem::Started(started)
            }
            Message::Epoch(epoch) => {
                self.schemas.clear();
                let nowhere = || malformed("`epoch` without a cursor");
                let cursor = self.go_on(epoch.cursor.ok_or_else(nowhere)?);
                StreamItem::Epoch(Epoch { cursor, may_miss: epoch.may_miss })
            }
            Message::Schema(schema) => {
                let schema = Arc::new(Schema::try_from(schema)?);
                self.schemas.insert(schema.id(), Arc::clone(&schema));
                StreamItem::Schema(schema)
            }
            Message::Batch(batch) => {
                self.learn_clock(batch.clock.as_ref());
                let batch = Batch::new(batch, &self.schemas, self.wall_offset_ns)?;
                if let Some(cursor) = &mut self.cursor {
                    cursor.sequence = cursor.sequence.max(batch.end_sequence());
                }
                StreamItem::Batch(batch)
            }
            Message::Rows(_) => return Err(malformed("events come as rows, and not in columns")),
            Message::Loss(loss) => StreamItem::Loss(Loss::new(&loss, self.wall_offset_ns)),
            Message::CaughtUp(caught_up) => StreamItem::CaughtUp(self.go_on(caught_up)),
            Message::Watermark(watermark) => StreamItem::Watermark(watermark),
            Message::Progress(progress) => {
                self.go_on(progress);
                return Ok(None);
            }
        }))
    }

    /// The position at which the stream continues: after everything that was read so far. `None`
    /// before [`StreamItem::Epoch`].
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }

    fn go_on(&mut self, cursor: api::Cursor) -> Cursor {
        self.cursor.insert(cursor.into()).clone()
    }

    fn learn_clock(&mut self, clock: Option<&api::ClockMapping>) {
        if let Some(clock) = clock {
            self.wall_offset_ns = clock.wall_offset_ns;
        }
    }
}
