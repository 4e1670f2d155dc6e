//! Merged stream over all hosts.
//!
//! Owns the tasks that read the hosts, and the wait for the next item.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;

use super::clock::LocalClock;
use super::feed::{Feed, Gone, Link, Signal, heartbeat};
use super::item::{HostAccount, MergedItem, Notice};
use super::member::Member;
use super::order::Next;
use super::roster::Roster;
use crate::api::{EventOrder, StreamStarted};
use crate::client::Client;
use crate::event::StreamRequest;
use crate::fleet::{Host, Outcome};

/// Most items of a host on their way to the merge.
const ITEMS_ON_THE_WAY: usize = 4;

/// The least part of a host.
const LEAST_PART_EVENTS: usize = 1_000;

/// Options of a merge.
#[derive(Clone, Copy, Debug)]
pub struct MergeOptions {
    /// How long the others wait for a silent host.
    pub max_wait: Duration,
    /// Events of all hosts together that are read ahead: a host whose part is used up is not read
    /// until some of its events have gone, unless the others wait for it. Its part is never less
    /// than 1000.
    pub read_ahead_events: usize,
    /// How many connections are made at the same time. Open ones stay: one for each host.
    pub parallel: NonZeroUsize,
    /// Whether hosts that are lost are tried again.
    pub reconnect: bool,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self {
            max_wait: Duration::from_secs(10),
            read_ahead_events: 1_000_000,
            parallel: NonZeroUsize::MIN.saturating_add(63),
            reconnect: true,
        }
    }
}

/// Events of many hosts in the order of time. Dropped, it leaves all hosts.
pub struct MergedStream {
    roster: Roster,
    signals: UnboundedReceiver<(usize, Signal)>,
    _tasks: JoinSet<()>,
    stopped: bool,
}

enum Step {
    Notice(usize, Notice),
    Event { host: usize, corrected_ns: i64, late: bool },
}

