use proptest::prelude::*;

use super::*;
use crate::published::frames;

fn at(epoch: u64, sequence: u64) -> Cursor {
    Cursor { boot_id: "b".to_owned(), epoch, sequence }
}

fn response(message: Message) -> api::StreamEventsResponse {
    api::StreamEventsResponse { message: Some(message) }
}

fn batch(sequence: u64, rows: u32) -> api::StreamEventsResponse {
    let group = api::EventGroup {
        schema_id: 1,
        rows,
        base_ns: sequence,
        offsets_ns: (0..rows).flat_map(u32::to_le_bytes).collect(),
        ..Default::default()
    };
    let log_events = rows;
    response(Message::Batch(api::EventBatch {
        sequence,
        log_events,
        groups: vec![group],
        ..Default::default()
    }))
}

/// A message with events at these positions.
fn events(epoch: u64, places: std::ops::Range<u64>) -> Received {
    let schema = api::EventSchema { schema_id: 1, probe: "a/b".to_owned(), ..Default::default() };
    let mut content = vec![response(Message::Schema(schema))];
    content.extend(places.clone().map(|sequence| batch(sequence, 1)));
    Received {
        topic: Topic::Events("a/b".to_owned()),
        id: format!("{epoch}:{places:?}"),
        first: at(epoch, places.start),
        end: at(epoch, places.end),
        events: places.end - places.start,
        after: None,
        parts: Vec::new(),
        payload: frames(&content).into(),
    }
}

/// The end of a part of these messages.
fn ledger(messages: &[Received]) -> Received {
    let (first, end) = (messages[0].first.clone(), messages[messages.len() - 1].end.clone());
    let progress = response(Message::Progress(api::Progress { cursor: Some(end.clone().into()) }));
    Received {
        topic: Topic::Ledger,
        id: format!("{first}-{end}"),
        events: messages.iter().map(|message| message.events).sum(),
        after: None,
        parts: messages.iter().map(|message| message.id.clone()).collect(),
        payload: frames(&[progress]).into(),
        first,
        end,
    }
}

/// The events, by position, and how many are reported as missing.
fn read(log: &mut HostLog, messages: impl IntoIterator<Item = Received>) -> (Vec<u64>, u64) {
    let (mut seen, mut lost) = (Vec::new(), 0);
    for message in messages {
        for item in log.take(message, |_| true).unwrap() {
            match item {
                StreamItem::Batch(batch) => seen.extend(batch.rows().map(|row| row.timestamp_ns())),
                StreamItem::Loss(loss) => lost += loss.count.unwrap(),
                _ => {}
            }
        }
    }
    (seen, lost)
}

#[test]
fn a_part_counts_when_it_is_whole() {
    let (a, b, c) = (events(1, 0..3), events(1, 3..5), events(1, 5..9));
    let mut log = HostLog::default();
    assert_eq!(read(&mut log, [a.clone(), b.clone()]), (vec![], 0));
    assert_eq!(read(&mut log, [ledger(&[a.clone(), b.clone()])]), ((0..5).collect(), 0));
    // The middle of the next one is gone.
    let next = ledger(&[c.clone(), events(1, 9..12)]);
    assert_eq!(read(&mut log, [c, next]), ((5..9).collect(), 3));
    assert_eq!((log.incomplete(), log.place().unwrap().sequence), (1, 12));
    // And so is the whole part after that.
    let last = events(1, 20..21);
    assert_eq!(read(&mut log, [last.clone(), ledger(&[last])]), (vec![20], 8));
    // A message that was published again counts once.
    assert_eq!(read(&mut log, [a.clone(), ledger(&[a])]), (vec![], 0));
    assert_eq!(log.repeated(), 2);
    // Another run of the daemon counts anew.
    let other = events(2, 0..2);
    assert_eq!(read(&mut log, [other.clone(), ledger(&[other])]), (vec![0, 1], 0));
}

#[test]
fn who_begins_in_the_middle_begins_with_a_whole_part() {
    let (a, b) = (events(1, 3..5), events(1, 5..6));
    let mut log = HostLog::default();
    let first = ledger(&[events(1, 0..3), a.clone()]);
    assert_eq!(read(&mut log, [a, first, b.clone(), ledger(&[b])]), (vec![5], 0));
    assert_eq!(log.incomplete(), 0);
}

#[test]
fn a_payload_that_is_none_says_which() {
    let mut bad = events(1, 0..1);
    bad.payload = vec![0xff; 9].into();
    let end = ledger(std::slice::from_ref(&bad));
    let mut log = HostLog::default();
    assert!(log.take(bad.clone(), |_| true).unwrap().is_empty());
    let error = log.take(end, |_| true).unwrap_err();
    assert!(error.to_string().starts_with(&bad.id), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
    /// A daemon that continues from the last end in the stream after each failure, whatever remains
    /// of the part that it had begun, and a server that drops ids that it knows.
    #[test]
    fn every_event_is_seen_once(rounds in proptest::collection::vec((1..6_u64, 1..4_u64, 0..5_usize, any::<bool>()), 1..30)) {
        let mut stream: Vec<Received> = Vec::new();
        let mut place = 0;
        for (size, count, fails_after, forgets) in rounds {
            let messages: Vec<Received> =
                (0..count).map(|number| events(1, place + number * size..place + (number + 1) * size)).collect();
            let end = ledger(&messages);
            let published = messages.into_iter().chain([end]).enumerate();
            for (number, message) in published {
                if number == fails_after {
                    break;
                }
                if message.topic == Topic::Ledger {
                    place = message.end.sequence;
                }
                let is_known = stream.iter().any(|other| other.id == message.id);
                if forgets || !is_known {
                    stream.push(message);
                }
            }
        }
        let mut log = HostLog::default();
        let (seen, lost) = read(&mut log, stream);
        prop_assert_eq!(seen, (0..place).collect::<Vec<_>>());
        prop_assert_eq!((lost, log.incomplete()), (0, 0));
    }

    #[test]
    fn no_message_can_panic(
        kinds in proptest::collection::vec((0..4_u8, 0..2_u64, any::<u64>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..30)), 0..20),
    ) {
        let mut log = HostLog::default();
        for (kind, epoch, first, end, bytes) in kinds {
            let topic = [Topic::Ledger, Topic::Loss, Topic::Alive, Topic::Events("a/b".to_owned())][usize::from(kind)].clone();
            let message = Received {
                topic,
                id: (first % 4).to_string(),
                first: at(epoch, first),
                end: at(epoch, end),
                events: first,
                after: None,
                parts: vec![(end % 4).to_string()],
                payload: bytes.into(),
            };
            log.take(message, |_| true).ok();
        }
    }
}
