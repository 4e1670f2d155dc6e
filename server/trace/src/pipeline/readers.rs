//! Set of reader threads of a trace instance: start, drain, hand-over, and stop.
//!
//! Owns which thread reads which CPUs, and the requests to all of them. Never reads a page itself:
//! `reader` does.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use thiserror::Error;

use super::commands::{Command, Outbox, ReaderPulse, commands};
use super::counters::BufferCounters;
use super::cpu::Cpu;
use super::handover::{Cutover, HandoverWindow, Step};
use super::reader::{Mark, Reader, ReaderParts};
use super::ring::Ring;
use super::{Activity, BufferCounts, BufferDemand, Hub, SourceTable};
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
    /// The system refused a thread or an event file descriptor.
    #[error("cannot start a reader: {0}")]
    Start(#[from] io::Error),
}

/// CPUs that one thread reads: it keeps up with that many CPUs that do nothing but hit probes.
const CPUS_PER_THREAD: usize = 4;

/// Reader threads at most.
const MAX_THREADS: usize = 8;

/// The parts of the daemon that the readers share.
#[derive(Clone, Debug)]
pub struct ReaderContext {
    /// The mounted tracefs.
    pub tracefs: Tracefs,
    /// The instance to read.
    pub instance: Instance,
    /// Usually `/proc`.
    pub procfs: PathBuf,
    /// The probe of each event id.
    pub sources: Arc<SourceTable>,
    /// The hub that readers publish to.
    pub hub: Arc<Hub>,
    /// Facts of the kernel, with its symbols.
    pub facts: Arc<FactsCache>,
    /// The demand for larger buffers, which readers report to.
    pub demand: Arc<BufferDemand>,
    /// The alarm that rings after many events.
    pub activity: Arc<Activity>,
}

#[derive(Debug)]
struct Handle {
    commands: Arc<Outbox>,
    thread: JoinHandle<()>,
    /// Its CPUs.
    cpus: Vec<u32>,
}

/// All reader threads of an instance.
#[derive(Debug)]
pub struct Readers {
    handles: Vec<Handle>,
    counters: Vec<(u32, Arc<BufferCounters>)>,
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
                if let Err(errno) = Reader::new(parts, context).run() {
                    tracing::error!(%errno, "a reader cannot continue: events are no longer read");
                }
            })?;
            handles.push(Handle { commands: Arc::new(outbox), thread, cpus: numbers });
        }
        Ok(Self { handles, counters })
    }

    /// Has all readers read and publish all events in the kernel's buffers, and waits until they
    /// have.
    pub fn drain(&self) {
        self.ask(Command::Drain);
    }

    /// Sends a command to all readers, and waits for their answers. A reader that has ended gives
    /// none.
    fn ask<T>(&self, mut command: impl FnMut(Sender<T>) -> Command) -> Vec<T> {
        let (done, answers) = channel();
        for handle in &self.handles {
            handle.commands.send(command(done.clone()));
        }
        drop(done);
        let answers: Vec<_> = answers.iter().collect();
        if answers.len() < self.handles.len() {
            tracing::error!("a reader has ended before its time");
        }
        answers
    }

    /// From now on the readers read `new` as well, and publish only events that were recorded
    /// before that, until they [change over](Self::change_over) or [go back](Self::go_back).
    /// Nothing may be recorded in `new` before this returns.
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
        self.ask(|done| Command::HandOver(Step::Hold(rings.next().unwrap_or_default(), done)));
        Ok(())
    }

    /// Has all readers publish the events that they hold, each once, and go on with the new
    /// instance; the old one is closed when this returns. Returns whether it was done: if events
    /// were lost in the window, or a reader had no room for them, nothing is done.
    pub fn change_over(&self, window: &HandoverWindow) -> bool {
        let answers = self.ask(|reply| Command::HandOver(Step::Look(window.clone(), reply)));
        let all_answered = answers.len() == self.handles.len();
        let copies: Option<Vec<_>> = answers.into_iter().collect();
        let Some(copies) = copies.filter(|_| all_answered) else { return false };
        let cutover = Arc::new(Cutover::find(copies.concat(), &window.window, window.both.clone()));
        self.ask(|done| Command::HandOver(Step::Settle(Some(Arc::clone(&cutover)), done)));
        true
    }

    /// Has all readers publish the events that they hold of the old instance, and close the new
    /// one; its files are closed when this returns.
    pub fn go_back(&self) {
        self.ask(|done| Command::HandOver(Step::Settle(None, done)));
    }

    /// Tells the readers that the kernel has emptied the buffers and set their counters to zero.
    /// Nothing may be recorded before this returns: a reader would compare what it counted before
    /// with what the kernel has counted since.
    pub fn buffers_were_reset(&self) {
        self.ask(Command::BuffersWereReset);
    }

    /// Whether they live, for another thread to ask.
    pub fn pulse(&self) -> ReaderPulse {
        ReaderPulse(self.handles.iter().map(|handle| Arc::downgrade(&handle.commands)).collect())
    }

    /// Ledger terms of each CPU's buffer.
    pub fn counts(&self) -> Vec<BufferCounts> {
        self.counters.iter().map(|(cpu, counters)| counters.counts(*cpu)).collect()
    }

    /// Reads the remaining events and ends the threads. Their files are closed when this returns.
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
