//! Reader thread: its turns, rests, and sleep.
//!
//! Owns the ring buffers of some CPUs. Without events it sleeps in `poll`, without a time-out
//! unless a subscriber asked for a heartbeat or one of its CPUs has never been online; any event
//! wakes it. After a turn that found events it
//! rests (`pace`). While a subscriber wants the order of time, each reader also publishes how far
//! it has read: a reader with events wakes those that have not read since, and once all of them are
//! past the last event they sleep again. Never resizes a buffer: it asks for larger ones
//! (`demand`).

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::EventFd;
use nix::sys::prctl;
use nix::sys::signal::SigSet;
use nix::sys::time::TimeSpec;

use super::commands::{Command, Inbox, answer};
use super::cpu::Cpu;
use super::decoding::Target;
use super::handover;
use super::readers::ReaderContext;
use super::ring::{Depth, Found};
use kprobed_host::kernel::trace_clock_ns;
use kprobed_host::tracefs::TracefsError;

/// How old an event may be when it is recorded: a task can be held up between taking the time and
/// committing the event. An event that takes longer is late.
pub const WATERMARK_SLACK: Duration = Duration::from_millis(2);

/// The longest time, while there are events, until the daemon notices that another program has
/// emptied or resized the buffers, or that they are too small.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long control may take at most to have the kernel empty the buffers after a drain, and to say so: a
/// deletion waits for the kernel.
const EMPTIED_WITHIN: Duration = Duration::from_secs(10);

/// The longest time until the first events of a CPU are read that comes online for the first time.
/// Nothing wakes the reader for it.
const CPU_INTERVAL: Duration = Duration::from_millis(500);

/// How far one reader has read: everything before this time, in nanoseconds of the trace clock.
#[derive(Debug, Default)]
pub(super) struct Mark(AtomicU64);

/// The parts of a reader.
#[derive(Debug)]
pub(super) struct ReaderParts {
    pub(super) index: usize,
    pub(super) cpus: Vec<Cpu>,
    /// Event file descriptors that wake the readers, this one included.
    pub(super) wakes: Vec<Arc<EventFd>>,
    pub(super) marks: Arc<[Mark]>,
    pub(super) inbox: Inbox,
}

pub(super) struct Reader {
    parts: ReaderParts,
    context: ReaderContext,
    target: Target,
    /// Memory that pages are read into.
    buffer: Vec<u8>,
    buffer_bytes: u64,
    /// When the reader last checked the kernel's counters and the rates.
    looked_at: Instant,
    /// When it checked the counters because control asked it to read everything, if the buffers may still be
    /// emptied for that.
    drained_at: Option<Instant>,
}

impl Reader {
    pub(super) fn new(parts: ReaderParts, context: ReaderContext) -> Self {
        let target = Target::new(
            Arc::clone(&context.sources),
            Arc::clone(&context.hub),
            (context.tracefs.clone(), context.procfs.clone()),
            Arc::clone(&context.facts),
        );
        let mut reader = Self {
            parts,
            context,
            target,
            buffer: Vec::new(),
            buffer_bytes: 0,
            looked_at: Instant::now(),
            drained_at: None,
        };
        reader.look_at_size();
        reader
    }

    /// Reads the size of the buffers, which another program may change.
    fn look_at_size(&mut self) {
        let instance = self.parts.cpus.first().map(|cpu| &cpu.source.ring.instance);
        let kib = instance.and_then(|instance| instance.buffer_kib().ok());
        self.buffer_bytes = kib.unwrap_or_default() << 10;
    }

    pub(super) fn run(&mut self) -> Result<(), Errno> {
        // Without this the kernel may end a rest 50 us late.
        if let Err(errno) = prctl::set_timerslack(1) {
            tracing::warn!(%errno, "readers cannot ask for exact timers: events may be 50 us later");
        }
        loop {
            // Before the next events are published: what another program has taken came before them.
            // During a hand-over the counters of two instances are not comparable: the reader checks
            // them once it reads from one instance again.
            let elapsed = self.looked_at.elapsed();
            let is_due = elapsed >= LOOK_INTERVAL
                && !self.parts.inbox.has_command()
                && !self.parts.cpus.iter().any(|cpu| cpu.source.holds());
            if is_due {
                self.looked_at = Instant::now();
                self.look_at_size();
                // The daemon itself may have the kernel empty the buffers after a drain, and says so only then.
                if self.drained_at.is_none_or(|drained| drained.elapsed() >= EMPTIED_WITHIN) {
                    self.look_at_stats();
                }
            }
            let found = self.turn(Depth::Pages);
            self.context.activity.read(found.data_bytes);
            if is_due {
                self.look_at_rates(elapsed);
            }
            while let Some(command) = self.parts.inbox.take() {
                if self.carry_out(command) {
                    return Ok(());
                }
            }
            let is_behind = self.target.hub.is_ordered() && !self.is_past_last_event();
            match found {
                Found { pages: 0, .. } if !is_behind => self.sleep_until_event()?,
                Found { pages: 1.., caught_up: false, .. } => {}
                _ => self.rest(self.target.hub.pace().rest(self.buffer_bytes))?,
            }
        }
    }

