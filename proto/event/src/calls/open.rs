//! Open calls: stacks of entries by thread, within a limit.

use std::collections::{HashMap, VecDeque};

use super::Incomplete;
use super::gaps::{Gaps, Place};
use crate::batch::Batch;
use crate::loss::Loss;
use crate::row::Row;

/// Empty stacks that are kept to be used again.
const MOST_SPARE: usize = 64;

/// A thread of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    tid: i32,
    /// Of idle tasks alone.
    cpu: Option<u32>,
}

impl Thread {
    /// The thread with this id, on this CPU.
    pub fn new(tid: i32, cpu: u32) -> Self {
        Self { tid, cpu: (tid == 0).then_some(cpu) }
    }
}

/// Where and when a call begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallEnd {
    /// The function: any number that both ends of its calls have, and no other function.
    pub function: u64,
    /// The thread.
    pub thread: Thread,
    /// Its process, if that is known.
    pub tgid: Option<i32>,
    /// The CPU.
    pub cpu: u32,
    /// Trace-clock time, in nanoseconds.
    pub timestamp_ns: u64,
}

impl CallEnd {
    /// The end that an event is. `None`: a projection left out its thread.
    pub fn of(row: &Row<'_>, function: u64) -> Option<Self> {
        let (tid, cpu, timestamp_ns) = (row.tid()?, row.cpu(), row.timestamp_ns());
        Some(Self { function, thread: Thread::new(tid, cpu), tgid: row.tgid(), cpu, timestamp_ns })
    }
}

#[derive(Debug)]
pub(super) struct Open<T> {
    /// Entries before it.
    number: u64,
    function: u64,
    tgid: Option<i32>,
    bytes: usize,
    entry: T,
}

/// The open calls of one host, with what is kept of their entries.
///
/// ```
/// # use kprobed_event::{CallEnd, Calls, Incomplete, Row};
/// # fn example<'a>(rows: impl Iterator<Item = Row<'a>>) {
/// let mut calls = Calls::new(1 << 14, 32 << 20);
/// for row in rows {
///     let Some(end) = row.location().and_then(|function| CallEnd::of(&row, function.address)) else { continue };
///     if !row.schema().is_return() {
///         calls.enter(end, size_of::<u64>(), |_caller| row.timestamp_ns());
///         continue;
///     }
///     match calls.leave(end) {
///         Ok(begun_ns) => println!("{} took {} ns", row.probe(), row.timestamp_ns() - begun_ns),
///         Err(why) => println!("{} {}", row.probe(), why.name()),
///     }
///     while let Some((begun_ns, why)) = calls.next_incomplete() {
///         println!("a call of {begun_ns}: {}", why.name());
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Calls<T> {
    most_open: usize,
    most_bytes: usize,
    /// By thread, the outermost call first.
    pub(super) stacks: HashMap<Thread, Vec<Open<T>>>,
    pub(super) spare: Vec<Vec<Open<T>>>,
    /// Entries in their order. Those that are not open any more are taken out when they are too many.
    pub(super) ages: VecDeque<(u64, Thread)>,
    entries: u64,
    open: usize,
    bytes: usize,
    pub(super) gaps: Gaps,
    incomplete: VecDeque<(T, Incomplete)>,
}

impl<T> Calls<T> {
    /// With a limit on the calls that may be open, and on the bytes of their entries.
    pub fn new(most_open: usize, most_bytes: usize) -> Self {
        Self {
            most_open,
            most_bytes,
            stacks: HashMap::new(),
            spare: Vec::new(),
            ages: VecDeque::new(),
            entries: 0,
            open: 0,
            bytes: 0,
            gaps: Gaps::default(),
            incomplete: VecDeque::new(),
        }
    }

    /// A batch has arrived whose events are put into the order of time before they come here: a gap after it begins
    /// after its last event. Without this, a gap begins at the last event that came here.
    pub fn arrived(&mut self, batch: &Batch) {
        self.gaps.arrived(batch);
    }

    /// The same, from the time of the last event of a CPU that has arrived, where the batches themselves are not known.
    pub fn arrived_at(&mut self, cpu: u32, timestamp_ns: u64) {
        self.gaps.arrived_at(cpu, timestamp_ns);
    }

    /// Events are lost. No call is joined over the gap.
    pub fn gap(&mut self, loss: &Loss) {
        self.gaps.add(loss);
    }

    /// Another run of the daemon begins, which may have another clock: no call goes on.
    pub fn begin_anew(&mut self) {
        self.close_all(Incomplete::Gap);
        self.gaps = Gaps::default();
    }

    /// The next event may not be in its order, or others may be missing before it: no call goes on.
    pub fn close(&mut self) {
        self.gaps.has_any = true;
        self.close_all(Incomplete::Gap);
    }

