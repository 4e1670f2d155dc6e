//! The stream over all hosts.
//!
//! Owns who is waited for and how long, and how much is read ahead: of a host whose events wait for others no more is read than fits.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::clock::LocalClock;
use super::feed::{Feed, Signal, heartbeat};
use super::order::{Next, Order};
use super::state::{HostAccount, HostState, StateChange};
use crate::api::EventOrder;
use crate::event::{Backoff, Cursor, Loss, Row, StreamItem, StreamRequest};
use crate::fleet::{Host, Outcome};

/// Items of a host that are on their way to the merge at most.
const ITEMS_ON_THE_WAY: usize = 4;

/// The least part of a host.
const LEAST_PART_EVENTS: usize = 1_000;

/// Events of one host that wait for its own watermark at most.
const HELD_EVENTS: usize = 1_000_000;

/// How hosts are merged.
#[derive(Clone, Copy, Debug)]
pub struct MergeOptions {
    /// How long the others wait for a host that says nothing.
    pub max_wait: Duration,
    /// How often a host to which nothing happens says so. A quarter of `max_wait` at most.
    pub heartbeat: Duration,
    /// Events of all hosts together that are read ahead: a host whose part is used up is not read until some of its events have gone, unless
    /// the others wait for it. Its part is never less than 1000.
    pub read_ahead_events: usize,
    /// How often the clocks are compared.
    pub clock_interval: Duration,
    /// How many connections are made at the same time. Those that are there stay open: one for each host.
    pub parallel: NonZeroUsize,
    /// Whether hosts that are lost are tried again.
    pub reconnect: bool,
    /// How long to wait between tries.
    pub backoff: Backoff,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self {
            max_wait: Duration::from_secs(10),
            heartbeat: Duration::from_millis(250),
            read_ahead_events: 1_000_000,
            clock_interval: Duration::from_secs(30),
            parallel: NonZeroUsize::MIN.saturating_add(63),
            reconnect: true,
            backoff: Backoff { initial: Duration::from_millis(100), longest: Duration::from_secs(2) },
        }
    }
}

/// An event of one of the hosts.
#[derive(Debug)]
pub struct MergedEvent<'a> {
    /// The host.
    pub host: &'a str,
    /// The event. Its times are those of the host.
    pub row: Row<'a>,
    /// When it happened by the clock here, in nanoseconds since 1970: the order is by this.
    pub corrected_ns: i64,
    /// Whether events that are later went before it, since its host was not waited for.
    pub late: bool,
}