impl MergedStream {
    /// Begins with all hosts. Order and heartbeat of the request are set here. Names of hosts are
    /// distinct.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn open(hosts: Vec<Host>, request: StreamRequest, options: MergeOptions) -> Self {
        let ends = request.ends();
        let requests = std::iter::repeat(request);
        let ways = hosts.into_iter().zip(requests).map(|(host, request)| (host, None, request)).collect();
        Self::of(ways, ends, options)
    }

    /// Begins with hosts that are connected to already, each with a request of its own, for what
    /// goes with these connections. None of them is connected to again, whatever the options say.
    /// Otherwise as [`MergedStream::open`].
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn open_on(hosts: Vec<(Host, Client, StreamRequest)>, options: MergeOptions) -> Self {
        let ends = hosts.iter().any(|(.., request)| request.ends());
        let ways = hosts.into_iter().map(|(host, client, request)| (host, Some(client), request)).collect();
        Self::of(ways, ends, MergeOptions { reconnect: false, ..options })
    }

    fn of(ways: Vec<(Host, Option<Client>, StreamRequest)>, ends: bool, options: MergeOptions) -> Self {
        let local = LocalClock::start();
        let names = ways.iter().map(|(host, ..)| host.name.clone()).collect();
        let mut ways = ways.into_iter();
        Self::over(names, ends, options, |_name, link| {
            let (host, client, request) = ways.next()?;
            let request = request.order(EventOrder::Time).heartbeat(heartbeat(&options));
            Some(Feed { host, client, request, local, link }.follow())
        })
    }

    /// Begins with the hosts of these names. `feed` makes the feed of each host, from its name and its link to the
    /// merge.
    pub(super) fn over<F: Future<Output = Result<(), Gone>> + Send + 'static>(
        names: Vec<String>,
        ends: bool,
        options: MergeOptions,
        mut feed: impl FnMut(&str, Link) -> Option<F>,
    ) -> Self {
        let gate = Arc::new(Semaphore::new(options.parallel.get().min(Semaphore::MAX_PERMITS)));
        let (sender, signals) = unbounded_channel();
        let mut tasks = JoinSet::new();
        let part_events = (options.read_ahead_events / names.len().max(1)).max(LEAST_PART_EVENTS);
        let mut members = Vec::with_capacity(names.len());
        for (index, name) in names.into_iter().enumerate() {
            let permits = Arc::new(Semaphore::new(ITEMS_ON_THE_WAY));
            let (gate, signals) = (Arc::clone(&gate), sender.clone());
            let link = Link { index, options, gate, permits: Arc::clone(&permits), signals };
            let Some(feed) = feed(&name, link) else { continue };
            // It fails only when the merge was dropped.
            members.push(Member::new(name, permits, tasks.spawn(async move { _ = feed.await })));
        }
        let roster = Roster::new(members, options.max_wait, part_events, ends);
        Self { roster, signals, _tasks: tasks, stopped: false }
    }

    /// The next item. None: every host has ended, or was given up or left.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<MergedItem<'_>> {
        match self.step().await? {
            Step::Notice(host, notice) => self.roster.item(host, notice),
            Step::Event { host, corrected_ns, late } => self.roster.event(host, corrected_ns, late),
        }
    }

    /// Leaves all hosts. What they sent is still delivered, in order.
    pub fn finish(&mut self) {
        self.stopped = true;
        self.roster.leave();
        while let Ok((host, signal)) = self.signals.try_recv() {
            // A host that is left does not count as lost.
            if !matches!(signal, Signal::Lost { .. } | Signal::GivenUp { .. }) {
                self.roster.accept(host, signal);
            }
        }
        self.signals.close();
        self.roster.release_all();
    }

    /// Ends one host when all its events before this time of its trace clock, in nanoseconds, have
    /// arrived. The others continue.
    pub fn end_host(&mut self, host: &str, trace_ns: u64) {
        self.roster.end_at(host, trace_ns);
    }

    /// Gives one host up, for the caller's reason. The others continue.
    pub fn give_up(&mut self, host: &str, reason: String, outcome: Outcome) {
        self.roster.give_up(host, reason, outcome);
    }

    /// What a host said when its stream began: its number in the ledger, and what the filter means there. Absent before
    /// that, and for a host whose stream has ended.
    pub fn started(&self, host: &str) -> Option<&StreamStarted> {
        self.roster.started(host)
    }

    /// The connection over which the stream of a host has begun, for further calls. Absent before that, for a host
    /// whose stream has ended, and for one that is not connected to.
    pub fn client(&self, host: &str) -> Option<Client> {
        self.roster.client(host)
    }

    /// The account of every host until now.
    pub fn accounts(&self) -> Vec<HostAccount> {
        self.roster.accounts()
    }

    /// Whether a host did not answer, or does not any longer.
    pub fn has_missing(&self) -> bool {
        self.roster.has_missing()
    }

    async fn step(&mut self) -> Option<Step> {
        loop {
            while let Ok((host, signal)) = self.signals.try_recv() {
                self.roster.accept(host, signal);
            }
            if let Some((host, notice)) = self.roster.notice() {
                return Some(Step::Notice(host, notice));
            }
            match self.roster.next() {
                Next::Event { host, corrected_ns, late } => {
                    self.roster.read_on(host);
                    return Some(Step::Event { host, corrected_ns, late });
                }
                Next::Nothing if self.stopped || self.roster.is_over() => return None,
                Next::Nothing => {
                    let (host, signal) = self.signals.recv().await?;
                    self.roster.accept(host, signal);
                }
                Next::WaitFor(host) => {
                    self.roster.read_on(host);
                    let until = self.roster.patience(host)?;
                    tokio::select! {
                        biased;
                        signal = self.signals.recv() => {
                            let (host, signal) = signal?;
                            self.roster.accept(host, signal);
                        }
                        () = tokio::time::sleep_until(until) => self.roster.release(host),
                    }
                }
            }
        }
    }
}

impl std::fmt::Debug for MergedStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MergedStream").field("hosts", &self.roster.len()).finish_non_exhaustive()
    }
}
