//! Hand-over of a CPU's events from one trace instance to the next.
//!
//! For a while both instances record the same events, and their pages are kept as they were read.
//! Then a [`Cutover`] says for each task up to when its events are taken from the old instance, and
//! from when on from the new one, so that no event is lost and none comes twice.
//!
//! Owns the one source of pages that readers have: a [`Source`] reads one ring buffer, or both of
//! them, and neither a reader nor the decoding knows which. Never decides when to change over: the
//! control thread does.

mod cutover;
mod pages;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use cutover::Side;
pub(super) use cutover::{Cutover, EventCopy};
pub use pages::HandoverWindow;
use pages::{HeldPages, HeldRecord};

use super::commands::{Inbox, answer};
use super::cpu::Cpu;
use super::decoding::{Decoding, Target};
use super::ring::{Depth, Found, Ring, TURN_BYTES};
use kprobed_host::kernel::trace_clock_ns;
use kprobed_host::ring::PageLayout;
use kprobed_host::tracefs::{Tracefs, TracefsError};

/// The most bytes that are held of one buffer. Later events wait in the ring buffer.
const HELD_BYTES_MAX: usize = 16 << 20;

/// Records that are decoded between two checks whether a batch is full.
const RECORDS_AT_ONCE: usize = 1024;

/// Most further reads for a call stack, which the kernel may still be writing, or has written to the next page. That
/// can bring another event that waits: so they are counted anew, until a page does not, or the batch is full.
const STACK_READS: usize = 64;

/// Time until it may be there. The kernel goes on with nothing else before, but for interrupts.
const STACK_TIME: Duration = Duration::from_micros(20);

/// Whole turns that an event waits for its call stack. What interrupts it has records of its own before, each of which
/// can be on a page of its own; after so many the stack does not come any more.
const STACK_TURNS: usize = 8;

/// The steps of a hand-over that a reader carries out, in order. It answers each of them.
#[derive(Debug)]
pub(super) enum Step {
    /// Read these buffers as well from now on, in the order of the reader's CPUs, and publish
    /// nothing.
    Hold(Vec<Ring>, Sender<()>),
    /// Read everything up to the end of the window. The answer is the copies of events in it;
    /// `None` if some of them are missing.
    Look(HandoverWindow, Sender<Option<Vec<EventCopy>>>),
    /// Publish the held events, each from one of the two instances, and go on with the new one. Without a cutover:
    /// those of the old instance, and close the new one.
    Settle(Option<Arc<Cutover>>, Sender<()>),
}

/// Source of a CPU's pages: one ring buffer or, during a hand-over, those of two instances that
/// record the same events.
#[derive(Debug)]
pub(super) struct Source {
    /// The buffer that events are taken from: the old one, as long as there are two.
    pub(super) ring: Ring,
    beside: Option<Box<Beside>>,
    /// Whole turns that the same event has waited for its call stack.
    waited_turns: usize,
}

/// The ring buffer in the new instance, and the pages read from both that are not yet published.
#[derive(Debug)]
struct Beside {
    new: Ring,
    old_pages: HeldPages,
    new_pages: HeldPages,
    /// Nothing was recorded in the new instance before this time.
    since_ns: u64,
    /// The old instance's counter gave the size of its gaps: events that it loses later may be
    /// counted with them.
    asked: bool,
}

impl Source {
    /// One ring buffer.
    pub(super) const fn new(ring: Ring) -> Self {
        Self { ring, beside: None, waited_turns: 0 }
    }

    /// Whether events were read that are not published yet, during a hand-over.
    pub(super) const fn holds(&self) -> bool {
        self.beside.is_some()
    }

    /// All buffers, to be polled.
    pub(super) fn rings(&self) -> impl Iterator<Item = &Ring> {
        std::iter::once(&self.ring).chain(self.beside.as_ref().map(|beside| &beside.new))
    }

