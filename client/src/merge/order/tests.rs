//! Property tests of the order: any hosts, any interleaving, any deaths.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::api;
use crate::event::Batch;
use crate::merge::clock::ClockOffset;

/// Events of one CPU at these times; their numbers are thread ids.
fn batch(events: &[(u64, i32)]) -> Batch {
    let schema = api::EventSchema { schema_id: 1, probe: "a/b".to_owned(), ..Default::default() };
    let base_ns = events.first().map_or(0, |event| event.0);
    let group = api::EventGroup {
        schema_id: 1,
        rows: u32::try_from(events.len()).unwrap(),
        base_ns,
        offsets_ns: events
            .iter()
            .flat_map(|event| u32::try_from(event.0 - base_ns).unwrap().to_le_bytes())
            .collect(),
        tids: events.iter().flat_map(|event| event.1.to_le_bytes()).collect(),
        ..Default::default()
    };
    let batch = api::EventBatch { groups: vec![group], ..Default::default() };
    Batch::from_parts(vec![schema], batch).unwrap()
}

fn clock(boot_id: &str, trace_offset_ns: i64) -> ClockOffset {
    ClockOffset { boot_id: boot_id.to_owned(), trace_offset_ns, wall_ahead_ns: 0, error_bound_ns: 1 }
}

/// What went: host, number, time here, and whether it was late.
type Gone = (usize, i32, i64, bool);

/// Takes all events that may be returned, and returns the host that the merge waits for.
fn drain(order: &mut Order, into: &mut Vec<Gone>) -> Option<usize> {
    loop {
        match order.next() {
            Next::Event { host, corrected_ns, late } => {
                let row = order.take(host).unwrap();
                into.push((host, row.tid().unwrap(), corrected_ns, late));
            }
            Next::WaitFor(host) => return Some(host),
            Next::Nothing => return None,
        }
    }
}

/// A host: how its clock differs, and what it sends. Each piece has the gaps between the events of
/// one CPU.
#[derive(Clone, Debug)]
struct Log {
    offset_ns: i64,
    pieces: Vec<Vec<u64>>,
}

#[derive(Clone, Debug)]
enum Sent {
    Events(Vec<(u64, i32)>),
    Watermark(u64),
}

impl Log {
    /// Pieces and the watermarks that are true of them: two CPUs take turns, so that a piece may
    /// begin before the one before it ends.
    fn sent(&self, first: i32) -> VecDeque<Sent> {
        let (mut now, mut number) = ([1_000_u64; 2], first);
        let pieces: Vec<Vec<(u64, i32)>> = self
            .pieces
            .iter()
            .enumerate()
            .map(|(piece, gaps)| {
                let cpu = piece % 2;
                gaps.iter()
                    .map(|gap| {
                        now[cpu] += gap;
                        number += 1;
                        (now[cpu], number - 1)
                    })
                    .collect()
            })
            .collect();
        let mut sent = VecDeque::new();
        for (index, piece) in pieces.iter().enumerate() {
            if !piece.is_empty() {
                sent.push_back(Sent::Events(piece.clone()));
            }
            let to_come = pieces[index + 1..].iter().flatten().map(|event| event.0).min();
            sent.push_back(Sent::Watermark(to_come.unwrap_or(u64::from(u32::MAX))));
        }
        sent
    }

    fn events(&self) -> usize {
        self.pieces.iter().map(Vec::len).sum()
    }
}

fn logs() -> impl Strategy<Value = Vec<Log>> {
    let pieces = proptest::collection::vec(proptest::collection::vec(0..30_u64, 0..5), 0..8);
    let log = (-500..500_i64, pieces).prop_map(|(offset_ns, pieces)| Log { offset_ns, pieces });
    proptest::collection::vec(log, 1..5)
}

fn ready(logs: &[Log]) -> (Order, Vec<VecDeque<Sent>>) {
    let mut order = Order::new(logs.len(), usize::MAX);
    let mut first = 0;
    let mut waiting = Vec::new();
    for (host, log) in logs.iter().enumerate() {
        order.change(host, |lane| {
            lane.compared(clock("b", log.offset_ns));
            lane.boot("b");
        });
        waiting.push(log.sent(first));
        first += i32::try_from(log.events()).unwrap();
    }
    (order, waiting)
}

/// Events of all hosts that wait.
fn held(order: &Order) -> usize {
    order.lanes.iter().map(Lane::held_events).sum()
}

fn receive(order: &mut Order, host: usize, sent: Sent) {
    order.change(host, |lane| match sent {
        Sent::Events(events) => lane.push(batch(&events)),
        Sent::Watermark(watermark_ns) => lane.advance(watermark_ns),
    });
}

