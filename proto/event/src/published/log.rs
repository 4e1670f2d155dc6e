//! Log of a host, rebuilt from published messages.
//!
//! Owns the rules that make the log exact: a part counts once its end and all messages that it
//! lists have arrived, and each log position counts once. Positions that are in no complete part
//! become a [`Loss`]. Never fetches a message.

use std::collections::{HashMap, HashSet, VecDeque};

use bytes::Bytes;
use thiserror::Error;

use super::{FrameError, Topic, read_frames};
use crate::api;
use crate::api::stream_events_response::Message;
use crate::{Cursor, Decoder, Loss, LossCause, MalformedError, StreamItem};

/// The most bytes that may wait for the end of their part: parts have some megabytes.
const WAITING_BYTES: usize = 64 << 20;

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
    /// Number of events in it; for a ledger message, in the part.
    pub events: u64,
    /// The ids that a ledger message lists.
    pub parts: Vec<String>,
    /// For a sign of life: the message that ended the last part.
    pub after: Option<u64>,
    /// The payload.
    pub payload: Bytes,
}

/// Why a part cannot be read. Later parts can be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LogError {
    /// A payload is not a list of messages.
    #[error("{id}: {error}")]
    Frame {
        /// The message.
        id: String,
        /// Why.
        error: FrameError,
    },
    /// The contents of a payload are malformed.
    #[error("{id}: {error}")]
    Malformed {
        /// The message.
        id: String,
        /// Why.
        error: MalformedError,
    },
}

/// The log of one host, up to the last message taken.
#[derive(Debug, Default)]
pub struct HostLog {
    decoder: Decoder,
    known: HashSet<u32>,
    /// Everything before this position was returned, or reported as missing.
    place: Option<Cursor>,
    /// Messages whose part has not ended, in the order of arrival.
    waiting: VecDeque<Received>,
    waiting_bytes: usize,
    /// The ids of the last part: gaps have no position of their own that would identify repeats.
    last: HashSet<String>,
    repeated: u64,
    incomplete: u64,
}

