//! The reader threads.
//!
//! Each owns some CPUs. Without events they sleep in `poll`: any event wakes them (`buffer_percent` is 0). After a turn that found
//! something they rest before they listen again, so that a busy kernel wakes them a hundred times a second and not once for each event;
//! the more they found, the shorter they rest.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use thiserror::Error;

use super::counters::BufferCounters;
use super::turn::{Collector, Turn};
use super::{AddressNames, BufferCounts, Hub, SourceTable, TaskNames};
use crate::kernel::FactsCache;
use crate::ring::PageLayout;
use crate::tracefs::{Instance, Tracefs, TracefsError};

/// Why the readers could not be started.
#[derive(Debug, Error)]
pub enum ReadersError {
    /// A file of the instance could not be opened.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// The layout of pages is not known.
    #[error("the kernel describes its pages in a way that is not understood: {0}")]
    Layout(#[from] crate::ring::LayoutError),
    /// No thread or no event file descriptor could be had.
    #[error("can not start a reader: {0}")]
    Start(#[from] io::Error),
}

/// Pages that one CPU may have in one turn, so that a busy one does not keep the others waiting.
const TURN_PAGES: usize = 256;

/// Rest after a turn that found little.
const LONG_REST: Duration = Duration::from_millis(10);

/// Rest after a turn that found at least [`BUSY_PAGES`].
const SHORT_REST: Duration = Duration::from_millis(1);

/// Pages in one turn that make a reader busy.
const BUSY_PAGES: usize = 16;

/// Reader threads at most: one can carry what several CPUs produce.
const MAX_THREADS: usize = 4;

/// What a thread is asked to do.
enum Command {
    /// Read everything that is there, publish it, and answer.
    Drain(Sender<()>),
    /// The kernel has emptied the buffers and set their counters to zero.
    BuffersWereReset,
    /// Read everything that is there, publish it, and end.
    Stop,
}

/// What the readers share with the rest of the daemon.
#[derive(Clone, Debug)]
pub struct ReaderContext {
    /// Where tracefs is.
    pub tracefs: Tracefs,
    /// The instance to read.
    pub instance: Instance,
    /// Usually `/proc`.
    pub procfs: PathBuf,
    /// Which event id is whose.
    pub sources: Arc<SourceTable>,
    /// Where events go.
    pub hub: Arc<Hub>,
    /// Symbols.
    pub facts: Arc<FactsCache>,
}

#[derive(Debug)]
struct Handle {
    commands: Sender<Command>,
    wake: Arc<EventFd>,
    thread: JoinHandle<()>,
}

impl Handle {
    fn send(&self, command: Command) {
        // A thread that has ended is noticed by whoever waits for its answer.
        if self.commands.send(command).is_ok()
            && let Err(errno) = self.wake.write(1)
        {
            tracing::error!(%errno, "can not wake a reader");
        }
    }
}

/// All reader threads of an instance.
#[derive(Debug)]
pub struct Readers {
    handles: Vec<Handle>,
    counters: Vec<(u32, Arc<BufferCounters>)>,
    layout: PageLayout,
}

impl Readers {
    /// Starts reading.
    ///
    /// # Errors
    /// See [`ReadersError`].
    pub fn start(context: &ReaderContext) -> Result<Self, ReadersError> {
        let layout = PageLayout::parse(&context.instance.header_page(&context.tracefs)?)?;
        let mut cpus: Vec<Cpu> = Vec::new();
        for cpu in context.instance.cpus()? {
            cpus.push(Cpu::new(cpu, context.instance.open_raw(cpu)?));
        }
        let counters = cpus.iter().map(|cpu| (cpu.number, Arc::clone(&cpu.counters))).collect();
        let mut shares: Vec<Vec<Cpu>> = (0..cpus.len().min(MAX_THREADS)).map(|_| Vec::new()).collect();
        let threads = shares.len().max(1);
        for (index, cpu) in cpus.into_iter().enumerate() {
            if let Some(share) = shares.get_mut(index % threads) {
                share.push(cpu);
            }
        }
        let mut handles = Vec::new();
        for (index, share) in shares.into_iter().enumerate() {
            handles.push(spawn(index, share, layout, context.clone())?);
        }
        Ok(Self { handles, counters, layout })
    }

    /// Layout of the pages.
    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// Has all readers read and publish what the kernel's buffers hold, and waits until they have.
    pub fn drain(&self) {
        let (done, answers) = channel();
        for handle in &self.handles {
            handle.send(Command::Drain(done.clone()));
        }
        drop(done);
        for _ in &self.handles {
            if answers.recv().is_err() {
                tracing::error!("a reader has ended before its time");
                return;
            }
        }
    }

    /// Tells the readers that the kernel has emptied the buffers and set their counters to zero.
    pub fn buffers_were_reset(&self) {
        for handle in &self.handles {
            handle.send(Command::BuffersWereReset);
        }
    }

    /// Where the events of each CPU went.
    pub fn counts(&self) -> Vec<BufferCounts> {
        self.counters.iter().map(|(cpu, counters)| counters.counts(*cpu)).collect()
    }

    /// Reads what is left and ends the threads. Their files are closed when this returns.
    pub fn stop(self) {
        for handle in &self.handles {
            handle.send(Command::Stop);
        }
        for handle in self.handles {
            if handle.thread.join().is_err() {
                tracing::error!("a reader has panicked");
            }
        }
    }
}

fn spawn(
    index: usize,
    cpus: Vec<Cpu>,
    layout: PageLayout,
    context: ReaderContext,
) -> Result<Handle, ReadersError> {
    let wake = Arc::new(
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(io::Error::from)?,
    );
    let (commands, inbox) = channel();
    let thread_wake = Arc::clone(&wake);
    let thread = Builder::new().name(format!("kprobed-read-{index}")).spawn(move || {
        let mut reader = Reader {
            cpus,
            page: vec![0; layout.sub_buffer_bytes()],
            layout,
            tasks: TaskNames::new(context.tracefs.clone(), context.procfs.clone()),
            addresses: AddressNames::new(Arc::clone(&context.facts)),
            context,
            wake: thread_wake,
            inbox,
        };
        if let Err(errno) = reader.run() {
            tracing::error!(%errno, "a reader can not go on: events are no longer read");
        }
    })?;
    Ok(Handle { commands, wake, thread })
}

/// One CPU of a reader.
#[derive(Debug)]
struct Cpu {
    number: u32,
    file: File,
    counters: Arc<BufferCounters>,
    /// Overruns told since the buffer's own counters were at zero.
    told_overruns: u64,
    /// A page had no room for its number of lost events: from there on the buffer's counter is asked, since later numbers on pages can
    /// overlap with what was told.
    ask_for_overruns: bool,
    /// Refused events counted since the buffer's own counters were at zero.
    known_refused: u64,
}

impl Cpu {
    fn new(number: u32, file: File) -> Self {
        let counters = Arc::default();
        Self { number, file, counters, told_overruns: 0, ask_for_overruns: false, known_refused: 0 }
    }

    /// How many events a page's loss flag stands for. `counted` is the number on the page, where there was room for it.
    fn lost(&mut self, counted: Option<u64>, instance: &Instance) -> Option<u64> {
        self.ask_for_overruns |= counted.is_none();
        if self.ask_for_overruns {
            return self.untold_overruns(instance);
        }
        self.told_overruns += counted.unwrap_or(0);
        counted
    }

    /// How many events were overwritten and not told yet. Absent when the buffer's counter can not be read.
    fn untold_overruns(&mut self, instance: &Instance) -> Option<u64> {
        let stats = instance.stats(self.number).ok()?;
        let untold = stats.overrun.saturating_sub(self.told_overruns);
        self.told_overruns = stats.overrun;
        Some(untold)
    }

    fn count_refused(&mut self, instance: &Instance) {
        if let Ok(stats) = instance.stats(self.number) {
            let refused = stats.commit_overrun + stats.dropped;
            self.counters.refused.add(refused.saturating_sub(self.known_refused));
            self.known_refused = refused;
        }
    }
}

/// How far a turn goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Until the page that the kernel is still writing to.
    Pages,
    /// Until nothing is left.
    Everything,
}

struct Reader {
    cpus: Vec<Cpu>,
    page: Vec<u8>,
    layout: PageLayout,
    tasks: TaskNames,
    addresses: AddressNames,
    context: ReaderContext,
    wake: Arc<EventFd>,
    inbox: Receiver<Command>,
}

impl Reader {
    fn run(&mut self) -> Result<(), Errno> {
        loop {
            let pages = self.turn(Depth::Pages);
            loop {
                match self.inbox.try_recv() {
                    Ok(Command::Drain(done)) => {
                        self.turn(Depth::Everything);
                        for cpu in &mut self.cpus {
                            cpu.count_refused(&self.context.instance);
                        }
                        if done.send(()).is_err() {
                            tracing::debug!("nobody waits for this drain");
                        }
                    }
                    Ok(Command::BuffersWereReset) => {
                        for cpu in &mut self.cpus {
                            (cpu.told_overruns, cpu.known_refused) = (0, 0);
                        }
                    }
                    Ok(Command::Stop) | Err(TryRecvError::Disconnected) => {
                        self.turn(Depth::Everything);
                        return Ok(());
                    }
                    Err(TryRecvError::Empty) => break,
                }
            }
            match pages {
                0 => self.sleep_until_event()?,
                1..BUSY_PAGES => self.rest(LONG_REST)?,
                _ => self.rest(SHORT_REST)?,
            }
        }
    }

