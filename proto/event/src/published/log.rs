//! Log of a host, rebuilt from published messages.
//!
//! Owns the rules that make the log exact: each row of each batch counts once, and each message says
//! how many events were published before it, so that what is missing becomes a [`Loss`] before the
//! event that follows it. Never fetches a message.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use prost::Message as _;
use thiserror::Error;

use super::{Topic, read_frames};
use crate::api;
use crate::api::stream_events_response::Message;
use crate::{Cursor, Decoder, Loss, LossCause, StreamItem};

/// A message of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The topic.
    pub topic: Topic,
    /// Its id.
    pub id: String,
    /// Position at which it begins.
    pub first: Cursor,
    /// Position at which it ends.
    pub end: Cursor,
    /// Number of events in it; for an account, of the messages that it is about.
    pub events: u64,
    /// How many events of this run of the daemon were published before.
    pub before: u64,
    /// For events: the first row.
    pub row: u64,
    /// For a sign of life: the last account of the stream.
    pub after: Option<u64>,
    /// The payload.
    pub payload: Bytes,
}

/// Why a message cannot be read, after its id. Later ones can be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct LogError(String);

/// The log of one host, up to the last message taken.
#[derive(Debug, Default)]
pub struct HostLog {
    decoder: Decoder,
    known: HashSet<u32>,
    /// The end of the last account.
    place: Option<Cursor>,
    /// Where the last message with events began. What is published again is before it, or there.
    reached: u64,
    /// How many rows of each schema the batch there has had.
    rows: HashMap<u32, u64>,
    /// The gaps there: they have no position of their own that would identify repeats.
    gaps: HashSet<Vec<u8>>,
    /// Events of this run that were returned, not wanted, or reported as missing.
    total: u64,
    /// The id of the last account.
    last: String,
    repeated: u64,
    incomplete: u64,
}

