//! What a merged stream consists of.

use std::time::Duration;

use super::state::{HostState, StateChange};
use crate::event::{Cursor, Loss, Row};

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
    /// A message of a host cannot be read, and what was in it is not known. It is asked for again, and then either comes or has the host given
    /// up, as the next state says.
    Malformed {
        /// The host.
        host: &'a str,
        /// What is wrong with the message.
        problem: String,
        /// Where its stream goes on: before the message. None: nothing came before.
        cursor: Option<Cursor>,
    },
    /// A host stands otherwise than before.
    State(StateChange<'a>),
}

/// What is to be said of a host before its next event.
pub(super) enum Notice {
    Loss(Loss),
    MayMiss(Cursor),
    Malformed { problem: String, cursor: Option<Cursor> },
    State { state: HostState, reason: String, away: Option<Duration> },
}

impl Notice {
    /// That a host stands so, as it should.
    pub(super) fn state(state: HostState) -> Self {
        Self::State { state, reason: String::new(), away: None }
    }

    /// That a host stands so, and why.
    pub(super) fn problem(state: HostState, reason: String) -> Self {
        Self::State { state, reason, away: None }
    }
}