    /// A function is entered. `keep` gives what is to be kept of the entry, for which it is shown what was kept of the
    /// innermost open call of the thread. `bytes`: of memory that this takes.
    pub fn enter(&mut self, end: CallEnd, bytes: usize, keep: impl FnOnce(Option<&T>) -> T) {
        if !self.pass(&end) {
            self.incomplete.push_back((keep(None), Incomplete::Gap));
            return;
        }
        let spare = &mut self.spare;
        let stack = self.stacks.entry(end.thread).or_insert_with(|| spare.pop().unwrap_or_default());
        let entry = keep(stack.last().map(|caller| &caller.entry));
        let (number, CallEnd { function, tgid, thread, .. }) = (self.entries, end);
        stack.push(Open { number, function, tgid, bytes, entry });
        self.ages.push_back((number, thread));
        self.entries += 1;
        self.open += 1;
        self.bytes += bytes;
        self.keep_within_limits();
    }

    /// A function returns. Gives what was kept of the entry of that call.
    ///
    /// # Errors
    /// Why there is no such entry.
    pub fn leave(&mut self, end: CallEnd) -> Result<T, Incomplete> {
        let unseen = if self.gaps.has_any { Incomplete::Gap } else { Incomplete::NoEntry };
        if !self.pass(&end) {
            return Err(Incomplete::Gap);
        }
        let stack = self.stacks.get_mut(&end.thread).ok_or(unseen)?;
        let index = stack.iter().rposition(|call| call.function == end.function).ok_or(unseen)?;
        for missed in stack.drain(index + 1..) {
            self.open -= 1;
            self.bytes -= missed.bytes;
            self.incomplete.push_back((missed.entry, Incomplete::NoReturn));
        }
        let call = stack.pop().ok_or(unseen)?;
        self.open -= 1;
        self.bytes -= call.bytes;
        if stack.is_empty() {
            self.drop_stack(end.thread);
        }
        Ok(call.entry)
    }

    /// No more events come.
    pub fn finish(&mut self) {
        let why = if self.gaps.is_ahead() { Incomplete::Gap } else { Incomplete::Running };
        self.close_all(why);
    }

    /// The next entry of a call without a return, which is known since the last end or gap. Take them all after each of
    /// these: they are not limited.
    pub fn next_incomplete(&mut self) -> Option<(T, Incomplete)> {
        self.incomplete.pop_front()
    }

    /// Calls that are open.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Bytes of their entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether an end can have another one.
    fn pass(&mut self, end: &CallEnd) -> bool {
        let (begins, place) = self.gaps.pass(end.timestamp_ns, end.cpu);
        if begins {
            self.close_all(Incomplete::Gap);
        }
        match place {
            Place::Clear => {
                let last = self.stacks.get(&end.thread).and_then(|stack| stack.last()?.tgid);
                if last.zip(end.tgid).is_some_and(|(before, now)| before != now) {
                    self.close_thread(end.thread, Incomplete::NoReturn);
                }
                true
            }
            Place::InGap => false,
            Place::Late => {
                self.close_thread(end.thread, Incomplete::Gap);
                false
            }
        }
    }

    fn close_thread(&mut self, thread: Thread, why: Incomplete) {
        let Some(stack) = self.stacks.get_mut(&thread) else { return };
        for call in stack.drain(..) {
            self.open -= 1;
            self.bytes -= call.bytes;
            self.incomplete.push_back((call.entry, why));
        }
        self.drop_stack(thread);
    }

    fn close_all(&mut self, why: Incomplete) {
        let mut calls: Vec<_> = self.stacks.drain().flat_map(|(_, stack)| stack).collect();
        calls.sort_unstable_by_key(|call| call.number);
        self.incomplete.extend(calls.into_iter().map(|call| (call.entry, why)));
        self.ages.clear();
        (self.open, self.bytes) = (0, 0);
    }

    /// Drops the empty stack of a thread.
    fn drop_stack(&mut self, thread: Thread) {
        if let Some(stack) = self.stacks.remove(&thread)
            && self.spare.len() < MOST_SPARE
        {
            self.spare.push(stack);
        }
    }

    fn keep_within_limits(&mut self) {
        while (self.open > self.most_open || self.bytes > self.most_bytes)
            && let Some((number, thread)) = self.ages.pop_front()
        {
            let Some(stack) = self.stacks.get_mut(&thread) else { continue };
            let Ok(index) = stack.binary_search_by_key(&number, |call| call.number) else { continue };
            let call = stack.remove(index);
            self.open -= 1;
            self.bytes -= call.bytes;
            self.incomplete.push_back((call.entry, Incomplete::Limit));
            if stack.is_empty() {
                self.drop_stack(thread);
            }
        }
        // As many as there are open calls have gone since the last time: each entry pays for a few.
        if self.ages.len() > 2 * self.open + 1024 {
            let stacks = &self.stacks;
            self.ages.retain(|(number, thread)| {
                let stack = stacks.get(thread);
                stack.is_some_and(|stack| stack.binary_search_by_key(number, |call| call.number).is_ok())
            });
        }
    }
}
