//! Tests of calls, against what a simulated host really did.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;

use super::*;
use crate::api::LossCause;
use crate::loss::Loss;

/// A number of a call, which its two ends have.
type Id = u64;

fn end(tid: i32, function: u64, timestamp_ns: u64) -> CallEnd {
    let (cpu, tgid) = (0, None);
    CallEnd { function, thread: Thread::new(tid, cpu), tgid, cpu, timestamp_ns }
}

fn loss(cpu: Option<u32>, before_ns: Option<u64>) -> Loss {
    Loss {
        cause: LossCause::Overrun,
        cpu,
        count: Some(1),
        before_ns,
        before_wall_ns: None,
        gaps: 1,
        pause: None,
    }
}

fn drain(calls: &mut Calls<Id>) -> Vec<(Id, Incomplete)> {
    std::iter::from_fn(|| calls.next_incomplete()).collect()
}

fn calls() -> Calls<Id> {
    Calls::new(1000, 1 << 20)
}

#[test]
fn calls_nest_and_recurse() {
    let mut calls = calls();
    let callers = [(1, 10, 100), (1, 20, 110), (1, 10, 120), (2, 10, 125)].map(|(tid, function, time)| {
        let mut caller = None;
        calls.enter(end(tid, function, time), 8, |around| {
            caller = around.copied();
            time
        });
        caller
    });
    assert_eq!(callers, [None, Some(100), Some(110), None]);
    assert_eq!((calls.open(), calls.bytes()), (4, 32));
    let left = [(1, 10, 130), (1, 20, 140), (2, 10, 145), (1, 10, 150)]
        .map(|(tid, function, time)| calls.leave(end(tid, function, time)).unwrap());
    assert_eq!(left, [120, 110, 125, 100]);
    assert_eq!((calls.open(), calls.bytes(), calls.next_incomplete()), (0, 0, None));
}

#[test]
fn what_lacks_an_end_is_named() {
    let mut calls = calls();
    assert_eq!(calls.leave(end(1, 10, 5)), Err(Incomplete::NoEntry));
    // The kernel missed the return of 20, and the call that it was made in returns.
    calls.enter(end(1, 10, 10), 8, |_| 10);
    calls.enter(end(1, 20, 11), 8, |_| 11);
    calls.enter(end(1, 20, 12), 8, |_| 12);
    assert_eq!(calls.leave(end(1, 10, 13)), Ok(10));
    assert_eq!(drain(&mut calls), [(11, Incomplete::NoReturn), (12, Incomplete::NoReturn)]);
    // A thread ended within a call, and its id is another process's now.
    let of = |tgid, time| CallEnd { tgid: Some(tgid), ..end(3, 10, time) };
    calls.enter(of(3, 20), 8, |_| 20);
    calls.enter(of(2, 21), 8, |caller| if caller.is_none() { 21 } else { 0 });
    assert_eq!((calls.leave(of(2, 22)), drain(&mut calls)), (Ok(21), vec![(20, Incomplete::NoReturn)]));
    calls.enter(of(2, 23), 8, |_| 23);
    assert_eq!(
        (calls.leave(of(7, 24)), drain(&mut calls)),
        (Err(Incomplete::NoEntry), vec![(23, Incomplete::NoReturn)])
    );
    calls.enter(end(1, 10, 30), 8, |_| 30);
    calls.finish();
    assert_eq!(drain(&mut calls), [(30, Incomplete::Running)]);
}

#[test]
fn idle_tasks_are_told_apart_by_their_cpus() {
    let mut calls = calls();
    let of = |cpu, time| CallEnd { thread: Thread::new(0, cpu), cpu, ..end(0, 10, time) };
    calls.enter(of(0, 10), 8, |_| 10);
    calls.enter(of(1, 11), 8, |_| 11);
    assert_eq!((calls.leave(of(0, 12)), calls.leave(of(1, 13))), (Ok(10), Ok(11)));
    // Any other thread is the same on every CPU.
    calls.enter(CallEnd { cpu: 0, ..end(5, 10, 20) }, 8, |_| 20);
    assert_eq!(calls.leave(CallEnd { cpu: 1, ..end(5, 10, 21) }), Ok(20));
}