/// One item of the stream.
#[derive(Debug)]
#[non_exhaustive]
pub enum MergedItem<'a> {
    /// An event.
    Event(MergedEvent<'a>),
    /// A gap in the events of a host, before the first event that follows it there.
    Loss {
        /// The host.
        host: &'a str,
        /// The gap.
        loss: Loss,
    },
    /// The events of a host may lack some here: its daemon did not stop cleanly.
    MayMiss {
        /// The host.
        host: &'a str,
        /// Where its stream goes on.
        cursor: Cursor,
    },
    /// A host stands otherwise than before.
    State(StateChange<'a>),
}

enum Notice {
    Loss(Loss),
    MayMiss(Cursor),
    State { state: HostState, reason: String, away: Option<Duration> },
}

/// What is known of one host.
struct Member {
    account: HostAccount,
    /// What became of it last, while it is not there.
    absent: Option<(Outcome, Instant)>,
    has_started: bool,
    /// Nothing of it will come.
    is_over: bool,
    heard: Instant,
    permits: Arc<Semaphore>,
    /// Items that were taken and for which there was no room for another one yet.
    owed: usize,
    task: AbortHandle,
}

/// Events of many hosts in the order of time. Dropped, it leaves all hosts.
pub struct MergedStream {
    order: Order,
    members: Vec<Member>,
    notices: VecDeque<(usize, Notice)>,
    signals: UnboundedReceiver<(usize, Signal)>,
    _tasks: JoinSet<()>,
    max_wait: Duration,
    part_events: usize,
    /// Whether the request has an end.
    ends: bool,
    stopped: bool,
}

enum Step {
    Notice(usize, Notice),
    Event { host: usize, corrected_ns: i64, late: bool },
}

impl MergedStream {
    /// Begins with all hosts. Order and heartbeat of the request are set here. Names of hosts are distinct.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn open(hosts: Vec<Host>, request: StreamRequest, options: MergeOptions) -> Self {
        let request = request.order(EventOrder::Time).heartbeat(heartbeat(&options));
        let gate = Arc::new(Semaphore::new(options.parallel.get().min(Semaphore::MAX_PERMITS)));
        let local = LocalClock::start();
        let names = hosts.iter().map(|host| host.name.clone()).collect();
        let mut hosts = hosts.into_iter();
        Self::over(names, request.ends(), &options, |(index, _), permits, signals| {
            let (gate, request) = (Arc::clone(&gate), request.clone());
            let host = hosts.next()?;
            Some(Feed { index, host, request, options, local, gate, permits, signals }.run())
        })
    }

    /// Begins with the hosts of these names. `feed` makes the way from each of them: with its number and name, the items that there is room
    /// for, and where they go.
    pub(super) fn over<F: Future<Output = ()> + Send + 'static>(
        names: Vec<String>,
        ends: bool,
        options: &MergeOptions,
        mut feed: impl FnMut((usize, &str), Arc<Semaphore>, UnboundedSender<(usize, Signal)>) -> Option<F>,
    ) -> Self {
        let (sender, signals) = unbounded_channel();
        let mut tasks = JoinSet::new();
        let part_events = (options.read_ahead_events / names.len().max(1)).max(LEAST_PART_EVENTS);
        let order = Order::new(names.len(), HELD_EVENTS);
        let mut members = Vec::with_capacity(names.len());
        for (index, name) in names.into_iter().enumerate() {
            let permits = Arc::new(Semaphore::new(ITEMS_ON_THE_WAY));
            let Some(feed) = feed((index, &name), Arc::clone(&permits), sender.clone()) else { continue };
            let account = HostAccount {
                host: name,
                outcome: Outcome::NotTried,
                state: HostState::Connecting,
                reason: String::new(),
                kernel: String::new(),
                read: 0,
                given: 0,
                late: 0,
                waiting: 0,
                lost: 0,
                uncounted_gaps: 0,
                interruptions: 0,
                clock: None,
            };
            let task = tasks.spawn(feed);
            let heard = Instant::now();
            members.push(Member {
                account,
                absent: None,
                has_started: false,
                is_over: false,
                heard,
                permits,
                owed: 0,
                task,
            });
        }
        let max_wait = options.max_wait;
        Self {
            order,
            members,
            notices: VecDeque::new(),
            signals,
            _tasks: tasks,
            max_wait,
            part_events,
            ends,
            stopped: false,
        }
    }

    /// What comes next. None: every host is at its end, given up, or left.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<MergedItem<'_>> {
        let step = self.step().await?;
        Some(match step {
            Step::Notice(host, notice) => self.item(host, notice)?,
            Step::Event { host, corrected_ns, late } => {
                let member = self.members.get_mut(host)?;
                member.account.given += 1;
                member.account.late += u64::from(late);
                let row = self.order.take(host)?;
                MergedItem::Event(MergedEvent { host: &member.account.host, row, corrected_ns, late })
            }
        })
    }

    /// Leaves all hosts. What they sent is given out still, in order.
    pub fn finish(&mut self) {
        self.stopped = true;
        for member in &mut self.members {
            member.task.abort();
        }
        while let Ok((host, signal)) = self.signals.try_recv() {
            // Whoever stops does not lose a host by it.
            if !matches!(signal, Signal::Lost { .. } | Signal::GivenUp { .. }) {
                self.accept(host, signal);
            }
        }
        self.signals.close();
        for host in 0..self.members.len() {
            self.order.change(host, |lane| lane.set_released(true));
        }
    }

    /// The account of every host until now.
    pub fn accounts(&self) -> Vec<HostAccount> {
        let waiting = |host| self.order.lane(host).map_or(0, |lane| lane.held_events() as u64);
        let of = |(host, member): (usize, &Member)| {
            let account = HostAccount { waiting: waiting(host), ..member.account.clone() };
            match member.absent {
                _ if account.state == HostState::Connecting => {
                    let reason = match account.outcome {
                        Outcome::NotTried => "the run ended before",
                        _ => "interrupted before it answered",
                    };
                    HostAccount { reason: reason.to_owned(), ..account }
                }
                None => HostAccount { reason: String::new(), outcome: Outcome::Answered, ..account },
                Some((outcome, _)) => HostAccount { outcome, ..account },
            }
        };
        self.members.iter().enumerate().map(of).collect()
    }

    /// Whether a host did not answer, or does not any longer.
    pub fn has_missing(&self) -> bool {
        self.members.iter().any(|member| member.absent.is_some())
    }

    /// Events that wait for other hosts.
    pub fn held_events(&self) -> u64 {
        self.order.held_events()
    }

    async fn step(&mut self) -> Option<Step> {
        loop {
            while let Ok((host, signal)) = self.signals.try_recv() {
                self.accept(host, signal);
            }
            if let Some((host, notice)) = self.notices.pop_front() {
                return Some(Step::Notice(host, notice));
            }
            match self.order.next() {
                Next::Event { host, corrected_ns, late } => {
                    self.read_on(host);
                    return Some(Step::Event { host, corrected_ns, late });
                }
                Next::Nothing if self.stopped || self.members.iter().all(|member| member.is_over) => {
                    return None;
                }
                Next::Nothing => {
                    let (host, signal) = self.signals.recv().await?;
                    self.accept(host, signal);
                }
                Next::WaitFor(host) => {
                    self.read_on(host);
                    let until = self.members.get(host)?.heard + self.max_wait;
                    tokio::select! {
                        biased;
                        signal = self.signals.recv() => {
                            let (host, signal) = signal?;
                            self.accept(host, signal);
                        }
                        () = tokio::time::sleep_until(until) => self.release(host),
                    }
                }
            }
        }
    }

    fn item(&self, host: usize, notice: Notice) -> Option<MergedItem<'_>> {
        let account = &self.members.get(host)?.account;
        let host = account.host.as_str();
        Some(match notice {
            Notice::Loss(loss) => MergedItem::Loss { host, loss },
            Notice::MayMiss(cursor) => MergedItem::MayMiss { host, cursor },
            Notice::State { state, reason, away } => {
                let is_there = matches!(state, HostState::Live | HostState::Back);
                let clock = account.clock.clone().filter(|_| is_there);
                MergedItem::State(StateChange { host, state, reason, clock, away })
            }
        })
    }

    /// Asks a host for more, if there is room for it or it is waited for.
    fn read_on(&mut self, host: usize) {
        let held = self.order.lane(host).map_or(0, super::lane::Lane::held_events);
        let has_room = held < self.part_events || self.order.next() == Next::WaitFor(host);
        let Some(member) = self.members.get_mut(host).filter(|member| has_room && member.owed > 0) else {
            return;
        };
        if member.permits.available_permits() == 0 {
            // It could not say anything until now.
            member.heard = Instant::now();
        }
        member.permits.add_permits(std::mem::take(&mut member.owed));
    }

    /// The others do not wait for this host any longer.
    fn release(&mut self, host: usize) {
        let Some(member) = self.members.get_mut(host) else { return };
        self.order.change(host, |lane| lane.set_released(true));
        let nothing = format!("it said nothing for {:?}", self.max_wait);
        let reason = match &member.absent {
            Some(_) => format!("{nothing}: {}", member.account.reason),
            None => nothing,
        };
        let outcome = match member.account.outcome {
            // All places were taken by others.
            Outcome::NotTried => Outcome::NotTried,
            _ => Outcome::TimedOut,
        };
        member.absent.get_or_insert((outcome, Instant::now()));
        member.account.reason.clone_from(&reason);
        member.account.state = HostState::Late;
        self.notices.push_back((host, Notice::State { state: HostState::Late, reason, away: None }));
        if self.ends {
            // Whoever asks for the past wants an end, and this host has none.
            self.end(host, HostState::GivenUp);
        }
    }

    /// Nothing of this host will come.
    fn end(&mut self, host: usize, state: HostState) {
        let Some(member) = self.members.get_mut(host) else { return };
        member.is_over = true;
        member.task.abort();
        member.account.state = state;
        let reason = if state == HostState::Ended { String::new() } else { member.account.reason.clone() };
        self.order.change(host, |lane| lane.set_released(true));
        self.notices.push_back((host, Notice::State { state, reason, away: None }));
    }

    fn accept(&mut self, host: usize, signal: Signal) {
        let Some(member) = self.members.get_mut(host).filter(|member| !member.is_over) else { return };
        match signal {
            Signal::Connecting => {
                if member.account.outcome == Outcome::NotTried {
                    member.account.outcome = Outcome::Failed;
                    member.heard = Instant::now();
                    let notice =
                        Notice::State { state: HostState::Connecting, reason: String::new(), away: None };
                    self.notices.push_back((host, notice));
                }
            }
            Signal::Clock(clock) => {
                member.account.clock = Some(clock.clone());
                self.order.change(host, |lane| lane.compared(clock));
            }
            #[cfg(feature = "nats")]
            Signal::WallOffset(offset_ns) => self.order.change(host, |lane| lane.assume(offset_ns)),
            Signal::Item(item) => {
                member.heard = Instant::now();
                member.owed += 1;
                self.arrived(host, item);
                self.read_on(host);
            }
            Signal::Lost { reason, outcome } => {
                // One record for all tries of one absence.
                let is_first =
                    member.account.state != HostState::Lost && member.account.state != HostState::Late;
                let has_begun = member.has_started;
                member.account.interruptions += u64::from(is_first && has_begun);
                let outcome = if has_begun { Outcome::Failed } else { outcome };
                let since = member.absent.map_or_else(Instant::now, |(_, since)| since);
                member.absent = Some((outcome, since));
                member.account.reason.clone_from(&reason);
                if is_first {
                    member.account.state = HostState::Lost;
                    let notice = Notice::State { state: HostState::Lost, reason, away: None };
                    self.notices.push_back((host, notice));
                }
            }
            Signal::Ended => {
                member.absent = None;
                self.end(host, HostState::Ended);
            }
            Signal::GivenUp { reason, outcome } => {
                let outcome = if member.has_started { Outcome::Failed } else { outcome };
                member.absent = Some((outcome, Instant::now()));
                member.account.reason = reason;
                self.end(host, HostState::GivenUp);
            }
        }
    }

    fn arrived(&mut self, host: usize, item: StreamItem) {
        let Some(member) = self.members.get_mut(host) else { return };
        if let StreamItem::Started(started) = &item {
            member.account.kernel.clone_from(&started.kernel_release);
        }
        if !member.has_started || member.absent.is_some() {
            let away = member.absent.take().filter(|_| member.has_started).map(|(_, since)| since.elapsed());
            let state = if member.has_started { HostState::Back } else { HostState::Live };
            member.has_started = true;
            member.account.state = state;
            member.account.reason.clear();
            self.notices.push_back((host, Notice::State { state, reason: String::new(), away }));
            self.order.change(host, |lane| lane.set_released(false));
        }
        match item {
            StreamItem::Batch(batch) => {
                member.account.read += batch.len() as u64;
                self.order.change(host, |lane| lane.push(batch));
            }
            StreamItem::Watermark(watermark) => {
                self.order.change(host, |lane| lane.advance(watermark.watermark_ns));
            }
            StreamItem::Epoch(epoch) => {
                self.order.change(host, |lane| lane.boot(&epoch.cursor.boot_id));
                if epoch.may_miss {
                    self.notices.push_back((host, Notice::MayMiss(epoch.cursor)));
                }
            }
            StreamItem::Loss(loss) => {
                match loss.count {
                    Some(count) => member.account.lost = member.account.lost.saturating_add(count),
                    None => {
                        member.account.uncounted_gaps =
                            member.account.uncounted_gaps.saturating_add(loss.gaps);
                    }
                }
                self.notices.push_back((host, Notice::Loss(loss)));
            }
            StreamItem::Started(_) | StreamItem::Schema(_) | StreamItem::CaughtUp(_) => {}
        }
    }
}

impl std::fmt::Debug for MergedStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MergedStream").field("hosts", &self.members.len()).finish_non_exhaustive()
    }
}