impl HostLog {
    /// Takes a message, in the order of the stream. Returns its items, if they are new; of events only
    /// those of wanted probes. Pass a sign of life after all messages up to the one that it names.
    ///
    /// # Errors
    /// See [`LogError`]. The message is then skipped.
    pub fn take(
        &mut self,
        message: &Received,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<StreamItem>, LogError> {
        if self.is_of_earlier_run(message) {
            return Ok(self.repeat(message));
        }
        let contents = contents(message)?;
        let mut items = Vec::new();
        if !self.place.as_ref().is_some_and(|place| is_run(place, &message.end)) {
            self.begin_run(message, &contents, &mut items)?;
        }
        match &message.topic {
            Topic::Epoch => {}
            Topic::Events(probe) => {
                let is_wanted = is_wanted(probe);
                return self.events(message, contents, is_wanted, items);
            }
            Topic::Loss => {
                let gap = contents.iter().find_map(|content| match content {
                    Message::Loss(gap) => Some(gap.encode_to_vec()),
                    _ => None,
                });
                let is_there = self.reach(message.first.sequence);
                if !is_there || gap.is_none_or(|gap| !self.gaps.insert(gap)) {
                    return Ok(self.repeat(message));
                }
                self.count(message.before, 0, &mut items);
                for content in contents {
                    // The clock before it is needed to read it.
                    let item = self.decode(&message.id, content)?;
                    items.extend(item.filter(|item| matches!(item, StreamItem::Loss(_))));
                }
            }
            Topic::Ledger | Topic::Alive => {
                if self.is_old_account(message) {
                    return Ok(self.repeat(message));
                }
                self.count(message.before, 0, &mut items);
                self.place = Some(message.end.clone());
                if message.topic == Topic::Ledger {
                    self.last.clone_from(&message.id);
                }
                for content in contents {
                    if matches!(content, Message::Watermark(_) | Message::Progress(_)) {
                        items.extend(self.decode(&message.id, content)?);
                    }
                }
            }
        }
        Ok(items)
    }

    /// Everything before this position was returned, or reported as missing. None before the first
    /// message.
    pub fn place(&self) -> Option<&Cursor> {
        self.place.as_ref()
    }

    /// Number of messages that were published again, and skipped.
    pub const fn repeated(&self) -> u64 {
        self.repeated
    }

    /// How often something was missing.
    pub const fn incomplete(&self) -> u64 {
        self.incomplete
    }

    /// A sign of life is not in the stream, so that it is no repeat.
    fn repeat(&mut self, message: &Received) -> Vec<StreamItem> {
        self.repeated += u64::from(message.topic != Topic::Alive);
        Vec::new()
    }

    fn is_of_earlier_run(&self, message: &Received) -> bool {
        let earlier =
            |place: &Cursor| place.boot_id == message.end.boot_id && message.end.epoch < place.epoch;
        self.place.as_ref().is_some_and(earlier)
    }

    /// Whether a message begins no earlier than others did. After a later one, nothing more of a
    /// position is expected.
    fn reach(&mut self, sequence: u64) -> bool {
        if sequence > self.reached {
            self.reached = sequence;
            self.rows.clear();
            self.gaps.clear();
        }
        sequence == self.reached
    }

    fn decode(&mut self, id: &str, message: Message) -> Result<Option<StreamItem>, LogError> {
        let response = api::StreamEventsResponse { message: Some(message) };
        self.decoder.item(response).map_err(|error| LogError(format!("{id}: {error}")))
    }

    /// Another run of the daemon, or the first one that is read, with the items that it begins with.
    fn begin_run(
        &mut self,
        message: &Received,
        contents: &[Message],
        items: &mut Vec<StreamItem>,
    ) -> Result<(), LogError> {
        let is_first = self.place.is_none();
        let content = |is_it: fn(&Message) -> bool| contents.iter().find(|content| is_it(content)).cloned();
        if let Some(started) = content(|content| matches!(content, Message::Started(_))) {
            items.extend(self.decode(&message.id, started)?);
        }
        let begin = || {
            let cursor = Some(message.first.clone().into());
            Message::Epoch(api::EpochStarted { cursor, may_miss: !is_first })
        };
        let epoch = content(|content| matches!(content, Message::Epoch(_)));
        items.extend(self.decode(&message.id, epoch.unwrap_or_else(begin))?);
        self.place = Some(message.first.clone());
        self.reached = 0;
        self.known.clear();
        self.rows.clear();
        self.gaps.clear();
        // Who begins here does not miss what was published before.
        self.total = if is_first { message.before } else { 0 };
        Ok(())
    }

    fn events(
        &mut self,
        message: &Received,
        contents: Vec<Message>,
        is_wanted: bool,
        mut items: Vec<StreamItem>,
    ) -> Result<Vec<StreamItem>, LogError> {
        let schema_id = contents.iter().find_map(|content| match content {
            Message::Batch(batch) => batch.groups.first().map(|group| group.schema_id),
            _ => None,
        });
        let end = message.row.saturating_add(message.events);
        let is_there = self.reach(message.first.sequence);
        let had = self.rows.entry(schema_id.unwrap_or_default()).or_default();
        let before = if is_there { std::mem::replace(had, end.max(*had)) } else { u64::MAX };
        if before >= end {
            return Ok(self.repeat(message));
        }
        // The first of these rows came in another piece.
        let known = before.saturating_sub(message.row);
        self.count(message.before.saturating_add(known), message.events.saturating_sub(known), &mut items);
        if !is_wanted {
            return Ok(items);
        }
        for content in contents {
            match content {
                Message::Schema(schema) if self.known.insert(schema.schema_id) => {
                    items.extend(self.decode(&message.id, Message::Schema(schema))?);
                }
                Message::Batch(_) => {
                    let mut row = 0;
                    let is_new = |_: &crate::Row<'_>| {
                        row += 1;
                        row > known
                    };
                    items.extend(self.decode(&message.id, content)?.map(|item| match item {
                        StreamItem::Batch(batch) if known > 0 => StreamItem::Batch(batch.select(is_new)),
                        item => item,
                    }));
                }
                _ => {}
            }
        }
        Ok(items)
    }

    /// Whether what an account is about was accounted for before.
    fn is_old_account(&self, account: &Received) -> bool {
        let Some(place) = self.place.as_ref().map(|place| place.sequence) else { return false };
        let is_behind =
            account.end.sequence < place || (account.end.sequence == place && account.first.sequence < place);
        account.id == self.last || is_behind
    }

    /// Counts events that come after so many others. Those of them that did not come are missing.
    fn count(&mut self, before: u64, events: u64, items: &mut Vec<StreamItem>) {
        if before > self.total {
            self.incomplete += 1;
            items.push(missing(before - self.total));
        }
        // An account or a gap may be of a place that was passed: events after it came before it was published.
        self.total = if events > 0 { before.saturating_add(events) } else { self.total.max(before) };
    }
}

fn contents(received: &Received) -> Result<Vec<Message>, LogError> {
    let malformed = |error: prost::DecodeError| {
        let id = &received.id;
        LogError(format!("{id}: the payload is not a sequence of stream messages: {error}"))
    };
    let read = read_frames(received.payload.clone()).map_err(malformed)?;
    Ok(read.into_iter().filter_map(|response| response.message).collect())
}

fn is_run(a: &Cursor, b: &Cursor) -> bool {
    (&a.boot_id, a.epoch) == (&b.boot_id, b.epoch)
}

/// Events that were published and are not in the stream.
fn missing(count: u64) -> StreamItem {
    StreamItem::Loss(Loss {
        cause: LossCause::Expired,
        cpu: None,
        count: Some(count),
        before_ns: None,
        before_wall_ns: None,
        gaps: 1,
        pause: None,
    })
}

#[cfg(test)]
mod tests;