#[test]
fn nothing_is_joined_over_a_gap() {
    let mut calls = calls();
    calls.enter(end(1, 10, 100), 8, |_| 100);
    calls.gap(&loss(None, Some(200)));
    assert_eq!(calls.next_incomplete(), None, "the gap may begin after the return");
    assert_eq!(calls.leave(end(1, 10, 150)), Err(Incomplete::Gap));
    assert_eq!(drain(&mut calls), [(100, Incomplete::Gap)]);
    // Within the gap, each end alone.
    calls.enter(end(2, 10, 160), 8, |_| 160);
    assert_eq!(calls.leave(end(2, 10, 199)), Err(Incomplete::Gap));
    assert_eq!(drain(&mut calls), [(160, Incomplete::Gap)]);
    // The first event after the gap.
    calls.enter(end(2, 10, 200), 8, |_| 200);
    assert_eq!(calls.leave(end(2, 10, 201)), Ok(200));
    assert_eq!(calls.leave(end(1, 10, 202)), Err(Incomplete::Gap), "it may have begun in the gap");
    // Nothing has followed the gap of CPU 1: it ends with the next event there.
    calls.gap(&loss(Some(1), None));
    calls.enter(end(1, 10, 300), 8, |_| 300);
    assert_eq!(calls.leave(end(1, 10, 310)), Err(Incomplete::Gap));
    assert_eq!(drain(&mut calls), [(300, Incomplete::Gap)]);
    calls.enter(CallEnd { cpu: 1, ..end(3, 10, 320) }, 8, |_| 320);
    assert_eq!(calls.leave(end(3, 10, 330)), Ok(320));
    // A gap to which no event has come.
    calls.enter(end(1, 10, 400), 8, |_| 400);
    calls.gap(&loss(None, None));
    calls.finish();
    assert_eq!(drain(&mut calls), [(400, Incomplete::Gap)]);
}

/// A loss without a time, of a CPU that has no event any more.
#[test]
fn a_gap_of_a_quiet_cpu_ends() {
    const SECOND_NS: u64 = 1_000_000_000;
    // Whether a call of CPU 0 at this time is joined.
    let is_joined = |calls: &mut Calls<Id>, time| {
        calls.enter(end(1, 10, time), 8, |_| time);
        let left = calls.leave(end(1, 10, time + 1));
        drain(calls);
        left == Ok(time)
    };
    let mut calls = calls();
    // This event waits for its order when the loss comes.
    calls.gaps.arrived_at(0, 150);
    calls.gap(&loss(Some(1), None));
    let times = [140, 160, SECOND_NS, SECOND_NS + 158, SECOND_NS + 160, 2 * SECOND_NS];
    assert_eq!(times.map(|time| is_joined(&mut calls, time)), [false, false, false, false, true, true]);
    // Of several gaps in one report it is not known when they were: any later event may be before the last of them.
    calls.gap(&Loss { gaps: 2, ..loss(Some(1), None) });
    assert_eq!([3, 9].map(|seconds| is_joined(&mut calls, seconds * SECOND_NS)), [false, false]);
    calls.enter(CallEnd { cpu: 1, ..end(2, 10, 10 * SECOND_NS) }, 8, |_| 0);
    assert!(is_joined(&mut calls, 11 * SECOND_NS));
}

#[test]
fn what_is_late_ends_the_calls_of_its_thread() {
    let mut calls = calls();
    calls.enter(end(1, 10, 100), 8, |_| 100);
    calls.enter(end(2, 10, 110), 8, |_| 110);
    calls.enter(end(1, 10, 90), 8, |_| 90);
    assert_eq!(drain(&mut calls), [(100, Incomplete::Gap), (90, Incomplete::Gap)]);
    assert_eq!(calls.leave(end(1, 10, 120)), Err(Incomplete::Gap));
    assert_eq!(calls.leave(end(2, 10, 130)), Ok(110));
}

#[test]
fn what_is_open_is_bounded() {
    let mut calls = Calls::new(100, 5000);
    for time in 0..100_000_u64 {
        calls.enter(end((time % 7) as i32, 30, time), if time % 2 == 0 { 10 } else { 90 }, |_| time);
        assert!(calls.open() <= 100 && calls.bytes() <= 5000 && calls.ages.len() <= 2 * calls.open() + 1024);
        if time >= 100 {
            assert_eq!(drain(&mut calls), [(time - 100, Incomplete::Limit)], "the oldest");
        }
    }
    // Fewer, and larger.
    calls.enter(end(1, 30, 100_000), 4000, |_| 100_000);
    assert!(calls.bytes() <= 5000 && calls.open() < 50);
    // An entry that is larger than all of them may be.
    calls.enter(end(1, 30, 100_001), 6000, |_| 100_001);
    assert_eq!((calls.bytes(), calls.open()), (0, 0));
    assert_eq!(calls.leave(end(1, 30, 100_002)), Err(Incomplete::NoEntry));
    assert!(calls.stacks.is_empty() && calls.spare.len() <= 64);
}

