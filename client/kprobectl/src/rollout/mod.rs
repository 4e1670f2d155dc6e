//! Roll-outs: a change that goes over a fleet in waves, and back where a gate is not passed.
//!
//! Owns what is done next and when it stops:
//!
//! ```text
//! waves (who, when) -> drive -> verdict (all hosts, before any change)
//!                        |   -> change (look, write down, send) -> soak (read, judge against gates) -> next wave, pause or undo
//!                        |
//!                      state (a value) -> file (a file that outlives the process)
//! ```
//!
//! The rules: nothing is changed while a host of any wave has not said its verdict; nothing is sent that is not in the state before; what was sent can
//! be sent again, because its request id is in the state; what was told is in the state; a gate without data is not passed. Everything
//! outside is behind [`World`], so that a test can stop the process after each of its actions. It never connects, and it never prints.

mod change;
mod drive;
mod file;
mod gate;
mod judge;
mod plan;
mod processor;
mod reading;
mod setback;
mod soak;
mod state;
mod undo;
mod verdict;
mod waves;
mod world;

#[cfg(test)]
mod tests;

pub(crate) use drive::{begin, drive, resume, take_back};
pub(crate) use file::{StateError, StateFile, pause_file};
pub(crate) use gate::{Gate, Gates};
pub(crate) use reading::{ProbeReading, Reading, Spent};
pub(crate) use state::{Happened, Host, OnFailure, Phase, Setting, State, Step};
pub(crate) use verdict::{Outlook, ask_for_verdicts};
pub(crate) use waves::Waves;
pub(crate) use world::{Ask, Done, Heard, Looked, Planned, Said, Stopped, Trouble, Verdict, World};
