//! Member of a merge: the account of one host, and whether it is absent.
//!
//! It never decides who waits for the host: `roster` does.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::item::{HostAccount, HostState};
use crate::api::StreamStarted;
use crate::client::Client;
use crate::fleet::Outcome;

/// One host.
pub(super) struct Member {
    pub(super) account: HostAccount,
    /// Absent before its stream has begun, and for one that is not connected to.
    pub(super) client: Option<Client>,
    /// What it said when its stream began.
    pub(super) started: Option<Box<StreamStarted>>,
    /// Its last outcome, and since when it is absent: it did not answer, or does not any longer.
    pub(super) absent: Option<(Outcome, Instant)>,
    has_started: bool,
    /// The run of its daemon that its stream is in.
    pub(super) epoch: Option<u64>,
    /// It sends nothing any more.
    pub(super) is_over: bool,
    /// Its stream ends when all events before this time of its trace clock have arrived.
    pub(super) ends_at_ns: Option<u64>,
    pub(super) heard: Instant,
    permits: Arc<Semaphore>,
    /// Items that were taken and not yet permitted anew.
    pub(super) owed: usize,
    /// Its feed.
    pub(super) task: AbortHandle,
}

impl Member {
    /// A host that is not connected yet. `permits`: items that it may send; `task`: its feed.
    pub(super) fn new(name: String, permits: Arc<Semaphore>, task: AbortHandle) -> Self {
        Self {
            account: HostAccount::new(name),
            client: None,
            started: None,
            absent: None,
            has_started: false,
            epoch: None,
            is_over: false,
            ends_at_ns: None,
            heard: Instant::now(),
            permits,
            owed: 0,
            task,
        }
    }

    /// Its account, while `waiting` of its events are buffered.
    pub(super) fn account(&self, waiting: u64) -> HostAccount {
        let account = HostAccount { waiting, ..self.account.clone() };
        match self.absent {
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
    }

    /// Permits as many further items as were taken.
    pub(super) fn pay(&mut self) {
        if self.permits.available_permits() == 0 {
            // It could not send anything until now.
            self.heard = Instant::now();
        }
        self.permits.add_permits(std::mem::take(&mut self.owed));
    }

    /// It is being connected to. Returns whether that is news.
    pub(super) fn is_tried(&mut self) -> bool {
        let is_first = self.account.outcome == Outcome::NotTried;
        if is_first {
            self.account.outcome = Outcome::Failed;
            self.heard = Instant::now();
        }
        is_first
    }

    /// An item arrived. Returns its new state, if it changed, and how long it was away.
    pub(super) fn is_there(&mut self) -> Option<(HostState, Option<Duration>)> {
        if self.has_started && self.absent.is_none() {
            return None;
        }
        let away = self.absent.take().filter(|_| self.has_started).map(|(_, since)| since.elapsed());
        let state = if self.has_started { HostState::Back } else { HostState::Live };
        self.has_started = true;
        self.account.state = state;
        self.account.reason.clear();
        Some((state, away))
    }

    /// It was silent for this long. Returns the reason.
    pub(super) fn is_silent(&mut self, max_wait: Duration) -> String {
        let nothing = format!("it said nothing for {max_wait:?}");
        let reason = match &self.absent {
            Some(_) => format!("{nothing}: {}", self.account.reason),
            None => nothing,
        };
        let outcome = match self.account.outcome {
            // All places were taken by others.
            Outcome::NotTried => Outcome::NotTried,
            _ => Outcome::TimedOut,
        };
        self.absent.get_or_insert((outcome, Instant::now()));
        self.account.reason.clone_from(&reason);
        self.account.state = HostState::Late;
        reason
    }

    /// Its connection is lost. Returns false for further attempts of the same absence.
    pub(super) fn is_lost(&mut self, reason: &str, outcome: Outcome) -> bool {
        let is_first = !matches!(self.account.state, HostState::Lost | HostState::Late);
        self.account.interruptions += u64::from(is_first && self.has_started);
        let outcome = self.outcome(outcome);
        let since = self.absent.map_or_else(Instant::now, |(_, since)| since);
        self.absent = Some((outcome, since));
        reason.clone_into(&mut self.account.reason);
        if is_first {
            self.account.state = HostState::Lost;
        }
        is_first
    }

    /// Its outcome when its stream fails with this outcome.
    pub(super) fn outcome(&self, outcome: Outcome) -> Outcome {
        if self.has_started { Outcome::Failed } else { outcome }
    }

    /// It is given up.
    pub(super) fn is_given_up(&mut self, reason: String, outcome: Outcome) {
        self.absent = Some((outcome, Instant::now()));
        self.account.reason = reason;
    }
}