/// What a simulated host does next.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A thread calls a function, on a CPU.
    Enter { thread: i32, function: u64, cpu: u32 },
    /// It returns from its innermost call; the kernel may miss that.
    Leave { thread: i32, cpu: u32, is_missed: bool },
    /// The events of a CPU are lost for so many acts.
    Lose { cpu: u32, acts: u64 },
}

/// What became of the ends that were delivered.
#[derive(Debug, Default)]
struct Outcome {
    joined: u64,
    /// Pairs of two calls: their ids.
    wrong: Vec<(Id, Id)>,
    /// Calls of the same function around those whose return was missed.
    shifted: usize,
    incomplete: BTreeMap<Incomplete, u64>,
    most_open: usize,
}

const CPUS: u32 = 4;

/// Runs the acts, delivers what the probes recorded and the buffers kept, and checks that each end comes out once.
fn run(acts: impl Iterator<Item = Act>, most_open: usize) -> Outcome {
    let mut calls: Calls<Id> = Calls::new(most_open, usize::MAX);
    let mut outcome = Outcome::default();
    // Of each thread: what it is really in.
    let mut real: HashMap<i32, Vec<(u64, Id)>> = HashMap::new();
    // When the losses of each CPU end. The gap comes before the next event of the CPU, whose time is known then.
    let mut lost_until = [0_u64; CPUS as usize];
    let mut has_lost = [false; CPUS as usize];
    let mut entries = BTreeSet::new();
    let mut next_id = 0;
    // Rows and gaps wait for each other, as for a watermark: a gap comes before later rows.
    let mut waiting: Vec<(CallEnd, bool, Id)> = Vec::new();
    let mut now = 0;
    let deliver = |calls: &mut Calls<Id>,
                   outcome: &mut Outcome,
                   entries: &mut BTreeSet<Id>,
                   rows: &mut Vec<(CallEnd, bool, Id)>| {
        for (end, is_return, id) in rows.drain(..) {
            if is_return {
                match calls.leave(end) {
                    Ok(entry) => {
                        outcome.joined += 1;
                        assert!(entries.remove(&entry), "an entry comes out once");
                        if entry != id {
                            outcome.wrong.push((entry, id));
                        }
                    }
                    Err(why) => *outcome.incomplete.entry(why).or_default() += 1,
                }
            } else {
                calls.enter(end, 8, |_| id);
                assert!(entries.insert(id));
            }
            while let Some((id, why)) = calls.next_incomplete() {
                assert!(entries.remove(&id), "an entry comes out once");
                *outcome.incomplete.entry(why).or_default() += 1;
            }
            assert!(calls.open() <= most_open && calls.ages.len() <= 2 * most_open + 1025);
            outcome.most_open = outcome.most_open.max(calls.open());
            assert_eq!(entries.len(), calls.open(), "what has not come out is open");
        }
    };
    for act in acts {
        now += 1;
        let row = match act {
            Act::Enter { thread, function, cpu } => {
                next_id += 1;
                real.entry(thread).or_default().push((function, next_id));
                Some((thread, function, cpu, false, next_id))
            }
            Act::Leave { thread, cpu, is_missed } => {
                let stack = real.entry(thread).or_default();
                let left = stack.pop();
                if let Some((function, _)) = left.filter(|_| is_missed) {
                    outcome.shifted += stack.iter().filter(|(around, _)| *around == function).count();
                }
                left.filter(|_| !is_missed).map(|(function, id)| (thread, function, cpu, true, id))
            }
            Act::Lose { cpu, acts } => {
                lost_until[cpu as usize] = now + acts;
                None
            }
        };
        let Some((tid, function, cpu, is_return, id)) = row else { continue };
        let at = cpu as usize;
        if now < lost_until[at] {
            has_lost[at] = true;
            continue;
        }
        if std::mem::take(&mut has_lost[at]) {
            calls.gap(&loss(Some(cpu), Some(now)));
        }
        // The last event of a CPU that has arrived: what is lost is behind it.
        calls.gaps.arrived_at(cpu, now);
        waiting.push((CallEnd { cpu, ..end(tid, function, now) }, is_return, id));
        // A watermark: nothing that a CPU has lost until then is still to be told.
        if waiting.len() > 20 && !has_lost.iter().any(|has| *has) {
            deliver(&mut calls, &mut outcome, &mut entries, &mut waiting);
        }
    }
    for (cpu, has_lost) in has_lost.into_iter().enumerate() {
        if has_lost {
            calls.gap(&loss(u32::try_from(cpu).ok(), None));
        }
    }
    deliver(&mut calls, &mut outcome, &mut entries, &mut waiting);
    calls.finish();
    for (id, why) in drain(&mut calls) {
        assert!(entries.remove(&id));
        *outcome.incomplete.entry(why).or_default() += 1;
    }
    assert!(entries.is_empty() && calls.open() == 0 && calls.bytes() == 0);
    outcome
}

