//! Items of a merged stream.

use std::time::Duration;

use super::state::{HostState, StateChange};
use crate::event::{Cursor, Epoch, Loss, Row};

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
    /// A state of a host that is normal.
    pub(super) fn state(state: HostState) -> Self {
        Self::State { state, reason: String::new(), away: None }
    }

    /// A state of a host with its reason.
    pub(super) fn problem(state: HostState, reason: String) -> Self {
        Self::State { state, reason, away: None }
    }
}
