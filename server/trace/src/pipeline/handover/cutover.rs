//! Cutover times of a hand-over: up to when the events of each task come from the old instance, so
//! that no event is lost and none is published twice.
//!
//! For a while both instances record the same probes. Each hit then has two copies, and they never
//! have the same time: the handler of an event goes through the instances that have it enabled, one
//! after the other, in the order in which they enabled it (include/linux/tracepoint.h and
//! kernel/trace/trace_probe.c:trace_probe_add_file both append). The old instance always enabled it
//! first, so that its copy is never later than the one in the new instance.
//!
//! A cutover is a time: what is earlier is taken from the old instance, what is not from the new
//! one. A hit whose old copy is before the cutover and whose new copy is not before it would be
//! published twice, so the cutover must be a time at which no hit is between its copies. The number
//! of hits between their copies is the number of copies in the old instance so far, less the number
//! in the new one, plus a constant: it is zero where that difference is smallest. No copy need be
//! matched to another for that, and it holds however hits are nested. The copies of a hit can be on
//! two CPUs, if its task was moved between them (system calls and uprobes, whose handlers can be
//! preempted); so each task has a time of its own, and only the idle tasks, which all have the same
//! number, have one for each CPU.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

/// A task, whose hits happen one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::pipeline) enum TaskKey {
    /// A task.
    Task(i32),
    /// The idle task of a CPU.
    Idle(u32),
}

/// Which instance a copy is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::pipeline) enum Side {
    /// The instance that readers switch from. Its copy of a hit is recorded first.
    Old,
    /// The instance that readers switch to.
    New,
}

/// One copy of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipeline) struct EventCopy {
    pub(in crate::pipeline) task: TaskKey,
    pub(in crate::pipeline) time_ns: u64,
    pub(in crate::pipeline) side: Side,
}

/// The time at which each task changes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pipeline) struct Cutover {
    /// For tasks without a hit while both instances recorded.
    default_ns: u64,
    by_task: HashMap<TaskKey, u64>,
    /// Event ids that both instances recorded.
    both: HashSet<u16>,
}

impl Cutover {
    /// Finds the times.
    ///
    /// `copies` is every copy with a time in `window`, in any order. All events of the ids `both`,
    /// and only those, have two copies if the first of them is in the window: the new instance
    /// recorded before it began. The window is longer than any hit, so that a task without a copy
    /// in it had no hit between its copies either.
    pub(in crate::pipeline) fn find(
        copies: Vec<EventCopy>,
        window: &RangeInclusive<u64>,
        both: HashSet<u16>,
    ) -> Self {
        let mut tasks: HashMap<TaskKey, Vec<(u64, Side)>> = HashMap::new();
        for EventCopy { task, time_ns, side } in copies {
            tasks.entry(task).or_default().push((time_ns, side));
        }
        let default_ns = *window.start();
        let by_task = tasks.into_iter().map(|(task, copies)| (task, quietest(copies, default_ns))).collect();
        Self { default_ns, by_task, both }
    }

    /// Whether an event is to be taken from that side. Payloads begin as all do
    /// (include/linux/trace_events.h:struct trace_entry).
    pub(in crate::pipeline) fn takes(&self, side: Side, cpu: u32, time_ns: u64, payload: &[u8]) -> bool {
        let Some((id, task)) = identity(payload, cpu) else { return side == Side::Old };
        // An event that only one of the instances records is taken from that instance.
        if !self.both.contains(&id) {
            return true;
        }
        let cut_ns = self.by_task.get(&task).copied().unwrap_or(self.default_ns);
        (time_ns < cut_ns) == (side == Side::Old)
    }

    /// Whether a gap that ends at that time counts. No gap is in the window. A gap of the old
    /// instance counts if it is before the window, and one of the new instance if it is after: at
    /// other times events are taken from the other instance.
    pub(in crate::pipeline) const fn takes_gap(&self, side: Side, end_ns: u64) -> bool {
        (end_ns <= self.default_ns) == matches!(side, Side::Old)
    }
}

/// Event id and task of an event; absent if it is too short to be one.
pub(in crate::pipeline) fn identity(payload: &[u8], cpu: u32) -> Option<(u16, TaskKey)> {
    let id = u16::from_le_bytes(*payload.first_chunk()?);
    let tid = i32::from_le_bytes(*payload.get(4..)?.first_chunk()?);
    Some((id, if tid == 0 { TaskKey::Idle(cpu) } else { TaskKey::Task(tid) }))
}

