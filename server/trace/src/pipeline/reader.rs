//! One reader thread: turns, rests, and sleep.
//!
//! It owns some CPUs. Without events it sleeps in `poll`, without a time-out unless a subscriber asked for a heartbeat; any event wakes it. After a turn that found something it rests
//! (`pace`). While somebody wants the order of time, the readers also tell each other how far they have read: a reader with events wakes
//! those that have not looked since, and once all of them are past the last event they sleep again.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::EventFd;
use nix::sys::signal::SigSet;
use nix::sys::time::TimeSpec;

use super::cpu::{Cpu, Depth};
use super::cut::{Cuts, Seen};
use super::held::{Held, HeldPages, NextRings, Wanted};
use super::pace;
use super::readers::ReaderContext;
use super::turn::Turn;
use super::waiting::Waiting;
use super::{AddressNames, TaskNames};
use kprobed_host::kernel::trace_clock_ns;
use kprobed_host::ring::PageLayout;
use kprobed_host::tracefs::TracefsError;

/// How old an event may be when it is recorded: between taking its time and committing it, a task can be held up. What takes longer is late.
pub const WATERMARK_SLACK: Duration = Duration::from_millis(2);

/// How long it takes at most, while there are events, until the daemon notices that somebody has emptied or resized the buffers, or that they
/// are too small.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What a thread is asked to do.
#[derive(Debug)]
pub(super) enum Command {
    /// Read everything that has happened until now, publish it, and answer.
    Drain(Sender<()>),
    /// The kernel has emptied the buffers and set their counters to zero; answer.
    BuffersWereReset(Sender<()>),
    /// Read another instance as well from now on, publish nothing, and answer.
    Hold(NextRings, Sender<()>),
    /// Read everything up to the end of the window, and answer what was seen of it; nothing when some of it is missing.
    Look(Wanted, Sender<Option<Vec<Seen>>>),
    /// Publish what is held, each event from one of the two instances, go on with the next one, and answer.
    GoOver(Arc<Cuts>, Sender<()>),
    /// Publish what is held of the last instance, forget the next one, and answer.
    GoBack(Sender<()>),
    /// Read everything that has happened until now, publish it, and end.
    Stop,
}

/// How far one reader has read: everything before this time, in nanoseconds of the trace clock.
#[derive(Debug, Default)]
pub(super) struct Mark(AtomicU64);

/// What a reader is made of.
#[derive(Debug)]
pub(super) struct ReaderParts {
    pub(super) index: usize,
    pub(super) cpus: Vec<Cpu>,
    pub(super) layout: PageLayout,
    /// To wake each of the readers, this one included.
    pub(super) wakes: Vec<Arc<EventFd>>,
    pub(super) marks: Arc<[Mark]>,
    pub(super) inbox: Receiver<Command>,
    pub(super) waiting: Arc<Waiting>,
    pub(super) context: ReaderContext,
}

pub(super) struct Reader {
    parts: ReaderParts,
    page: Vec<u8>,
    tasks: TaskNames,
    addresses: AddressNames,
    buffer_bytes: u64,
    /// When the kernel's counters and the rates were last looked at.
    looked_at: Instant,
    /// While two instances record the same events.
    held: Option<Held>,
}

/// What a turn over all CPUs found.
#[derive(Clone, Copy)]
struct TurnFound {
    pages: usize,
    caught_up: bool,
}

impl Reader {
    pub(super) fn new(parts: ReaderParts) -> Self {
        let context = &parts.context;
        let tasks = TaskNames::new(context.tracefs.clone(), context.procfs.clone());
        let addresses = AddressNames::new(Arc::clone(&context.facts));
        let page = vec![0; parts.layout.sub_buffer_bytes()];
        let mut reader =
            Self { parts, page, tasks, addresses, buffer_bytes: 0, looked_at: Instant::now(), held: None };
        reader.look_at_size();
        reader
    }

    /// Somebody may change the size of the buffers.
    fn look_at_size(&mut self) {
        self.buffer_bytes = self.parts.context.instance.buffer_kib().unwrap_or_default() << 10;
    }

