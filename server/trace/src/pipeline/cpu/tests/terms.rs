//! Tests of ledger terms: every counter of a buffer and of a probe counts, in the code that runs in
//! the daemon.

use super::writer::Happening;
use super::*;
use crate::pipeline::{BufferCounts, ProbeCounts, Span};

/// Event of `happenings::formats`: 24 bytes of fields after a head of 16.
const FIXED: u16 = 301;

fn event(bytes: usize) -> Happening {
    let mut payload = vec![0; bytes];
    payload[..2].copy_from_slice(&FIXED.to_le_bytes());
    Happening::Event { after_ns: 10, payload }
}

/// A term without a line here does not compile; one that nothing counts fails.
#[test]
fn every_term_of_a_buffer_and_of_a_probe_counts() {
    let world = World::new(9);
    let subscription = world.subscribe();
    // A complete event, one that is too short, and one after a gap.
    let happenings = [event(40), event(4), Happening::Overwritten { events: 9 }, event(40)];
    let manner = Manner { sub_buffer_bytes: 4096, reads: vec![1], is_absolute: false, is_padded: false };
    let turns = [TurnOf { depth: Depth::Pages, is_waited_for: false }];
    let mut cpu = world.read(&pages(START_NS, &happenings, &manner), 4096, &turns);

    let stats = world.directory.path().join(format!("instances/i/per_cpu/cpu{CPU}/stats"));
    let target = world.target();
    for text in [
        "overrun: 9\ncommit overrun: 2\ndropped events: 3\nread events: 3\n",
        // Another program empties the buffer, and more events are lost after that.
        "overrun: 0\ncommit overrun: 5\ndropped events: 0\nread events: 1\n",
        // It reads four.
        "overrun: 0\ncommit overrun: 5\ndropped events: 0\nread events: 5\n",
    ] {
        std::fs::write(&stats, text).unwrap();
        cpu.look_at_stats(&target);
    }

    let counts = cpu.counters.counts(CPU);
    assert_eq!((counts.lost(), counts.all()), (9 + 7 + 3 + 4, 3 + 9 + 7 + 3 + 4));
    let BufferCounts {
        cpu,
        read,
        read_span,
        overrun,
        overrun_span,
        commit_overrun,
        dropped_events,
        taken,
        resets,
        undecodable,
        pages,
    } = counts;
    assert_eq!((cpu, read, undecodable), (CPU, 2, 1));
    assert_eq!((overrun, commit_overrun, dropped_events, taken, resets), (9, 2 + 5, 3, 4, 1));
    let span = |first, last| Span { first_ns: START_NS + first, last_ns: START_NS + last };
    assert_eq!(read_span, span(10, 30));
    assert!(overrun_span.first_ns > START_NS && pages > 0, "{overrun_span:?} {pages}");

    let ProbeCounts { read, read_span, undecodable } = world.probes[&FIXED].counts();
    assert_eq!((read, undecodable, read_span), (2, 1, span(10, 30)));

    // The subscriber gets a report of each loss.
    let mut told = Vec::new();
    while let Some(Ok(item)) = subscription.next().now_or_never() {
        if let Item::Loss(loss) = item {
            told.push((loss.cause, loss.count));
        }
    }
    for loss in [
        (LossCause::Overrun, Some(9)),
        (LossCause::Undecodable, Some(1)),
        (LossCause::CommitOverrun, Some(7)),
        (LossCause::DroppedEvents, Some(3)),
        (LossCause::Taken, Some(4)),
        (LossCause::Reset, None),
    ] {
        assert!(told.contains(&loss), "{loss:?} is not in {told:?}");
    }
}