    /// Reads all CPUs once. Returns the number of pages.
    fn turn(&mut self, depth: Depth) -> usize {
        let mut pages = 0;
        let sources = self.context.sources.current();
        for cpu in &mut self.cpus {
            let counters = Arc::clone(&cpu.counters);
            let mut turn = Turn {
                cpu: cpu.number,
                layout: &self.layout,
                sources: &sources,
                counters: &counters,
                hub: &self.context.hub,
                tasks: &mut self.tasks,
                addresses: &mut self.addresses,
            };
            pages += read_pages(cpu, &mut turn, &mut self.page, &self.context.instance, depth);
        }
        pages
    }

    fn sleep_until_event(&self) -> Result<(), Errno> {
        let mut fds: Vec<_> =
            self.cpus.iter().map(|cpu| PollFd::new(cpu.file.as_fd(), PollFlags::POLLIN)).collect();
        fds.push(PollFd::new(self.wake.as_fd(), PollFlags::POLLIN));
        self.wait(&mut fds, PollTimeout::NONE)
    }

    /// Waits for a command only.
    fn rest(&self, time: Duration) -> Result<(), Errno> {
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
        self.wait(&mut [PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)], timeout)
    }

    fn wait(&self, fds: &mut [PollFd<'_>], timeout: PollTimeout) -> Result<(), Errno> {
        match poll(fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        // A ring buffer that answers with an error and no data would spin: its instance is gone.
        let broken =
            |fd: &PollFd<'_>| fd.revents().is_some_and(|events| events.intersects(PollFlags::POLLNVAL));
        if fds.iter().any(broken) {
            return Err(Errno::EBADF);
        }
        match self.wake.read() {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// Reads the pages of one CPU and publishes what they hold. Returns their number.
fn read_pages(
    cpu: &mut Cpu,
    turn: &mut Turn<'_>,
    buffer: &mut [u8],
    instance: &Instance,
    depth: Depth,
) -> usize {
    let mut collector = Collector::default();
    let mut pages = 0;
    // The kernel may answer 0 without being at an end, when a page is swapped at that very moment.
    let mut empty_answers = 0;
    while depth == Depth::Everything || pages < TURN_PAGES {
        let length = match cpu.file.read(buffer) {
            Ok(0) if empty_answers < 3 => {
                empty_answers += 1;
                continue;
            }
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => {
                tracing::error!(cpu = cpu.number, %error, "can not read events");
                break;
            }
        };
        pages += 1;
        let bytes = buffer.get(..length).unwrap_or_default();
        let data_bytes = turn.page(bytes, &mut collector, &mut |counted| cpu.lost(counted, instance));
        // Half a page is where the kernel is writing: come back when there is more, instead of chasing it.
        if depth == Depth::Pages && data_bytes * 2 < buffer.len() {
            break;
        }
    }
    turn.flush(&mut collector);
    pages
}
