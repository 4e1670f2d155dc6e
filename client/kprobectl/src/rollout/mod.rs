//! Roll-outs: a change over a fleet in waves, undone if a gate fails.
//!
//! Owns the decisions about the next action and the end:
//!
//! ```text
//! waves (who, when) -> drive -> verdict (all hosts, before any change)
//!                        |   -> change (look, record, send) -> soak (read, judge) -> next wave, pause or undo
//!                        |
//!                      state (a value) -> file (outlives the process)
//! ```
//!
//! Invariants:
//!
//! - no host is changed before every host of every wave has given its verdict;
//! - every request and every reported event is in the state before it is sent or reported;
//! - a request can be sent again, because its id is in the state;
//! - a gate without data does not pass.
//!
//! Everything outside is behind [`World`], so that a test can stop the process after each action.
//! This module never connects and never prints.

mod change;
mod cpu_share;
mod drive;
mod failing_hosts;
mod file;
mod gate;
mod judgement;
mod mark;
mod reading;
mod recorded_change;
mod soak;
mod state;
mod transition;
mod undo;
mod verdict;
mod waves;
mod world;

#[cfg(test)]
mod tests;

pub(crate) use drive::drive;
pub(crate) use file::{StateError, StateFile};
pub(crate) use gate::{Gate, Gates};
pub(crate) use mark::{RolloutName, only_marks};
pub(crate) use reading::{ProbeReading, Reading, Spent};
pub(crate) use state::{Host, OnFailure, Phase, RolloutEvent, Setting, State, Step};
pub(crate) use transition::{begin, resume, take_back};
pub(crate) use verdict::{Outlook, ask_for_verdicts};
pub(crate) use waves::Waves;
pub(crate) use world::{
    AnswerHandler, ChangeDone, HostAnswer, HostFailure, HostQuery, Inspection, PlannedProbe, Stopped,
    Verdict, World,
};