    /// Returns whether the thread ends.
    fn carry_out(&mut self, command: Command) -> bool {
        match command {
            Command::Drain(done) => {
                self.turn(Depth::Until(trace_clock_ns()));
                self.look_at_size();
                self.look_at_stats();
                self.drained_at = Some(Instant::now());
                answer(&done, ());
            }
            Command::BuffersWereReset(done) => {
                self.parts.cpus.iter_mut().for_each(Cpu::was_reset);
                self.drained_at = None;
                answer(&done, ());
            }
            Command::HandOver(step) => {
                let ReaderParts { cpus, inbox, .. } = &mut self.parts;
                handover::carry_out(step, cpus, &mut self.buffer, inbox, &mut self.target);
            }
            Command::Beat(reply) => {
                // The watchdog has stopped waiting: the daemon ends.
                reply.send(()).ok();
            }
            Command::Stop => {
                handover::settle(&mut self.parts.cpus, None, &mut self.target);
                self.turn(Depth::Until(trace_clock_ns()));
                return true;
            }
        }
        false
    }

    /// Asks for larger buffers if these are too small. It does not ask if another program has given
    /// them different sizes, which is on purpose.
    fn look_at_rates(&mut self, elapsed: Duration) {
        let buffer_bytes = self.buffer_bytes;
        let wanted = self.parts.cpus.iter_mut().map(|cpu| cpu.wanted_bytes(elapsed, buffer_bytes));
        let wanted = wanted.max().unwrap_or_default();
        if buffer_bytes > 0 && wanted > buffer_bytes {
            self.context.demand.ask(wanted);
        }
    }

    fn look_at_stats(&mut self) {
        self.parts.cpus.iter_mut().for_each(|cpu| cpu.look_at_stats(&self.target));
    }

    /// Reads all CPUs once.
    fn turn(&mut self, depth: Depth) -> Found {
        let begun_ns = trace_clock_ns();
        let mut total = Found::NOTHING;
        for cpu in &mut self.parts.cpus {
            total = total.and(cpu.read(&mut self.buffer, depth, &self.parts.inbox, &mut self.target));
        }
        if total.broken
            && let Err(error) = self.reopen()
        {
            tracing::error!(%error, "cannot open the ring buffers again");
        }
        if total.caught_up && total.is_published && self.target.hub.is_ordered() {
            self.tell_mark(begun_ns);
        }
        total
    }

    /// Opens all buffers again, after a malformed page.
    fn reopen(&mut self) -> Result<(), TracefsError> {
        let mut has_changed = false;
        for cpu in &mut self.parts.cpus {
            has_changed |= cpu.source.reopen(&self.context.tracefs)?;
        }
        if has_changed {
            let bytes = self.parts.cpus.first().map(|cpu| cpu.source.ring.layout.sub_buffer_bytes());
            tracing::warn!(bytes, "another program has changed the size of the sub-buffers");
        }
        Ok(())
    }

    fn is_past_last_event(&self) -> bool {
        let own = self.parts.marks.get(self.parts.index);
        own.is_none_or(|mark| mark.0.load(Ordering::Relaxed) > self.target.hub.last_event_ns())
    }

    /// Records that everything of these CPUs from before `begun_ns` is published. Wakes readers
    /// that have not read past the last event, and publishes the watermark of all readers.
    fn tell_mark(&self, begun_ns: u64) {
        let slack_ns = u64::try_from(WATERMARK_SLACK.as_nanos()).unwrap_or(u64::MAX);
        let hub = &self.target.hub;
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
        let Some(wake) = self.parts.wakes.get(self.parts.index) else { return Ok(()) };
        let mut timeout = self.target.hub.heartbeat();
        let mut fds = Vec::new();
        for ring in self.parts.cpus.iter().flat_map(|cpu| cpu.source.rings()) {
            match ring.polled() {
                Some(file) => fds.push(PollFd::new(file.as_fd(), PollFlags::POLLIN)),
                None => timeout = Some(timeout.map_or(CPU_INTERVAL, |time| time.min(CPU_INTERVAL))),
            }
        }
        fds.push(PollFd::new(wake.as_fd(), PollFlags::POLLIN));
        wait(&mut fds, timeout, wake)
    }

    /// Waits for a command only.
    fn rest(&self, time: Duration) -> Result<(), Errno> {
        let Some(wake) = self.parts.wakes.get(self.parts.index) else { return Ok(()) };
        wait(&mut [PollFd::new(wake.as_fd(), PollFlags::POLLIN)], Some(time), wake)
    }
}

/// Waits for files. The last of them is `wake`, which is read if it is readable.
fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>, wake: &EventFd) -> Result<(), Errno> {
    match ppoll(fds, timeout.map(TimeSpec::from_duration), None::<SigSet>) {
        Ok(0) | Err(Errno::EINTR) => return Ok(()),
        Ok(_) => {}
        Err(errno) => return Err(errno),
    }
    // A ring buffer that answers with an error and no data would spin: its instance is gone.
    let broken = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| events.intersects(PollFlags::POLLNVAL));
    if fds.iter().any(broken) {
        return Err(Errno::EBADF);
    }
    if fds.last().is_none_or(|fd| fd.any() == Some(false)) {
        return Ok(());
    }
    match wake.read() {
        Ok(_) | Err(Errno::EAGAIN) => Ok(()),
        Err(errno) => Err(errno),
    }
}
