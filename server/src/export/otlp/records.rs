//! A buffer of encoded log records or spans, split into parts for requests.
//!
//! Owns the buffer, and which records go into one request. Never sends anything.

use bytes::Bytes;

use super::protobuf::Protobuf;

/// The field of `ScopeLogs` for its log records, and that of `ScopeSpans` for its spans.
const RECORDS: u8 = 2;

/// Records that are to be sent.
#[derive(Debug, Default)]
pub(super) struct Records {
    written: Protobuf,
    /// Written records, while requests refer to them.
    shared: Bytes,
    places: Vec<Place>,
    /// Bytes at the beginning that the receiver has taken.
    taken: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    end: usize,
    is_item: bool,
    /// Of an event: the place in the log after it.
    next: Option<u64>,
}

/// The records of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) records: Bytes,
    /// How many of them are in the account of the exporter.
    pub(super) items: u64,
    /// The place in the log after the last event among them.
    pub(super) next: Option<u64>,
}

impl Records {
    /// One more, written by `write`.
    #[inline]
    pub(super) fn push(&mut self, is_item: bool, write: impl FnOnce(&mut Protobuf)) {
        self.add(is_item, None, write);
    }

    /// One more, of the event at this place in the log.
    #[inline]
    pub(super) fn push_event(&mut self, sequence: u64, write: impl FnOnce(&mut Protobuf)) {
        self.add(true, sequence.checked_add(1), write);
    }

    #[inline]
    fn add(&mut self, is_item: bool, next: Option<u64>, write: impl FnOnce(&mut Protobuf)) {
        if !self.shared.is_empty() {
            self.written = Protobuf::from(Vec::from(std::mem::take(&mut self.shared)));
        }
        self.written.message(RECORDS, write);
        self.places.push(Place { end: self.written.len(), is_item, next });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The receiver has taken a part: the first of those that are left.
    pub(super) fn took(&mut self, part: &Part) {
        self.taken += part.records.len();
    }

    /// All of them that were not taken, in parts of at most so many bytes. One that is larger is alone.
    pub(super) fn parts(&mut self, limit: usize) -> Vec<Part> {
        if self.shared.is_empty() {
            self.shared = std::mem::take(&mut self.written).into_bytes().into();
        }
        let (mut parts, mut begin, mut end, mut items) = (Vec::new(), self.taken, self.taken, 0);
        let mut next = None;
        for place in self.places.iter().filter(|place| place.end > self.taken) {
            if place.end - begin > limit && end > begin {
                parts.push(Part { records: self.shared.slice(begin..end), items, next });
                (begin, items) = (end, 0);
            }
            end = place.end;
            items += u64::from(place.is_item);
            next = place.next.or(next);
        }
        if end > begin {
            parts.push(Part { records: self.shared.slice(begin..end), items, next });
        }
        parts
    }

    /// Forgets them. Their buffer is kept if no request has a part of it any more.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.taken = 0;
        let shared = std::mem::take(&mut self.shared);
        if shared.is_empty() {
            self.written = Protobuf::within(std::mem::take(&mut self.written).into_bytes());
        } else if let Ok(mut buffer) = shared.try_into_mut() {
            // Empty before it is a vector again: nothing is copied then.
            buffer.clear();
            self.written = Protobuf::within(buffer.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use kprobed_otlp::logs::{LogRecord, ScopeLogs};
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn push(records: &mut Records, number: u64) {
        // Every third is none of the account's.
        records.push(!number.is_multiple_of(3), |out| out.fixed64(1, number));
    }

    fn numbers(part: &Part) -> Vec<u64> {
        let scope = ScopeLogs::decode(part.records.clone()).unwrap();
        let number = |record: &LogRecord| record.time_unix_nano;
        scope.log_records.iter().map(number).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]
        #[test]
        fn parts_hold_everything_once_in_order(count in 1..60_u64, more in 0..10_u64, limit in 0..200_usize) {
            let mut records = Records::default();
            (1..=count).for_each(|number| push(&mut records, number));
            // They are not taken, and more come.
            let given = records.parts(limit);
            (count + 1..=count + more).for_each(|number| push(&mut records, number));
            let parts = records.parts(limit);
            for part in &parts {
                prop_assert!(part.records.len() <= limit || numbers(part).len() == 1);
                prop_assert_eq!(part.items, numbers(part).iter().filter(|number| **number % 3 > 0).count() as u64);
            }
            let all = |parts: &[Part]| parts.iter().flat_map(numbers).collect::<Vec<_>>();
            prop_assert_eq!(all(&given), (1..=count).collect::<Vec<_>>());
            prop_assert_eq!(all(&parts), (1..=count + more).collect::<Vec<_>>());
            drop((given, parts));
            records.clear();
            prop_assert!(records.is_empty() && records.parts(limit).is_empty());
        }
    }

    #[test]
    fn the_buffer_is_used_again_when_requests_are_done_with_it() {
        let mut records = Records::default();
        push(&mut records, 1);
        let parts = records.parts(100);
        let buffer = parts[0].records.as_ptr();
        drop(parts);
        records.clear();
        push(&mut records, 2);
        let parts = records.parts(100);
        assert_eq!(parts[0].records.as_ptr(), buffer);
        assert_eq!(numbers(&parts[0]), [2]);
        records.clear();
        push(&mut records, 4);
        assert_eq!((numbers(&parts[0]), numbers(&records.parts(100)[0])), (vec![2], vec![4]));
    }
}