/// The earliest time at which the fewest hits are between their copies. The order of copies with
/// equal time stamps is unknown, so that the result never separates two of those.
fn quietest(mut copies: Vec<(u64, Side)>, start_ns: u64) -> u64 {
    copies.sort_unstable_by_key(|(time_ns, _)| *time_ns);
    let (mut between, mut fewest, mut cut_ns) = (0i64, 0, start_ns);
    for same_time in copies.chunk_by(|a, b| a.0 == b.0) {
        for (_, side) in same_time {
            between += if *side == Side::Old { 1 } else { -1 };
        }
        if let Some((time_ns, _)) = same_time.first()
            && between < fewest
        {
            (fewest, cut_ns) = (between, time_ns + 1);
        }
    }
    cut_ns
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: u16 = 7;

    fn payload(tid: i32) -> Vec<u8> {
        let mut payload = vec![0; 8];
        payload[..2].copy_from_slice(&ID.to_le_bytes());
        payload[4..].copy_from_slice(&tid.to_le_bytes());
        payload
    }

    /// A hit: its task, the CPUs of its copies, and their times.
    #[derive(Clone, Copy, Debug)]
    struct Hit {
        tid: i32,
        cpus: (u32, u32),
        times: (u64, u64),
    }

    /// Hits of one task: for each the pause before it, its duration, whether the task moves to
    /// another CPU between its copies, and the hits of interrupts between its copies, each with
    /// pause and duration.
    type Script = Vec<(u64, u64, bool, Vec<(u64, u64)>)>;

    fn script() -> impl Strategy<Value = Script> {
        let nested = prop::collection::vec((0u64..20, 0u64..20), 0..4);
        // A pause of 0 has two hits at one and the same time of a coarse clock.
        prop::collection::vec((0u64..60, 0u64..30, any::<bool>(), nested), 0..60)
    }

    fn play(script: &Script, tid: i32, cpu: u32, start: u64) -> Vec<Hit> {
        let mut now = start;
        let mut hits = Vec::new();
        for (pause, length, moves, nested) in script {
            now += pause;
            let first = now;
            for (pause, length) in nested {
                now += pause;
                hits.push(Hit { tid, cpus: (cpu, cpu), times: (now, now + length) });
                now += length;
            }
            now += length;
            let other = if *moves && tid != 0 { cpu ^ 1 } else { cpu };
            hits.push(Hit { tid, cpus: (cpu, other), times: (first, now) });
        }
        hits
    }

    /// The hits taken from both instances, if the next instance records the copies that are not
    /// before `on`.
    fn taken(hits: &[Hit], on: u64, end: u64) -> Vec<usize> {
        let window = on..=end;
        let mut copies = Vec::new();
        for hit in hits {
            let (first, second) = hit.times;
            let at = |cpu| identity(&payload(hit.tid), cpu).unwrap().1;
            if window.contains(&first) {
                copies.push(EventCopy { task: at(hit.cpus.0), time_ns: first, side: Side::Old });
            }
            if window.contains(&second) {
                copies.push(EventCopy { task: at(hit.cpus.1), time_ns: second, side: Side::New });
            }
        }
        let cutover = Cutover::find(copies, &window, HashSet::from([ID]));
        let times_taken = |hit: &Hit| {
            let last = cutover.takes(Side::Old, hit.cpus.0, hit.times.0, &payload(hit.tid));
            let recorded = hit.times.1 >= on;
            let next = recorded && cutover.takes(Side::New, hit.cpus.1, hit.times.1, &payload(hit.tid));
            usize::from(last) + usize::from(next)
        };
        hits.iter().map(times_taken).collect()
    }

    proptest! {
        /// Whatever is nested in what, moves, or ends outside of the window: every hit comes
        /// exactly once.
        #[test]
        fn every_hit_is_taken_once(
            scripts in prop::collection::vec((script(), 0u64..500, any::<bool>()), 1..6),
            on in 300u64..900,
            rest in 200u64..800,
        ) {
            let mut hits = Vec::new();
            for (index, (script, start, idle)) in (0u32..).zip(&scripts) {
                let tid = if *idle { 0 } else { i32::try_from(index).unwrap() + 100 };
                // Idle tasks of different CPUs are different tasks.
                let cpu = if *idle { index } else { index % 2 };
                hits.extend(play(script, tid, cpu, *start));
            }
            // The window is longer than any hit that lies across its start, and tasks without a
            // pause in it do not change over: see `find`.
            let end = on + rest;
            let quiet = |of: &Hit| {
                let mine = || hits.iter().filter(|hit| hit.tid == of.tid && (hit.tid != 0 || hit.cpus == of.cpus));
                let mut cuts = (on..=end).filter(|t| mine().all(|hit| !(hit.times.0 < *t && *t <= hit.times.1)));
                cuts.next().is_some()
            };
            prop_assume!(hits.iter().all(quiet));
            let taken = taken(&hits, on, end);
            prop_assert!(taken.iter().all(|times| *times == 1), "{:?}", hits.iter().zip(taken).filter(|(_, t)| *t != 1).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_task_without_a_copy_changes_over_at_the_start() {
        let cutover = Cutover::find(Vec::new(), &(100..=200), HashSet::from([ID]));
        assert!(
            cutover.takes(Side::Old, 0, 99, &payload(1)) && !cutover.takes(Side::New, 0, 99, &payload(1))
        );
        assert!(
            !cutover.takes(Side::Old, 0, 100, &payload(1)) && cutover.takes(Side::New, 0, 100, &payload(1))
        );
    }

    #[test]
    fn what_only_one_records_is_taken_from_there() {
        let cutover = Cutover::find(Vec::new(), &(100..=200), HashSet::new());
        assert!(cutover.takes(Side::Old, 0, 150, &payload(1)));
        assert!(cutover.takes(Side::Old, 0, 150, &[1, 2]) && !cutover.takes(Side::New, 0, 150, &[1, 2]));
    }

    #[test]
    fn an_interrupt_between_copies_is_not_cut_off() {
        // 110 and 150 are the copies of one hit; an interrupt has hits between them.
        let hits = [
            Hit { tid: 5, cpus: (0, 0), times: (90, 105) },
            Hit { tid: 5, cpus: (0, 0), times: (120, 130) },
            Hit { tid: 5, cpus: (0, 0), times: (110, 150) },
        ];
        assert_eq!(taken(&hits, 100, 200), [1, 1, 1]);
    }
}
