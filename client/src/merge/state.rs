//! What is said of a host in the stream, and its account at the end.

use std::time::Duration;

use super::clock::ClockOffset;
use crate::fleet::Outcome;

/// How a host stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostState {
    /// It is being connected to for the first time.
    Connecting,
    /// Its events come.
    Live,
    /// It has said nothing for too long: the others do not wait for it any longer.
    Late,
    /// The connection is lost or could not be made. It is tried again, and the others wait for it until it is late.
    Lost,
    /// It is there again, after it was late or lost. Its events go on where they ended; what is missing is told as losses.
    Back,
    /// Its stream has come to the end that was asked for.
    Ended,
    /// It is given up: it refused, or it must not be tried again.
    GivenUp,
}

impl HostState {
    /// All states.
    pub const ALL: [Self; 7] =
        [Self::Connecting, Self::Live, Self::Late, Self::Lost, Self::Back, Self::Ended, Self::GivenUp];

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

/// A host stands otherwise than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateChange<'a> {
    /// The host.
    pub host: &'a str,
    /// How it stands now.
    pub state: HostState,
    /// Why. Empty: that is as it should be.
    pub reason: String,
    /// Its clock, when it is live or back.
    pub clock: Option<ClockOffset>,
    /// How long it was late or lost, when it is back.
    pub away: Option<Duration>,
}

/// The account of one host: read = given + waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAccount {
    /// The host.
    pub host: String,
    /// What became of it. A host counts as having answered when its stream was open at the end, or had come to its own.
    pub outcome: Outcome,
    /// How it stands.
    pub state: HostState,
    /// Why, if it did not answer. Empty otherwise.
    pub reason: String,
    /// Release of its kernel. Empty: not known.
    pub kernel: String,
    /// Events that were read from its connection.
    pub read: u64,
    /// Those of them that were given out.
    pub given: u64,
    /// Those of the given ones that were behind later ones.
    pub late: u64,
    /// Those that were not given out, since the stream was left before.
    pub waiting: u64,
    /// Events that will never arrive, as far as they were counted.
    pub lost: u64,
    /// Gaps with an unknown number of events.
    pub uncounted_gaps: u64,
    /// Messages that could not be read. What was in them was asked for again.
    pub malformed: u64,
    /// Times that the connection was lost, or the stream was begun again.
    pub interruptions: u64,
    /// Its clock, as it was measured last.
    pub clock: Option<ClockOffset>,
}

impl HostAccount {
    /// The account of a host that was not tried.
    pub fn new(host: String) -> Self {
        Self {
            host,
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
            malformed: 0,
            interruptions: 0,
            clock: None,
        }
    }

    /// Whether every event that was read is accounted for.
    pub fn closes(&self) -> bool {
        self.read == self.given.saturating_add(self.waiting)
    }
}
