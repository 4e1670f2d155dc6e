//! Start and end of a stream: conversion between the wire and the feed.
//!
//! Owns these messages. Never reads the log.

use kprobed_proto::v1;
use kprobed_proto::v1::stream_start::Start;

use kprobed_control::error::{Error, Reason};
use kprobed_trace::feed::{FeedError, FeedStart};
use kprobed_trace::history::{HistoryError, HistoryStart};
use kprobed_trace::spool::{BootId, Cursor, SpoolError};

/// Where a client wants its stream to begin.
pub(super) fn of(start: Option<v1::StreamStart>) -> Result<FeedStart, Error> {
    let start = start.unwrap_or_default();
    Ok(FeedStart { place: start.start.map(place_of).transpose()?, until_now: start.until_now })
}

fn place_of(start: Start) -> Result<HistoryStart, Error> {
    Ok(match start {
        Start::Oldest(true) => HistoryStart::Oldest,
        Start::Oldest(false) => {
            return Err(Error::bad_argument("start.oldest", "`start.oldest` can only be true"));
        }
        Start::LastEvents(events) => HistoryStart::Last(events),
        Start::Since(time) => {
            let bad =
                || Error::bad_argument("start.since", "`start.since` must be a time between 1970 and 2554");
            let seconds = u64::try_from(time.seconds).map_err(|_negative| bad())?;
            let nanos = u64::try_from(time.nanos).map_err(|_negative| bad())?;
            let ns = seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(nanos));
            HistoryStart::SinceWall(ns.ok_or_else(bad)?)
        }
        Start::Cursor(cursor) => {
            let boot_id = cursor.boot_id.parse::<BootId>();
            let field = "start.cursor.boot_id";
            let boot_id =
                boot_id.map_err(|error| Error::bad_argument(field, format!("`{field}`: {error}")))?;
            HistoryStart::Cursor(Cursor { boot_id, epoch: cursor.epoch, sequence: cursor.sequence })
        }
    })
}

/// Why a stream did not begin, or how it ended.
pub(super) fn ended(error: FeedError) -> Error {
    match error {
        FeedError::NoHistory => Error::new(
            Reason::NO_HISTORY,
            "this daemon keeps no history: set `spool.enabled` in its configuration, or start with the present",
        )
        .field("start"),
        FeedError::AheadOfLog { .. } => {
            Error::bad_argument("start.cursor", format!("`start.cursor` is ahead of the log: {error}"))
        }
        FeedError::History(HistoryError::Spool(error @ SpoolError::ForeignCursor { .. })) => {
            Error::new(Reason::FOREIGN_CURSOR, format!("`start.cursor`: {error}")).field("start.cursor")
        }
        FeedError::History(error @ HistoryError::Ended) => Error::caused(Reason::STOPPING, error),
        FeedError::History(error) => {
            tracing::error!(%error, "cannot read the history");
            Error::caused(Reason::HISTORY, error)
        }
        FeedError::Stopping => Error::stopping(),
        FeedError::Overflowed { sequence } => {
            let message = format!(
                "the queue of this subscriber was full: the daemon ended the stream as asked, at log position {sequence}"
            );
            Error::new(Reason::QUEUE_FULL, message).with("sequence", &sequence)
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::export::cursor_of;

    fn start(start: Start) -> v1::StreamStart {
        v1::StreamStart { start: Some(start), until_now: true }
    }

    #[test]
    fn places_are_read() {
        let boot_id = "0b5f3a52-3c1b-4a0e-9d5e-6f1c2d3e4f50".to_owned();
        let cursor = v1::Cursor { boot_id, epoch: 3, sequence: 4 };
        let read = of(Some(start(Start::Cursor(cursor.clone())))).unwrap();
        let Some(HistoryStart::Cursor(place)) = read.place else { panic!("{read:?}") };
        assert_eq!((v1::Cursor::from(cursor_of(&place)), read.until_now), (cursor, true));
        let since = prost_types::Timestamp { seconds: 2, nanos: 3 };
        let read = of(Some(start(Start::Since(since)))).unwrap();
        assert_eq!(read.place, Some(HistoryStart::SinceWall(2_000_000_003)));
        assert_eq!(of(None).unwrap(), FeedStart::default());
    }

    #[test]
    fn what_is_no_place_is_refused_with_its_field() {
        let no_boot = v1::Cursor { boot_id: "x".to_owned(), epoch: 3, sequence: 4 };
        let before_1970 = prost_types::Timestamp { seconds: -1, nanos: 0 };
        for (place, field) in [
            (Start::Cursor(no_boot), "`start.cursor.boot_id`"),
            (Start::Since(before_1970), "`start.since`"),
            (Start::Oldest(false), "`start.oldest`"),
        ] {
            let refused = of(Some(start(place))).unwrap_err();
            assert_eq!(refused.reason.code, Code::InvalidArgument);
            assert!(refused.message.starts_with(field), "{refused}");
        }
        let refused = ended(FeedError::AheadOfLog { log: 4, cursor: 5 });
        assert_eq!(refused.reason.code, Code::InvalidArgument);
        assert!(ended(FeedError::NoHistory).message.contains("spool.enabled"));
    }

    #[test]
    fn every_end_has_a_reason() {
        for (error, code, reason) in [
            (FeedError::NoHistory, Code::FailedPrecondition, "NO_HISTORY"),
            (FeedError::History(HistoryError::Ended), Code::Unavailable, "STOPPING"),
            (FeedError::Overflowed { sequence: 7 }, Code::ResourceExhausted, "QUEUE_FULL"),
        ] {
            let ended = ended(error);
            assert_eq!((ended.reason.code, ended.reason.name), (code, reason), "{ended:?}");
            assert!(!ended.message.is_empty() && !ended.message.ends_with('.'), "{ended:?}");
        }
        assert_eq!(ended(FeedError::Overflowed { sequence: 7 }).value("sequence"), Some("7"));
    }
}
