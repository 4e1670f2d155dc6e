//! Roll-outs: a change over a fleet in waves, undone if a gate fails.
//!
//! Owns the decisions about the next action and the end:
//!
//! ```text
//! waves (who, when) -> drive: verdicts of all hosts -> change (look, record, apply) -> soak (read, judge)
//!                        |                               -> next wave, pause or undo
//!                      state (a value, and the form of its file)
//! ```
//!
//! Invariants:
//!
//! - no host is changed before every host of every wave has given its verdict;
//! - what was on a host before the change is in the state before the change is sent, and what an event says
//!   before it is reported;
//! - a change can be sent again: it follows from the documents and what the host has, and its request id from
//!   the etag that it changes;
//! - a gate without data does not pass.
//!
//! Everything outside is behind [`World`], so that a test can stop the process after each action.
//! This module never connects and never prints.

mod answers;
mod change;
mod drive;
mod gate;
mod judgement;
mod mark;
mod soak;
mod state;
mod waves;
mod world;

#[cfg(test)]
mod tests;

pub(crate) use change::{Armed, Target, requests, settled};
pub(crate) use drive::{ask_for_verdicts, begin, drive, pause, resume, take_back};
pub(crate) use gate::{Gate, Gates};
pub(crate) use judgement::{ProbeReading, Reading};
pub(crate) use mark::{RolloutName, only_marks};
pub(crate) use state::{Host, OnFailure, Phase, RolloutEvent, Setting, State, Step};
pub(crate) use waves::Waves;
pub(crate) use world::{HostFailure, Note, Plan, World};
