use proptest::prelude::*;

use super::*;

fn at(epoch: u64, sequence: u64) -> Cursor {
    Cursor { boot_id: "b".to_owned(), epoch, sequence }
}

fn payload(contents: Vec<Message>) -> Bytes {
    let frames = contents.into_iter().flat_map(|message| {
        api::StreamEventsResponse { message: Some(message) }.encode_length_delimited_to_vec()
    });
    frames.collect::<Vec<u8>>().into()
}

/// Rows of a batch that has one event for each of these positions, all of one probe. Each event has its position as its
/// time, and every position before is of an event.
fn rows(epoch: u64, places: std::ops::Range<u64>, rows: std::ops::Range<u64>) -> Received {
    let count = u32::try_from(rows.end - rows.start).unwrap();
    let schema = api::EventSchema { schema_id: 1, probe: "a/b".to_owned(), ..Default::default() };
    let group = api::EventGroup {
        schema_id: 1,
        rows: count,
        base_ns: places.start + rows.start,
        offsets_ns: (0..count).flat_map(u32::to_le_bytes).collect(),
        ..Default::default()
    };
    let log_events = u32::try_from(places.end - places.start).unwrap();
    let batch =
        api::EventBatch { sequence: places.start, log_events, groups: vec![group], ..Default::default() };
    Received {
        topic: Topic::Events("a/b".to_owned()),
        id: format!("{epoch}:{places:?}:{rows:?}"),
        first: at(epoch, places.start),
        end: at(epoch, places.end),
        events: count.into(),
        before: places.start + rows.start,
        row: rows.start,
        after: None,
        payload: payload(vec![Message::Schema(schema), Message::Batch(batch)]),
    }
}

/// A message with events at these positions.
fn events(epoch: u64, places: std::ops::Range<u64>) -> Received {
    let all = 0..places.end - places.start;
    rows(epoch, places, all)
}

fn gap(epoch: u64, place: u64) -> Received {
    let loss = api::Loss { cause: LossCause::Overrun.into(), count: Some(1000), ..Default::default() };
    Received {
        topic: Topic::Loss,
        id: format!("{epoch}:{place}:loss"),
        events: 0,
        payload: payload(vec![Message::Loss(loss)]),
        end: at(epoch, place),
        ..events(epoch, place..place + 1)
    }
}

/// The account of these positions.
fn ledger(epoch: u64, places: std::ops::Range<u64>) -> Received {
    let end = at(epoch, places.end);
    let progress = Message::Progress(end.clone().into());
    Received {
        topic: Topic::Ledger,
        id: format!("{epoch}:{places:?}:ledger"),
        events: places.end - places.start,
        before: places.end,
        payload: payload(vec![progress]),
        end,
        ..events(epoch, places)
    }
}

/// The events, by position, and what is lost, each with how many events were seen before.
fn read(log: &mut HostLog, messages: impl IntoIterator<Item = Received>) -> (Vec<u64>, Vec<(usize, u64)>) {
    let (mut seen, mut lost) = (Vec::new(), Vec::new());
    for message in messages {
        for item in log.take(&message, |_| true).unwrap() {
            match item {
                StreamItem::Batch(batch) => seen.extend(batch.rows().map(|row| row.timestamp_ns())),
                StreamItem::Loss(loss) => lost.push((seen.len(), loss.count.unwrap())),
                _ => {}
            }
        }
    }
    (seen, lost)
}

#[test]
fn what_is_missing_is_told_before_what_follows() {
    let mut log = HostLog::default();
    let whole = [events(1, 0..3), gap(1, 3), events(1, 3..5), ledger(1, 0..5)];
    assert_eq!(read(&mut log, whole.clone()), ((0..5).collect(), vec![(3, 1000)]));
    // The middle of the next ones is gone, and the end.
    let some = [events(1, 5..9), events(1, 12..14), ledger(1, 5..20)];
    assert_eq!(read(&mut log, some), ((5..9).chain(12..14).collect(), vec![(4, 3), (6, 6)]));
    assert_eq!((log.incomplete(), log.place().unwrap().sequence), (2, 20));
    // What was published again counts once.
    assert_eq!(log.repeated(), 0);
    assert_eq!(read(&mut log, whole), (vec![], vec![]));
    assert_eq!(log.repeated(), 4);
    assert_eq!(read(&mut log, [gap(1, 20), gap(1, 20), events(1, 20..21)]), (vec![20], vec![(0, 1000)]));
    // Another run of the daemon counts anew, and nothing of the one before counts any more.
    assert_eq!(read(&mut log, [events(2, 0..2), ledger(2, 0..2)]), (vec![0, 1], vec![]));
    assert_eq!(read(&mut log, [events(1, 21..22)]), (vec![], vec![]));
}

