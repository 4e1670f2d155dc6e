//! The set of reader threads of an instance: starting them, asking them for things, ending them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use thiserror::Error;

use super::commands::{Command, Outbox, commands};
use super::counters::BufferCounters;
use super::cpu::Cpu;
use super::handover::{Cutover, HandoverWindow, Step};
use super::reader::{Mark, Reader, ReaderParts};
use super::ring::Ring;
use super::{BufferCounts, BufferDemand, Hub, SourceTable};
use kprobed_host::kernel::FactsCache;
use kprobed_host::ring::PageLayout;
use kprobed_host::tracefs::{Instance, Tracefs, TracefsError};

/// Why the readers could not be started.
#[derive(Debug, Error)]
pub enum ReadersError {
    /// A file of the instance could not be opened.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// The layout of pages is not known.
    #[error("the kernel describes its pages in a way that is not understood: {0}")]
    Layout(#[from] kprobed_host::ring::LayoutError),
    /// No thread or no event file descriptor could be had.
    #[error("cannot start a reader: {0}")]
    Start(#[from] io::Error),
}

/// CPUs that one thread reads: it can carry what so many produce that do nothing but hit probes.
const CPUS_PER_THREAD: usize = 4;

/// Reader threads at most.
const MAX_THREADS: usize = 8;

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
    /// Where it is told that the buffers are too small.
    pub demand: Arc<BufferDemand>,
}

#[derive(Debug)]
struct Handle {
    commands: Outbox,
    thread: JoinHandle<()>,
    /// Its CPUs.
    cpus: Vec<u32>,
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
            cpus.push(Cpu::new(Ring::open(&context.instance, layout, cpu)?));
        }
        let counters = cpus.iter().map(|cpu| (cpu.number(), Arc::clone(&cpu.counters))).collect();
        let threads = cpus.len().div_ceil(CPUS_PER_THREAD).clamp(1, MAX_THREADS);
        let mut shares: Vec<Vec<Cpu>> = (0..threads).map(|_| Vec::new()).collect();
        for (index, cpu) in cpus.into_iter().enumerate() {
            if let Some(share) = shares.get_mut(index % threads) {
                share.push(cpu);
            }
        }
        let channels = (0..threads).map(|_| commands()).collect::<Result<Vec<_>, _>>()?;
        let wakes: Vec<_> = channels.iter().map(|(_, _, wake)| Arc::clone(wake)).collect();
        context.hub.wake_with(wakes.clone());
        let marks: Arc<[_]> = (0..threads).map(|_| Mark::default()).collect();
        let mut handles = Vec::new();
        for (index, (cpus, (outbox, inbox, _))) in shares.into_iter().zip(channels).enumerate() {
            let numbers = cpus.iter().map(Cpu::number).collect();
            let (wakes, marks) = (wakes.clone(), Arc::clone(&marks));
            let parts = ReaderParts { index, cpus, wakes, marks, inbox };
            let context = context.clone();
            let thread = Builder::new().name(format!("kprobed-read-{index}")).spawn(move || {
                if let Err(errno) = Reader::new(parts, &context).run() {
                    tracing::error!(%errno, "a reader cannot go on: events are no longer read");
                }
            })?;
            handles.push(Handle { commands: outbox, thread, cpus: numbers });
        }
        Ok(Self { handles, counters, layout })
    }

    /// Layout of the pages.
    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// Has all readers read and publish what the kernel's buffers hold, and waits until they have.
    pub fn drain(&self) {
        self.ask(|_, done| Command::Drain(done));
    }

    /// Has all readers do something, and waits for their answers. Fewer come when a reader has
    /// ended.
    fn ask<T>(&self, mut command: impl FnMut(&Handle, Sender<T>) -> Command) -> Vec<T> {
        let (done, answers) = channel();
        for handle in &self.handles {
            handle.commands.send(command(handle, done.clone()));
        }
        drop(done);
        let answers: Vec<_> = answers.iter().collect();
        if answers.len() < self.handles.len() {
            tracing::error!("a reader has ended before its time");
        }
        answers
    }

    /// From now on the readers read `new` as well, and publish only what was recorded before that,
    /// until they [change over](Self::change_over) or [go back](Self::go_back). Nothing may be
    /// recorded in `new` before this returns.
    ///
    /// # Errors
    /// See [`ReadersError`]; then everything is as it was.
    pub fn hold(&self, tracefs: &Tracefs, new: &Instance) -> Result<(), ReadersError> {
        let layout = PageLayout::parse(&new.header_page(tracefs)?)?;
        let mut rings = Vec::new();
        for handle in &self.handles {
            let opened = handle.cpus.iter().map(|cpu| Ring::open(new, layout, *cpu));
            rings.push(opened.collect::<Result<Vec<_>, TracefsError>>()?);
        }
        let mut rings = rings.into_iter();
        self.ask(|_, done| Command::HandOver(Step::Hold(rings.next().unwrap_or_default(), done)));
        Ok(())
    }

    /// Has all readers publish what they hold, each event once, and go on with the new instance;
    /// the old one is closed when this returns. Returns whether it was done: if events were lost in
    /// the window, or a reader had no room for them, nothing is done.
    pub fn change_over(&self, window: &HandoverWindow) -> bool {
        let answers = self.ask(|_, reply| Command::HandOver(Step::Look(window.clone(), reply)));
        let all_answered = answers.len() == self.handles.len();
        let copies: Option<Vec<_>> = answers.into_iter().collect();
        let Some(copies) = copies.filter(|_| all_answered) else { return false };
        let cutover = Arc::new(Cutover::find(copies.concat(), &window.window, window.both.clone()));
        self.ask(|_, done| Command::HandOver(Step::ChangeOver(Arc::clone(&cutover), done)));
        true
    }

    /// Has all readers publish what they hold of the old instance, and forget the new one; its
    /// files are closed when this returns.
    pub fn go_back(&self) {
        self.ask(|_, done| Command::HandOver(Step::GoBack(done)));
    }

    /// Tells the readers that the kernel has emptied the buffers and set their counters to zero.
    /// Nothing may be recorded before this returns: a reader would compare what it counted before
    /// with what the kernel has counted since.
    pub fn buffers_were_reset(&self) {
        self.ask(|_, done| Command::BuffersWereReset(done));
    }

    /// Where the events of each CPU went.
    pub fn counts(&self) -> Vec<BufferCounts> {
        self.counters.iter().map(|(cpu, counters)| counters.counts(*cpu)).collect()
    }

    /// Reads what is left and ends the threads. Their files are closed when this returns.
    pub fn stop(self) {
        for handle in &self.handles {
            handle.commands.send(Command::Stop);
        }
        for handle in self.handles {
            if handle.thread.join().is_err() {
                tracing::error!("a reader has panicked");
            }
        }
    }
}