proptest! {
    /// Sorted, whole, and the same whichever host was faster.
    #[test]
    fn any_interleaving_gives_the_same_order(logs in logs(), choices in proptest::collection::vec(0..5_usize, 0..80)) {
        let run = |choices: &[usize]| {
            let (mut order, mut waiting) = ready(&logs);
            let mut gone = Vec::new();
            for choice in choices {
                let host = choice % waiting.len();
                if let Some(sent) = waiting[host].pop_front() {
                    receive(&mut order, host, sent);
                }
                drain(&mut order, &mut gone);
            }
            // Only what is waited for is read from now on: that is enough to come to the end.
            while let Some(host) = drain(&mut order, &mut gone) {
                match waiting[host].pop_front() {
                    Some(sent) => receive(&mut order, host, sent),
                    None => order.change(host, |lane| lane.set_released(true)),
                }
            }
            (gone, held(&order), waiting.iter().map(VecDeque::len).sum::<usize>())
        };
        let (gone, held, unread) = run(&choices);
        prop_assert_eq!((held, unread), (0, 0));
        prop_assert!(gone.is_sorted_by_key(|one| one.2), "{:?}", gone);
        prop_assert!(gone.iter().all(|one| !one.3), "{:?}", gone);
        let mut numbers: Vec<_> = gone.iter().map(|one| one.1).collect();
        numbers.sort_unstable();
        let all = logs.iter().map(Log::events).sum::<usize>();
        prop_assert_eq!(numbers, (0..i32::try_from(all).unwrap()).collect::<Vec<_>>());
        let (in_turn, _, _) = run(&[]);
        prop_assert_eq!(gone, in_turn);
    }

    /// Hosts die at any time and are released, and some come back.
    #[test]
    fn what_comes_too_late_is_marked_and_nothing_is_left_out(
        logs in logs(),
        steps in proptest::collection::vec((0..5_usize, 0..10_u8), 0..120),
        clocks in proptest::collection::vec((0..5_usize, -20..20_i64), 0..6),
    ) {
        let (mut order, mut waiting) = ready(&logs);
        let mut gone = Vec::new();
        let mut clocks = clocks.into_iter();
        let mut pushed = 0;
        for (host, what) in steps {
            let host = host % waiting.len();
            match what {
                0 => order.change(host, |lane| lane.set_released(true)),
                1 => order.change(host, |lane| lane.set_released(false)),
                2 => if let Some((host, drift)) = clocks.next() {
                    let host = host % logs.len();
                    order.change(host, |lane| lane.compared(clock("b", logs[host].offset_ns + drift)));
                },
                _ => if let Some(sent) = waiting[host].pop_front() {
                    pushed += if let Sent::Events(events) = &sent { events.len() } else { 0 };
                    receive(&mut order, host, sent);
                },
            }
            drain(&mut order, &mut gone);
            prop_assert_eq!(pushed, gone.len() + held(&order), "read = gone + waiting");
        }
        for (host, sent) in waiting.into_iter().enumerate() {
            for sent in sent {
                receive(&mut order, host, sent);
            }
        }
        for host in 0..logs.len() {
            order.change(host, |lane| lane.set_released(true));
        }
        prop_assert_eq!(drain(&mut order, &mut gone), None);
        prop_assert_eq!(held(&order), 0);
        let mut numbers: Vec<_> = gone.iter().map(|one| one.1).collect();
        numbers.sort_unstable();
        let all = logs.iter().map(Log::events).sum::<usize>();
        prop_assert_eq!(numbers, (0..i32::try_from(all).unwrap()).collect::<Vec<_>>());
        let mut latest = i64::MIN;
        for (_, _, at_ns, late) in &gone {
            prop_assert_eq!(*late, *at_ns < latest, "{:?}", gone);
            latest = latest.max(*at_ns);
        }
    }
}

#[test]
fn a_silent_host_holds_the_others_until_it_is_released() {
    let mut order = Order::new(2, 100);
    let mut gone = Vec::new();
    for host in 0..2 {
        order.change(host, |lane| {
            lane.compared(clock("b", 0));
            lane.boot("b");
        });
    }
    order.change(0, |lane| {
        lane.push(batch(&[(10, 1), (20, 2), (40, 3)]));
        lane.advance(50);
    });
    assert_eq!((drain(&mut order, &mut gone), gone.len()), (Some(1), 0));
    order.change(1, |lane| lane.advance(20));
    // At 20 the other host may have an event too, which would follow: that host has the higher
    // number.
    assert_eq!((drain(&mut order, &mut gone), gone.len()), (Some(1), 2));
    order.change(1, |lane| lane.set_released(true));
    assert_eq!((drain(&mut order, &mut gone), gone.len()), (Some(0), 3));
    order.change(1, |lane| {
        lane.set_released(false);
        lane.push(batch(&[(30, 4), (60, 5)]));
        lane.advance(70);
    });
    assert_eq!(drain(&mut order, &mut gone), Some(0));
    assert_eq!(gone, [(0, 1, 10, false), (0, 2, 20, false), (0, 3, 40, false), (1, 4, 30, true)]);
}

/// A gap begins after what has arrived before it, whether that is delivered or not.
#[test]
fn a_host_has_the_last_arrival_of_each_cpu() {
    let mut lane = Lane::new(100);
    lane.boot("b");
    assert!(lane.arrived().is_empty());
    lane.push(batch(&[(10, 1), (20, 2)]));
    lane.push(batch(&[(15, 3)]));
    assert_eq!(lane.arrived(), [(0, 20)]);
    lane.boot("c");
    assert!(lane.arrived().is_empty(), "another boot has another clock");
}

#[test]
fn another_boot_has_a_clock_of_its_own() {
    let mut order = Order::new(1, 100);
    let mut gone = Vec::new();
    order.change(0, |lane| {
        lane.compared(clock("now", 5_000));
        lane.boot("before");
        // Its relation to the wall clock is that of its events: 0.
        lane.push(batch(&[(100, 1), (300, 2)]));
        lane.advance(200);
    });
    assert_eq!((drain(&mut order, &mut gone), gone.len()), (Some(0), 1));
    order.change(0, |lane| {
        lane.boot("now");
        lane.push(batch(&[(7, 3)]));
        lane.advance(8);
    });
    drain(&mut order, &mut gone);
    assert_eq!(gone, [(0, 1, 100, false), (0, 2, 300, false), (0, 3, 5_007, false)]);
}
