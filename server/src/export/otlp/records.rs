//! Log records or spans that wait for the receiver, in parts for requests.
//!
//! Owns which of them go into one request, and that they stay until the receiver has taken them.
//! Never sends anything.

use std::collections::VecDeque;

use prost::Message;
use prost::length_delimiter_len;

/// Records that are to be sent.
#[derive(Debug, Default)]
pub(super) struct Records<R> {
    waiting: VecDeque<Record<R>>,
}

#[derive(Debug)]
struct Record<R> {
    message: R,
    /// Bytes that it takes in a request.
    bytes: usize,
    is_item: bool,
    /// Of an event: the place in the log after it.
    next: Option<u64>,
}

/// The records of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part<R> {
    pub(super) records: Vec<R>,
    /// How many of them are in the account of the exporter.
    pub(super) items: u64,
    /// The place in the log after the last event among them.
    pub(super) next: Option<u64>,
}

impl<R: Message + Clone> Records<R> {
    /// One more. Of an event: with the place in the log after it.
    pub(super) fn push(&mut self, is_item: bool, next: Option<u64>, message: R) {
        let length = message.encoded_len();
        // The key of its field is one byte.
        let bytes = 1 + length_delimiter_len(length) + length;
        self.waiting.push_back(Record { message, bytes, is_item, next });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The first of them, of at most so many bytes. One that is larger is alone.
    pub(super) fn part(&self, limit: usize) -> Option<Part<R>> {
        let mut part = Part { records: Vec::new(), items: 0, next: None };
        let mut bytes = 0;
        for record in &self.waiting {
            bytes += record.bytes;
            if bytes > limit && !part.records.is_empty() {
                break;
            }
            part.records.push(record.message.clone());
            part.items += u64::from(record.is_item);
            part.next = record.next.or(part.next);
        }
        (!part.records.is_empty()).then_some(part)
    }

    /// The receiver has taken a part of so many records: the first of those that wait.
    pub(super) fn took(&mut self, records: usize) {
        self.waiting.drain(..records.min(self.waiting.len()));
    }

    /// Forgets them.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use kprobed_otlp::logs::{LogRecord, ScopeLogs};
    use proptest::prelude::*;

    use super::*;

    fn push(records: &mut Records<LogRecord>, number: u64) {
        // Every third is none of the account's.
        let record = LogRecord { time_unix_nano: number, ..LogRecord::default() };
        records.push(!number.is_multiple_of(3), None, record);
    }

    fn numbers(part: &Part<LogRecord>) -> Vec<u64> {
        part.records.iter().map(|record| record.time_unix_nano).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]
        #[test]
        fn parts_hold_everything_once_in_order(count in 1..60_u64, more in 0..10_u64, limit in 0..200_usize) {
            let mut records = Records::default();
            (1..=count).for_each(|number| push(&mut records, number));
            // The first part is not taken, and more come.
            let given = records.part(limit).unwrap();
            (count + 1..=count + more).for_each(|number| push(&mut records, number));
            prop_assert!(numbers(&records.part(limit).unwrap()).starts_with(&numbers(&given)));
            let mut all = Vec::new();
            while let Some(part) = records.part(limit) {
                records.took(part.records.len());
                let numbers = numbers(&part);
                prop_assert_eq!(part.items, numbers.iter().filter(|number| **number % 3 > 0).count() as u64);
                let scope = ScopeLogs { log_records: part.records, ..ScopeLogs::default() };
                prop_assert!(scope.encoded_len() <= limit || numbers.len() == 1);
                all.extend(numbers);
            }
            prop_assert_eq!(all, (1..=count + more).collect::<Vec<_>>());
            prop_assert!(records.is_empty());
        }
    }
}