fn act() -> impl Strategy<Value = Act> {
    let (thread, cpu) = (0..5_i32, 0..CPUS);
    prop_oneof![
        10 => (thread.clone(), 0..4_u64, cpu.clone()).prop_map(|(thread, function, cpu)| {
            // Idle tasks do not leave their CPU.
            Act::Enter { thread: thread + 1, function, cpu }
        }),
        10 => (thread, cpu.clone(), 0..20_u8).prop_map(|(thread, cpu, missed)| {
            Act::Leave { thread: thread + 1, cpu, is_missed: missed == 0 }
        }),
        1 => (cpu, 1..40_u64).prop_map(|(cpu, acts)| Act::Lose { cpu, acts }),
    ]
}

fn without_misses(act: Act) -> Act {
    match act {
        Act::Leave { thread, cpu, .. } => Act::Leave { thread, cpu, is_missed: false },
        act => act,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn each_end_comes_out_once_and_pairs_are_calls(acts in prop::collection::vec(act(), 0..400)) {
        // Each end comes out once: `run` asserts it.
        run(acts.iter().copied(), 6);
        let whole = run(acts.iter().copied(), 1000);
        // The return of a call around it is taken for the missed one of a recursive function, and so on outwards.
        prop_assert!(whole.wrong.len() <= whole.shifted, "{:?}", whole);
        let exact = run(acts.iter().copied().map(without_misses), 1000);
        prop_assert!(exact.wrong.is_empty(), "{:?}", exact);
        prop_assert!(!exact.incomplete.contains_key(&Incomplete::NoReturn) || exact.incomplete.contains_key(&Incomplete::Gap));
    }
}

#[test]
fn a_missed_return_shifts_all_calls_of_the_function_around_it() {
    let enter = |function| Act::Enter { thread: 3, function, cpu: 0 };
    let leave = |is_missed| Act::Leave { thread: 3, cpu: 0, is_missed };
    let acts =
        [enter(1), enter(0), leave(false), enter(1), enter(1), leave(true), leave(false), leave(false)];
    let outcome = run(acts.into_iter(), 1000);
    assert_eq!((outcome.wrong, outcome.shifted, outcome.joined), (vec![(4, 3), (3, 1)], 2, 3));
    assert_eq!(outcome.incomplete, BTreeMap::from([(Incomplete::Running, 1)]));
}

/// A million calls of 64 threads, nested and recursive, with missed returns and gaps.
#[test]
fn a_million_calls() {
    const CALLS: u64 = 1_000_000;
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut depth = [0_u32; 64];
    let mut entered = 0;
    let acts = std::iter::from_fn(|| {
        let thread = i32::try_from(random(64)).unwrap_or_default() + 1;
        let cpu = u32::try_from(random(CPUS.into())).unwrap_or_default();
        let at = thread.unsigned_abs() as usize - 1;
        if random(20_000) == 0 {
            return Some(Act::Lose { cpu, acts: 1 + random(300) });
        }
        if entered < CALLS && (depth[at] == 0 || depth[at] < 8 && random(2) == 0) {
            entered += 1;
            depth[at] += 1;
            return Some(Act::Enter { thread, function: random(5), cpu });
        }
        depth[at] = depth[at].saturating_sub(1);
        let is_over = entered == CALLS && depth.iter().all(|depth| *depth == 0);
        (!is_over).then(|| Act::Leave { thread, cpu, is_missed: random(1000) == 0 })
    });
    let outcome = run(acts, 2000);
    let incomplete: u64 = outcome.incomplete.values().sum();
    assert!(outcome.joined > 900_000 && incomplete > 1000, "{outcome:?}");
    assert!(outcome.wrong.len() < 1000 && outcome.most_open <= 2000, "{} wrong", outcome.wrong.len());
}
