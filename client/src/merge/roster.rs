//! Roster of a merge: all hosts, and which of them the others wait for.
//!
//! Owns what a message of a host means for its account and for the others, how long it is waited
//! for, and how much is read ahead: a host whose events wait for others is not read beyond its
//! part.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::feed::Signal;
use super::item::{HostAccount, HostState, MergedEvent, MergedItem, Notice, StateChange};
use super::lane::Lane;
use super::member::Member;
use super::order::{Next, Order};
use crate::api::StreamStarted;
use crate::client::Client;
use crate::event::StreamItem;
use crate::fleet::Outcome;

/// Most events of one host that wait for its own watermark.
const HELD_EVENTS: usize = 1_000_000;

/// All hosts of a merge.
pub(super) struct Roster {
    order: Order,
    members: Vec<Member>,
    notices: VecDeque<(usize, Notice)>,
    max_wait: Duration,
    /// Events of one host that are read ahead.
    part_events: usize,
    /// Whether the request has an end.
    ends: bool,
}

impl Roster {
    pub(super) fn new(members: Vec<Member>, max_wait: Duration, part_events: usize, ends: bool) -> Self {
        let order = Order::new(members.len(), HELD_EVENTS);
        Self { order, members, notices: VecDeque::new(), max_wait, part_events, ends }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether all hosts have ended.
    pub(super) fn is_over(&self) -> bool {
        self.members.iter().all(|member| member.is_over)
    }

    pub(super) fn has_missing(&self) -> bool {
        self.members.iter().any(|member| member.absent.is_some())
    }

    pub(super) fn accounts(&self) -> Vec<HostAccount> {
        let waiting = |host| self.order.lane(host).map_or(0, |lane| lane.held_events() as u64);
        self.members.iter().enumerate().map(|(host, member)| member.account(waiting(host))).collect()
    }

    /// The next notice, which precedes all events.
    pub(super) fn notice(&mut self) -> Option<(usize, Notice)> {
        self.notices.pop_front()
    }

    /// The next step of the order.
    pub(super) fn next(&mut self) -> Next {
        self.order.next()
    }

    /// Until when the others wait for this host.
    pub(super) fn patience(&self, host: usize) -> Option<Instant> {
        Some(self.members.get(host)?.heard + self.max_wait)
    }

    /// Delivers the event of this host that the order has chosen.
    pub(super) fn event(&mut self, host: usize, corrected_ns: i64, late: bool) -> Option<MergedItem<'_>> {
        let member = self.members.get_mut(host)?;
        member.account.given += 1;
        member.account.late += u64::from(late);
        let row = self.order.take(host)?;
        Some(MergedItem::Event(MergedEvent { host: &member.account.host, row, corrected_ns, late }))
    }