#[test]
fn who_begins_in_the_middle_misses_nothing_before() {
    for begin in [events(1, 3..5), ledger(1, 0..5), gap(1, 5)] {
        let mut log = HostLog::default();
        read(&mut log, [begin]);
        assert_eq!(read(&mut log, [events(1, 5..6), ledger(1, 5..6)]), (vec![5], vec![]));
        assert_eq!(log.incomplete(), 0);
    }
}

#[test]
fn pieces_of_a_batch_are_put_together_however_they_were_cut() {
    let mut log = HostLog::default();
    let of = |part: std::ops::Range<u64>| rows(1, 0..10, part);
    assert_eq!(read(&mut log, [of(0..4), of(4..7)]), ((0..7).collect(), vec![]));
    // Once more, by a server that allows other sizes.
    assert_eq!(read(&mut log, [of(0..5), of(5..10)]), ((7..10).collect(), vec![]));
    assert_eq!(read(&mut log, [events(1, 0..10), ledger(1, 0..10)]), (vec![], vec![]));
    // One is missing.
    let mut log = HostLog::default();
    assert_eq!(read(&mut log, [of(0..4), of(7..10)]), ((0..4).chain(7..10).collect(), vec![(4, 3)]));
}

#[test]
fn a_payload_that_is_none_says_which() {
    let mut bad = events(1, 0..1);
    bad.payload = vec![0xff; 9].into();
    let mut log = HostLog::default();
    let error = log.take(&bad, |_| true).unwrap_err();
    assert!(error.to_string().starts_with(&bad.id), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
    /// A daemon that continues from the last account in the stream after each failure, whatever of the messages after
    /// it is there, and a server that drops ids that it knows.
    #[test]
    fn every_event_is_seen_once(rounds in proptest::collection::vec((1..6_u64, 1..4_u64, 1..4_u64, 0..8_usize, any::<bool>()), 1..30)) {
        let mut stream: Vec<Received> = Vec::new();
        let (mut place, mut reached) = (0, 0);
        for (batches, size, piece, fails_after, forgets) in rounds {
            // Batches are where they were, however many of them are published at once.
            let end = place + batches * 6;
            let of_batch = |first: u64| {
                let cuts = (0..6).step_by(usize::try_from(piece * size).unwrap());
                cuts.map(move |row| rows(1, first..first + 6, row..6.min(row + piece * size)))
            };
            let messages = (place..end).step_by(6).flat_map(of_batch).chain([ledger(1, place..end)]);
            for (number, message) in messages.enumerate() {
                if number == fails_after {
                    break;
                }
                match message.topic {
                    Topic::Ledger => place = message.end.sequence,
                    _ => reached = reached.max(message.before + message.events),
                }
                let is_known = stream.iter().any(|other| other.id == message.id);
                if forgets || !is_known {
                    stream.push(message);
                }
            }
        }
        let mut log = HostLog::default();
        let (seen, lost) = read(&mut log, stream);
        prop_assert_eq!(seen, (0..reached).collect::<Vec<_>>());
        prop_assert_eq!((lost, log.incomplete()), (vec![], 0));
    }

    #[test]
    fn no_message_can_panic(
        kinds in proptest::collection::vec((0..5_u8, 0..2_u64, any::<u64>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..30)), 0..20),
        reads in any::<bool>(),
    ) {
        let mut log = HostLog::default();
        for (kind, epoch, first, end, bytes) in kinds {
            let events = Topic::Events("a/b".to_owned());
            let topic = [Topic::Ledger, Topic::Loss, Topic::Alive, Topic::Epoch, events][usize::from(kind)].clone();
            let message = Received {
                topic,
                id: (first % 4).to_string(),
                first: at(epoch, first),
                end: at(epoch, end),
                events: end,
                before: first ^ end,
                row: first,
                after: None,
                payload: if reads { Bytes::new() } else { bytes.into() },
            };
            log.take(&message, |_| true).ok();
        }
    }
}
