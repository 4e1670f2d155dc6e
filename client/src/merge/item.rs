//! Items of a merged stream, the states of its hosts, and their accounts at the end.

use std::time::Duration;

use super::clock::ClockOffset;
use crate::event::{Cursor, Epoch, Loss, Row};
use crate::fleet::Outcome;

/// An event of one of the hosts.
#[derive(Debug)]
pub struct MergedEvent<'a> {
    /// The host.
    pub host: &'a str,
    /// The event. Its times are those of the host.
    pub row: Row<'a>,
    /// Its time on the local clock, in nanoseconds since 1970: the order is by this.
    pub corrected_ns: i64,
    /// Whether later events were delivered before it, because its host was not waited for.
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
        /// For each CPU, the time stamp of the last event that had arrived before the gap, in nanoseconds of the trace
        /// clock. Such an event may still wait for other hosts.
        arrived: Vec<(u32, u64)>,
    },
    /// Events of a host may be missing here: its daemon was started again, or did not stop cleanly.
    NewRun {
        /// The host.
        host: &'a str,
        /// The run of the daemon, and where its stream continues.
        run: Epoch,
        /// The stream had events of an earlier run.
        is_restart: bool,
    },
    /// A message of a host cannot be read, and what was in it is not known. It is requested again,
    /// and then either comes or has the host given up, as the next state says.
    Malformed {
        /// The host.
        host: &'a str,
        /// What is wrong with the message.
        problem: String,
        /// Where its stream continues: before the message. None: it had sent nothing before.
        cursor: Option<Cursor>,
    },
    /// The state of a host changed.
    State(StateChange<'a>),
}

/// A notice about a host before its next event.
pub(super) enum Notice {
    Loss { loss: Loss, arrived: Vec<(u32, u64)> },
    NewRun { run: Epoch, is_restart: bool },
    Malformed { problem: String, cursor: Option<Cursor> },
    State { state: HostState, reason: String, away: Option<Duration> },
}

impl Notice {
    /// A state of a host. The reason is empty for one that is normal.
    pub(super) fn state(state: HostState, reason: String) -> Self {
        Self::State { state, reason, away: None }
    }
}

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