    /// Reads as far as `depth` says, and publishes the events that need not be held.
    pub(super) fn read(
        &mut self,
        buffer: &mut Vec<u8>,
        depth: Depth,
        inbox: &Inbox,
        decoding: &mut Decoding<'_>,
    ) -> Found {
        if let Some(beside) = &mut self.beside {
            return beside.read(&mut self.ring, buffer, depth, inbox, decoding);
        }
        let bytes_max = if depth == Depth::Pages { TURN_BYTES } else { usize::MAX };
        let waited = decoding.waiting_event();
        let mut found = self.ring.read(buffer, depth, bytes_max, inbox, |page| decoding.page(&page));
        let mut reads = 0;
        while !decoding.collector.waiting.is_empty() && reads < STACK_READS {
            let before = decoding.collector.waiting.clone();
            let more = self.ring.read(buffer, Depth::Pages, 1, inbox, |page| decoding.page(&page));
            found = found.and(more);
            let waiting = decoding.waiting_event();
            reads = if decoding.collector.waiting == before { reads + 1 } else { 0 };
            if more.pages == 0 {
                std::thread::sleep(STACK_TIME);
            } else if depth == Depth::Pages && waiting.is_some() {
                self.waited_turns = if waiting == waited { self.waited_turns + 1 } else { 0 };
                if self.waited_turns >= STACK_TURNS {
                    self.waited_turns = 0;
                    decoding.collector.waiting.give_up_first();
                }
                if !decoding.collector.waiting.is_empty() {
                    // That of the last event there is on the page after it, and so on: the next turn begins there.
                    return Found { caught_up: false, is_published: false, ..found };
                }
            }
        }
        decoding.flush();
        found
    }

    /// Opens the buffer again after a malformed page. Returns whether its layout has changed.
    /// During a hand-over it does nothing: held pages have the layout that they were read with.
    pub(super) fn reopen(&mut self, tracefs: &Tracefs) -> Result<bool, TracefsError> {
        if self.beside.is_some() { Ok(false) } else { self.ring.reopen(tracefs) }
    }

    /// From now on the new buffer is read as well. Nothing is recorded in it before `now_ns`.
    fn hold(&mut self, new: Ring, now_ns: u64) {
        self.beside = Some(Box::new(Beside {
            new,
            old_pages: HeldPages::default(),
            new_pages: HeldPages::default(),
            since_ns: now_ns,
            asked: false,
        }));
    }

    /// Reads everything up to the end of the window, and adds every copy of an event in it. Returns
    /// whether none is missing.
    fn look(
        &mut self,
        window: &HandoverWindow,
        buffer: &mut Vec<u8>,
        inbox: &Inbox,
        decoding: &mut Decoding<'_>,
        copies: &mut Vec<EventCopy>,
    ) -> bool {
        let Some(beside) = &mut self.beside else { return false };
        loop {
            let depth = Depth::Until(*window.window.end());
            match beside.read(&mut self.ring, buffer, depth, inbox, decoding) {
                Found { caught_up: true, .. } => return beside.note(&self.ring, window, copies),
                // There is no room for the rest.
                Found { pages: 0, .. } => return false,
                Found { .. } => {}
            }
        }
    }

    /// Publishes the held events. With a cutover it continues with the new buffer; without one it
    /// closes the new buffer.
    fn settle(&mut self, cutover: Option<&Cutover>, decoding: &mut Decoding<'_>) {
        let Some(beside) = self.beside.take() else { return };
        let Beside { new, old_pages, new_pages, .. } = *beside;
        publish((&old_pages, &self.ring.layout), (&new_pages, &new.layout), cutover, decoding);
        if cutover.is_some() {
            self.ring = new;
        }
    }
}

impl Beside {
    /// Reads both buffers up to a time, not much at once, and holds the pages. It publishes events
    /// from before the time at which the new instance began to record.
    fn read(
        &mut self,
        old: &mut Ring,
        buffer: &mut Vec<u8>,
        depth: Depth,
        inbox: &Inbox,
        decoding: &mut Decoding<'_>,
    ) -> Found {
        let until_ns = match depth {
            Depth::Pages => trace_clock_ns(),
            Depth::Until(time_ns) => time_ns,
        };
        let of_new = hold_pages(&mut self.new, &mut self.new_pages, buffer, until_ns, inbox);
        let of_old = hold_pages(old, &mut self.old_pages, buffer, until_ns, inbox);
        self.asked |= old.asks_for_overruns;
        let earlier = self.old_pages.take_earlier(self.since_ns);
        publish((&earlier, &old.layout), (&HeldPages::default(), &self.new.layout), None, decoding);
        Found { is_published: false, broken: false, ..of_old.and(of_new) }
    }