    pub(super) fn run(&mut self) -> Result<(), Errno> {
        loop {
            let found = self.turn(Depth::Pages);
            if found.pages > 0 && self.held.is_none() && self.looked_at.elapsed() >= LOOK_INTERVAL {
                let elapsed = self.looked_at.elapsed();
                self.looked_at = Instant::now();
                self.look_at_size();
                self.look_at_stats();
                self.look_at_rates(elapsed);
            }
            loop {
                let command = self.parts.inbox.try_recv();
                if command.is_ok() {
                    self.parts.waiting.one_less();
                }
                match command {
                    Ok(Command::Drain(done)) => {
                        self.turn(Depth::Until(trace_clock_ns()));
                        self.look_at_size();
                        self.look_at_stats();
                        answer(&done, ());
                    }
                    Ok(Command::BuffersWereReset(done)) => {
                        self.parts.cpus.iter_mut().for_each(|cpu| cpu.ring.was_reset());
                        answer(&done, ());
                    }
                    Ok(Command::Hold(next, done)) => {
                        self.held = Some(Held::new(next, trace_clock_ns()));
                        answer(&done, ());
                    }
                    Ok(Command::Look(wanted, reply)) => answer(&reply, self.look(&wanted)),
                    Ok(Command::GoOver(cuts, done)) => {
                        self.look_at_stats();
                        self.publish_held(Some(&cuts));
                        answer(&done, ());
                    }
                    Ok(Command::GoBack(done)) => {
                        self.publish_held(None);
                        answer(&done, ());
                    }
                    Ok(Command::Stop) | Err(TryRecvError::Disconnected) => {
                        self.publish_held(None);
                        self.turn(Depth::Until(trace_clock_ns()));
                        return Ok(());
                    }
                    Err(TryRecvError::Empty) => break,
                }
            }
            let is_behind = self.parts.context.hub.is_ordered() && !self.is_past_last_event();
            match found {
                TurnFound { pages: 0, .. } if !is_behind && self.held.is_none() => {
                    self.sleep_until_event()?;
                }
                TurnFound { pages: 1.., caught_up: false } => {}
                _ => self.rest(pace::rest(self.parts.context.hub.pace(), self.buffer_bytes))?,
            }
        }
    }

    /// Asks for larger buffers when these are too small. Not when somebody has given them different sizes: he wants them so.
    fn look_at_rates(&mut self, elapsed: Duration) {
        let buffer_bytes = self.buffer_bytes;
        let wanted = self.parts.cpus.iter_mut().map(|cpu| cpu.wanted_bytes(elapsed, buffer_bytes));
        let wanted = wanted.max().unwrap_or_default();
        if buffer_bytes > 0 && wanted > buffer_bytes {
            self.parts.context.demand.ask(wanted);
        }
    }

    fn look_at_stats(&mut self) {
        let context = &self.parts.context;
        for cpu in &mut self.parts.cpus {
            cpu.ring.look_at_stats(&context.instance, &cpu.counters, &context.hub);
        }
    }

    /// Reads what both instances have until some time, and keeps it. What only the last one can have is published.
    fn hold(&mut self, until_ns: u64) -> TurnFound {
        let mut total = TurnFound { pages: 0, caught_up: true };
        let Some(mut held) = self.held.take() else { return total };
        let room = self.parts.layout.sub_buffer_bytes().max(held.layout.sub_buffer_bytes());
        self.page.resize(room, 0);
        for index in 0..self.parts.cpus.len() {
            let Some(cpu) = self.parts.cpus.get_mut(index) else { break };
            let last = (&self.parts.context.instance, &self.parts.layout);
            let found = held.read(index, &mut cpu.ring, last, &mut self.page, until_ns);
            total.pages += found.pages;
            total.caught_up &= found.is_all;
            self.publish_pages(index, &found.earlier, (&HeldPages::default(), &held.layout), None);
        }
        self.held = Some(held);
        total
    }

    fn look(&mut self, wanted: &Wanted) -> Option<Vec<Seen>> {
        loop {
            match self.hold(*wanted.window.end()) {
                TurnFound { caught_up: true, .. } => break,
                // There is no room for the rest.
                TurnFound { pages: 0, .. } => return None,
                TurnFound { .. } => {}
            }
        }
        let numbers: Vec<_> = self.parts.cpus.iter().map(|cpu| cpu.ring.number()).collect();
        self.held.as_ref()?.seen(&numbers, &self.parts.layout, wanted)
    }

    /// Publishes what is held. With cuts the next instance is the one that is read from now on; without, it is forgotten.
    fn publish_held(&mut self, cuts: Option<&Cuts>) {
        let Some(held) = self.held.take() else { return };
        for (index, held_cpu) in held.cpus.into_iter().enumerate() {
            self.publish_pages(index, &held_cpu.last_pages, (&held_cpu.next_pages, &held.layout), cuts);
            if cuts.is_some()
                && let Some(cpu) = self.parts.cpus.get_mut(index)
            {
                cpu.ring = held_cpu.next;
            }
        }
        if cuts.is_some() {
            self.parts.context.instance = held.instance;
            self.parts.layout = held.layout;
        }
        self.page = vec![0; self.parts.layout.sub_buffer_bytes()];
    }

    /// Publishes pages that were held of one CPU: see [`Turn::held`].
    fn publish_pages(
        &mut self,
        index: usize,
        last: &HeldPages,
        next: (&HeldPages, &PageLayout),
        cuts: Option<&Cuts>,
    ) {
        let Some(cpu) = self.parts.cpus.get_mut(index) else { return };
        let context = &self.parts.context;
        let mut turn = Turn {
            cpu: cpu.ring.number(),
            layout: &self.parts.layout,
            sources: &context.sources,
            counters: &cpu.counters,
            hub: &context.hub,
            tasks: &mut self.tasks,
            addresses: &mut self.addresses,
        };
        turn.held((last, &self.parts.layout), next, cuts, &mut cpu.collector);
    }