    /// Delivers a notice about a host.
    pub(super) fn item(&self, host: usize, notice: Notice) -> Option<MergedItem<'_>> {
        let account = &self.members.get(host)?.account;
        let host = account.host.as_str();
        Some(match notice {
            Notice::Loss { loss, arrived } => MergedItem::Loss { host, loss, arrived },
            Notice::NewRun { run, is_restart } => MergedItem::NewRun { host, run, is_restart },
            Notice::Malformed { problem, cursor } => MergedItem::Malformed { host, problem, cursor },
            Notice::State { state, reason, away } => {
                let is_there = matches!(state, HostState::Live | HostState::Back);
                let clock = account.clock.clone().filter(|_| is_there);
                MergedItem::State(StateChange { host, state, reason, clock, away })
            }
        })
    }

    /// Asks a host for more, if there is room for it or it is waited for.
    pub(super) fn read_on(&mut self, host: usize) {
        let held = self.order.lane(host).map_or(0, Lane::held_events);
        let has_room = held < self.part_events || self.order.next() == Next::WaitFor(host);
        if let Some(member) = self.members.get_mut(host).filter(|member| has_room && member.owed > 0) {
            member.pay();
        }
    }

    /// Leaves all hosts: nothing more is read.
    pub(super) fn leave(&self) {
        for member in &self.members {
            member.task.abort();
        }
    }

    /// Waits for no host any longer. What they sent is still delivered.
    pub(super) fn release_all(&mut self) {
        for host in 0..self.members.len() {
            self.order.change(host, |lane| lane.set_released(true));
        }
    }

    /// The others do not wait for this host any longer.
    pub(super) fn release(&mut self, host: usize) {
        let Some(member) = self.members.get_mut(host) else { return };
        let reason = member.is_silent(self.max_wait);
        self.order.change(host, |lane| lane.set_released(true));
        self.notices.push_back((host, Notice::state(HostState::Late, reason)));
        if self.ends {
            // The request has an end, and this host never reaches it.
            self.end(host, HostState::GivenUp);
        }
    }

    fn number(&self, name: &str) -> Option<usize> {
        self.members.iter().position(|member| member.account.host == name && !member.is_over)
    }

    /// The connection to a host.
    pub(super) fn client(&self, name: &str) -> Option<Client> {
        self.members.get(self.number(name)?)?.client.clone()
    }

    /// What a host said when its stream began.
    pub(super) fn started(&self, name: &str) -> Option<&StreamStarted> {
        self.members.get(self.number(name)?)?.started.as_deref()
    }

    /// A host ends when it has come to this time of its trace clock.
    pub(super) fn end_at(&mut self, name: &str, trace_ns: u64) {
        let Some(host) = self.number(name) else { return };
        if let Some(member) = self.members.get_mut(host) {
            member.ends_at_ns = Some(trace_ns);
        }
        self.end_if_reached(host);
    }

    fn end_if_reached(&mut self, host: usize) {
        let ends_at_ns = self.members.get(host).and_then(|member| member.ends_at_ns);
        let here_ns = self.order.lane(host).map_or(0, Lane::watermark_ns);
        if ends_at_ns.is_some_and(|ends_at_ns| here_ns >= ends_at_ns) {
            self.end(host, HostState::Ended);
        }
    }

    /// Gives a host up.
    pub(super) fn give_up(&mut self, name: &str, reason: String, outcome: Outcome) {
        let Some(host) = self.number(name) else { return };
        if let Some(member) = self.members.get_mut(host) {
            member.is_given_up(reason, outcome);
            self.end(host, HostState::GivenUp);
        }
    }

    /// Ends a host: it sends nothing any more.
    fn end(&mut self, host: usize, state: HostState) {
        let Some(member) = self.members.get_mut(host) else { return };
        member.is_over = true;
        member.task.abort();
        member.account.state = state;
        let reason = if state == HostState::Ended { String::new() } else { member.account.reason.clone() };
        self.order.change(host, |lane| lane.set_released(true));
        self.notices.push_back((host, Notice::state(state, reason)));
    }

    /// Handles a message of a host's feed.
    pub(super) fn accept(&mut self, host: usize, signal: Signal) {
        let Some(member) = self.members.get_mut(host).filter(|member| !member.is_over) else { return };
        match signal {
            Signal::Connecting => {
                if member.is_tried() {
                    self.notices.push_back((host, Notice::state(HostState::Connecting, String::new())));
                }
            }
            Signal::Connected(client) => member.client = Some(client),
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
            Signal::Malformed { problem, cursor } => {
                member.account.malformed += 1;
                self.notices.push_back((host, Notice::Malformed { problem, cursor }));
            }
            Signal::Lost { reason, outcome } => {
                if member.is_lost(&reason, outcome) {
                    self.notices.push_back((host, Notice::state(HostState::Lost, reason)));
                }
            }
            Signal::Ended => {
                member.absent = None;
                self.end(host, HostState::Ended);
            }
            Signal::GivenUp { reason, outcome } => {
                let outcome = member.outcome(outcome);
                member.is_given_up(reason, outcome);
                self.end(host, HostState::GivenUp);
            }
        }
    }

    fn arrived(&mut self, host: usize, item: StreamItem) {
        let Some(member) = self.members.get_mut(host) else { return };
        if let StreamItem::Started(started) = &item {
            member.account.kernel.clone_from(&started.kernel_release);
            member.started = Some(Box::new(started.clone()));
        }
        if let Some((state, away)) = member.is_there() {
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
                self.end_if_reached(host);
            }
            StreamItem::Epoch(epoch) => {
                self.order.change(host, |lane| lane.boot(&epoch.cursor.boot_id));
                let number = epoch.cursor.epoch;
                let is_restart = member.epoch.replace(number).is_some_and(|before| before != number);
                if is_restart || epoch.may_miss {
                    self.notices.push_back((host, Notice::NewRun { run: epoch, is_restart }));
                }
            }
            StreamItem::Loss(loss) => {
                let account = &mut member.account;
                match loss.count {
                    Some(count) => account.lost = account.lost.saturating_add(count),
                    None => account.uncounted_gaps = account.uncounted_gaps.saturating_add(loss.gaps),
                }
                let arrived = self.order.lane(host).map_or_else(Vec::new, Lane::arrived);
                self.notices.push_back((host, Notice::Loss { loss, arrived }));
            }
            StreamItem::Started(_) | StreamItem::Schema(_) | StreamItem::CaughtUp(_) => {}
        }
    }
}
