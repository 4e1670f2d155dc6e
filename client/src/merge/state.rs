//! States of hosts in a merge, and their accounts at the end.

use std::time::Duration;

use super::clock::ClockOffset;
use crate::fleet::Outcome;

/// State of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HostState {
    /// It is being connected to for the first time.
    #[default]
    Connecting,
    /// Its events arrive.
    Live,
    /// It was silent for too long: the others do not wait for it any longer.
    Late,
    /// The connection is lost or failed. It is tried again, and the others wait for it until it is
    /// late.
    Lost,
    /// It is connected again, after it was late or lost. Its events continue where they ended;
    /// missing ones are reported as losses.
    Back,
    /// Its stream has reached the requested end.
    Ended,
    /// It is given up: it refused, or no further attempt is allowed.
    GivenUp,
}

impl HostState {
    /// Its name for programs, in lower snake case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Live => "live",
            Self::Late => "late",
            Self::Lost => "lost",
            Self::Back => "back",
            Self::Ended => "ended",
            Self::GivenUp => "given_up",
        }
    }
}

/// The state of a host changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateChange<'a> {
    /// The host.
    pub host: &'a str,
    /// Its new state.
    pub state: HostState,
    /// The reason. Empty for a normal state.
    pub reason: String,
    /// Its clock, when it is live or back.
    pub clock: Option<ClockOffset>,
    /// How long it was late or lost, once it has returned.
    pub away: Option<Duration>,
}

/// The account of one host: read = given + waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostAccount {
    /// The host.
    pub host: String,
    /// Its outcome. A host has answered if its stream was open at the end, or had reached its own
    /// end.
    pub outcome: Outcome,
    /// Its state.
    pub state: HostState,
    /// Why, if it did not answer. Empty otherwise.
    pub reason: String,
    /// Release of its kernel. Empty: not known.
    pub kernel: String,
    /// Events that were read from its connection.
    pub read: u64,
    /// Of those, events that were delivered.
    pub given: u64,
    /// Delivered events that came after later ones.
    pub late: u64,
    /// Of those, events that were not delivered before the merge ended.
    pub waiting: u64,
    /// Events that will never arrive, as far as they were counted.
    pub lost: u64,
    /// Gaps with an unknown number of events.
    pub uncounted_gaps: u64,
    /// Messages that could not be read. What was in them was requested again.
    pub malformed: u64,
    /// Times that the connection was lost, or the stream was begun again.
    pub interruptions: u64,
    /// Its clock offset at the last measurement.
    pub clock: Option<ClockOffset>,
}

impl HostAccount {
    /// The account of a host that was not tried.
    pub fn new(host: String) -> Self {
        Self { host, ..Self::default() }
    }

    /// Whether every event that was read is accounted for.
    pub fn closes(&self) -> bool {
        self.read == self.given.saturating_add(self.waiting)
    }
}