    /// Reads all CPUs once.
    fn turn(&mut self, depth: Depth) -> TurnFound {
        let begun_ns = trace_clock_ns();
        if self.held.is_some() {
            return self.hold(begun_ns);
        }
        let mut total = TurnFound { pages: 0, caught_up: true };
        let mut broken = false;
        let context = &self.parts.context;
        for cpu in &mut self.parts.cpus {
            let counters = Arc::clone(&cpu.counters);
            let mut turn = Turn {
                cpu: cpu.ring.number(),
                layout: &self.parts.layout,
                sources: &context.sources,
                counters: &counters,
                hub: &context.hub,
                tasks: &mut self.tasks,
                addresses: &mut self.addresses,
            };
            let found = cpu.read(&mut turn, &mut self.page, &context.instance, depth, &self.parts.waiting);
            total.pages += found.pages;
            total.caught_up &= found.caught_up;
            broken |= found.broken;
        }
        if broken && let Err(error) = self.reopen() {
            tracing::error!(%error, "cannot open the ring buffers again");
        }
        if total.caught_up && self.parts.context.hub.is_ordered() {
            self.tell_mark(begun_ns);
        }
        total
    }

    /// Pages make no sense: somebody may have changed their size, and then files have to be opened again (kernel/trace/trace.c:
    /// buffer_subbuf_size_write, since 6.8).
    fn reopen(&mut self) -> Result<(), TracefsError> {
        let context = &self.parts.context;
        let text = context.instance.header_page(&context.tracefs)?;
        let Ok(layout) = PageLayout::parse(&text) else { return Ok(()) };
        if layout != self.parts.layout {
            tracing::warn!(
                bytes = layout.sub_buffer_bytes(),
                "another program has changed the size of the sub-buffers"
            );
            self.page = vec![0; layout.sub_buffer_bytes()];
            self.parts.layout = layout;
        }
        for cpu in &mut self.parts.cpus {
            cpu.ring.file = context.instance.open_raw(cpu.ring.number())?;
        }
        Ok(())
    }

    fn is_past_last_event(&self) -> bool {
        let own = self.parts.marks.get(self.parts.index);
        own.is_none_or(|mark| mark.0.load(Ordering::Relaxed) > self.parts.context.hub.last_event_ns())
    }

    /// Everything of these CPUs from before `begun_ns` is published. Wakes readers that lie behind the last event, and tells how far all are.
    fn tell_mark(&self, begun_ns: u64) {
        let slack_ns = u64::try_from(WATERMARK_SLACK.as_nanos()).unwrap_or(u64::MAX);
        let hub = &self.parts.context.hub;
        if let Some(own) = self.parts.marks.get(self.parts.index) {
            own.0.store(begun_ns.saturating_sub(slack_ns), Ordering::Relaxed);
        }
        let last_event_ns = hub.last_event_ns();
        let mut all_ns = u64::MAX;
        for (index, (mark, wake)) in self.parts.marks.iter().zip(&self.parts.wakes).enumerate() {
            let mark_ns = mark.0.load(Ordering::Relaxed);
            all_ns = all_ns.min(mark_ns);
            if index != self.parts.index
                && mark_ns <= last_event_ns
                && let Err(errno) = wake.write(1)
            {
                tracing::error!(%errno, "cannot wake a reader");
            }
        }
        hub.publish_watermark(all_ns);
    }

    fn sleep_until_event(&self) -> Result<(), Errno> {
        let mut fds: Vec<_> =
            self.parts.cpus.iter().map(|cpu| PollFd::new(cpu.ring.file.as_fd(), PollFlags::POLLIN)).collect();
        let Some(wake) = self.parts.wakes.get(self.parts.index) else { return Ok(()) };
        fds.push(PollFd::new(wake.as_fd(), PollFlags::POLLIN));
        wait(&mut fds, self.parts.context.hub.heartbeat(), wake)
    }

    /// Waits for a command only.
    fn rest(&self, time: Duration) -> Result<(), Errno> {
        let Some(wake) = self.parts.wakes.get(self.parts.index) else { return Ok(()) };
        wait(&mut [PollFd::new(wake.as_fd(), PollFlags::POLLIN)], Some(time), wake)
    }
}

fn answer<T>(reply: &Sender<T>, value: T) {
    if reply.send(value).is_err() {
        tracing::debug!("the caller has gone before the answer");
    }
}

fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>, wake: &EventFd) -> Result<(), Errno> {
    match ppoll(fds, timeout.map(TimeSpec::from_duration), None::<SigSet>) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(errno),
    }
    // A ring buffer that answers with an error and no data would spin: its instance is gone.
    let broken = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| events.intersects(PollFlags::POLLNVAL));
    if fds.iter().any(broken) {
        return Err(Errno::EBADF);
    }
    match wake.read() {
        Ok(_) | Err(Errno::EAGAIN) => Ok(()),
        Err(errno) => Err(errno),
    }
}