    /// Adds every copy of an event in the window. Returns whether none is missing.
    fn note(&self, old: &Ring, window: &HandoverWindow, copies: &mut Vec<EventCopy>) -> bool {
        // While the old instance still records, a counter that was read may include events that the
        // new instance has.
        if self.asked && !window.has_ended {
            return false;
        }
        self.old_pages.note(Side::Old, old.cpu, &old.layout, window, copies)
            && self.new_pages.note(Side::New, old.cpu, &self.new.layout, window, copies)
    }
}

/// Reads one buffer up to a time, as far as there is room for what is held.
fn hold_pages(
    ring: &mut Ring,
    pages: &mut HeldPages,
    buffer: &mut Vec<u8>,
    until_ns: u64,
    inbox: &Inbox,
) -> Found {
    if pages.reaches(until_ns) {
        return Found::NOTHING;
    }
    let bytes_max = HELD_BYTES_MAX.saturating_sub(pages.bytes()).min(TURN_BYTES);
    let layout = ring.layout;
    ring.read(buffer, Depth::Until(until_ns), bytes_max, inbox, |page| pages.push(&page, &layout))
}

/// Publishes the held events of two instances, in the order of time, each from one of them. Without
/// a cutover everything is taken from the old one.
fn publish(
    (old, old_layout): (&HeldPages, &PageLayout),
    (new, new_layout): (&HeldPages, &PageLayout),
    cutover: Option<&Cutover>,
    decoding: &mut Decoding<'_>,
) {
    let cpu = decoding.cpu;
    let taken = |side| {
        move |held: &HeldRecord<'_>| match (held, cutover) {
            (HeldRecord::Event(record), Some(cutover)) => {
                cutover.takes(side, cpu, record.timestamp_ns, record.payload)
            }
            (HeldRecord::Lost(_, end_ns), Some(cutover)) => cutover.takes_gap(side, *end_ns),
            _ => side == Side::Old,
        }
    };
    let mut old_records = old.records(old_layout).filter(taken(Side::Old)).peekable();
    let mut new_records = new.records(new_layout).filter(taken(Side::New)).peekable();
    let pages = old.len() + if cutover.is_some() { new.len() } else { 0 };
    let mut records = decoding.begin(pages as u64);
    for count in 1_usize.. {
        let new_is_first = match (old_records.peek(), new_records.peek()) {
            (None, None) => break,
            (old, None) => old.is_none(),
            (None, Some(_)) => true,
            (Some(old), Some(new)) => new.time_ns() < old.time_ns(),
        };
        match if new_is_first { new_records.next() } else { old_records.next() } {
            Some(HeldRecord::Event(record)) => records.event(&record, record.payload),
            Some(HeldRecord::Lost(gap, before_ns)) => records.gap(gap, before_ns),
            Some(HeldRecord::Malformed(error, _)) => records.malformed(&error),
            None => break,
        }
        if count.is_multiple_of(RECORDS_AT_ONCE) {
            records.flush_if_full();
        }
    }
    records.end();
    decoding.flush();
}

/// Does a step for all CPUs of a reader.
pub(super) fn carry_out(
    step: Step,
    cpus: &mut [Cpu],
    buffer: &mut Vec<u8>,
    inbox: &Inbox,
    target: &mut Target,
) {
    match step {
        Step::Hold(rings, done) => {
            let now_ns = trace_clock_ns();
            for (cpu, ring) in cpus.iter_mut().zip(rings) {
                // What others have taken until here: the counts of two instances are not comparable.
                cpu.look_at_stats(target);
                cpu.source.hold(ring, now_ns);
            }
            answer(&done, ());
        }
        Step::Look(window, reply) => {
            let mut copies = Vec::new();
            let is_whole = cpus.iter_mut().all(|cpu| {
                let (source, mut decoding) = cpu.parts(target);
                source.look(&window, buffer, inbox, &mut decoding, &mut copies)
            });
            answer(&reply, is_whole.then_some(copies));
        }
        Step::Settle(cutover, done) => {
            if cutover.is_some() {
                for cpu in cpus.iter_mut() {
                    cpu.look_at_stats(target);
                }
            }
            settle(cpus, cutover.as_deref(), target);
            answer(&done, ());
        }
    }
}

/// Publishes the held events of all CPUs of a reader: see [`Source::settle`].
pub(super) fn settle(cpus: &mut [Cpu], cutover: Option<&Cutover>, target: &mut Target) {
    for cpu in cpus {
        let (source, mut decoding) = cpu.parts(target);
        source.settle(cutover, &mut decoding);
    }
}