impl HostLog {
    /// Takes a message. Returns the items of the part that it ends, with events of wanted probes
    /// only. Pass a sign of life after all messages up to the one that it names.
    ///
    /// # Errors
    /// See [`LogError`]. The part is then skipped.
    pub fn take(
        &mut self,
        message: Received,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<StreamItem>, LogError> {
        match message.topic {
            // A sign of life from before the position that was read is ignored.
            Topic::Alive if self.is_old(&message) => return Ok(Vec::new()),
            Topic::Ledger | Topic::Alive => return self.end(&message, is_wanted),
            Topic::Events(_) | Topic::Loss => {}
            Topic::Profile(_) | Topic::State(_) | Topic::Roster => return Ok(Vec::new()),
        }
        self.waiting_bytes += message.payload.len();
        self.waiting.push_back(message);
        while self.waiting_bytes > WAITING_BYTES {
            let Some(oldest) = self.waiting.pop_front() else { break };
            self.waiting_bytes -= oldest.payload.len();
        }
        Ok(Vec::new())
    }

    /// Position at which the log continues.
    pub fn place(&self) -> Option<&Cursor> {
        self.place.as_ref()
    }

    /// Number of messages that were published again, and skipped.
    pub const fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Number of parts with missing messages.
    pub const fn incomplete(&self) -> u64 {
        self.incomplete
    }

    fn end(
        &mut self,
        ledger: &Received,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<StreamItem>, LogError> {
        let mut listed: HashMap<String, Received> = HashMap::new();
        for message in std::mem::take(&mut self.waiting) {
            if ledger.parts.contains(&message.id) {
                // A repeat: the message was published again after the server had forgotten its id.
                self.repeated += u64::from(listed.insert(message.id.clone(), message).is_some());
            } else if is_run(&message.first, &ledger.end) && message.first.sequence >= ledger.end.sequence {
                // A message of a part that was not completed, and that will be published again in
                // smaller parts.
                self.waiting.push_back(message);
            } else {
                self.repeated += 1;
            }
        }
        self.waiting_bytes = self.waiting.iter().map(|message| message.payload.len()).sum();
        if self.is_old(ledger) {
            self.repeated += 1 + listed.len() as u64;
            return Ok(Vec::new());
        }
        let place = self.place.replace(ledger.end.clone());
        let is_first = place.is_none();
        let is_other_run = place.as_ref().is_none_or(|place| !is_run(place, &ledger.end));
        let mut items = self.opening(ledger, is_other_run, is_first)?;
        let there: u64 = listed.values().map(|message| message.events).sum();
        let is_whole = ledger.parts.iter().all(|id| listed.contains_key(id));
        if !is_whole && is_first {
            // The part began before the position at which reading began.
            return Ok(items);
        }
        let begin = place.filter(|_| !is_other_run).map_or(ledger.first.sequence, |place| place.sequence);
        let skipped = ledger.first.sequence.saturating_sub(begin);
        items.extend((skipped > 0).then(|| missing(skipped)));
        if !is_whole {
            self.incomplete += 1;
            items.push(missing(ledger.events.saturating_sub(there)));
        }
        let messages =
            ledger.parts.iter().filter(|id| !self.last.contains(*id)).filter_map(|id| listed.get(id));
        let messages: Vec<&Received> = messages.collect();
        self.entries(&messages, begin, is_wanted, &mut items)?;
        self.closing(ledger, &mut items)?;
        self.last = ledger.parts.iter().chain([&ledger.id]).cloned().collect();
        Ok(items)
    }

    /// Whether all events of a part were returned already.
    fn is_old(&self, ledger: &Received) -> bool {
        let Some(place) = &self.place else { return false };
        if self.last.contains(&ledger.id) {
            return true;
        }
        let is_earlier_run = place.boot_id == ledger.end.boot_id && ledger.end.epoch < place.epoch;
        let is_behind = ledger.end.sequence < place.sequence
            || (ledger.end.sequence == place.sequence && ledger.first.sequence < place.sequence);
        is_earlier_run || (is_run(place, &ledger.end) && is_behind)
    }

    fn decode(&mut self, id: &str, message: Message) -> Result<Option<StreamItem>, LogError> {
        let response = api::StreamEventsResponse { message: Some(message) };
        self.decoder.item(response).map_err(|error| LogError::Malformed { id: id.to_owned(), error })
    }

    /// Items before the events of a part.
    fn opening(
        &mut self,
        ledger: &Received,
        is_other_run: bool,
        is_first: bool,
    ) -> Result<Vec<StreamItem>, LogError> {
        let mut items = Vec::new();
        let mut epoch = None;
        for message in messages(ledger)? {
            match message {
                Message::Started(_) => {
                    let started = self.decode(&ledger.id, message)?;
                    if is_other_run {
                        items.extend(started);
                    }
                }
                Message::Epoch(_) => epoch = Some(message),
                _ => {}
            }
        }
        if !is_other_run {
            return Ok(items);
        }
        self.known.clear();
        self.last.clear();
        // For a reader that begins here, no event is missing.
        let begin = || {
            let cursor = Some(ledger.first.clone().into());
            Message::Epoch(api::EpochStarted { cursor, may_miss: !is_first })
        };
        items.extend(self.decode(&ledger.id, epoch.unwrap_or_else(begin))?);
        Ok(items)
    }

    /// Events and gaps, in the order of the log from a position on.
    fn entries(
        &mut self,
        received: &[&Received],
        begin: u64,
        is_wanted: impl Fn(&str) -> bool,
        items: &mut Vec<StreamItem>,
    ) -> Result<(), LogError> {
        // Gaps precede the events at their position.
        let mut entries: Vec<((u64, u8), &str, Message)> = Vec::new();
        for message in received {
            if let Topic::Events(probe) = &message.topic
                && !is_wanted(probe)
            {
                continue;
            }
            let mut place = message.first.sequence;
            for content in messages(message)? {
                match content {
                    Message::Schema(schema) if self.known.insert(schema.schema_id) => {
                        items.extend(self.decode(&message.id, Message::Schema(schema))?);
                    }
                    Message::Started(_) => drop(self.decode(&message.id, content)?),
                    Message::Progress(progress) => {
                        place = progress.cursor.map_or(place, |cursor| cursor.sequence);
                    }
                    Message::Loss(_) => entries.push(((place, 0), &message.id, content)),
                    Message::Batch(batch) if batch.sequence >= begin => {
                        entries.push(((batch.sequence, 1), &message.id, Message::Batch(batch)));
                    }
                    _ => {}
                }
            }
        }
        entries.sort_by_key(|(order, ..)| *order);
        for (_, id, entry) in entries {
            items.extend(self.decode(id, entry)?);
        }
        Ok(())
    }

    /// Items after the events of a part.
    fn closing(&mut self, ledger: &Received, items: &mut Vec<StreamItem>) -> Result<(), LogError> {
        for message in messages(ledger)? {
            if matches!(message, Message::Watermark(_) | Message::Progress(_)) {
                items.extend(self.decode(&ledger.id, message)?);
            }
        }
        Ok(())
    }
}

fn messages(received: &Received) -> Result<Vec<Message>, LogError> {
    let read = read_frames(received.payload.clone());
    let read = read.map_err(|error| LogError::Frame { id: received.id.clone(), error })?;
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
