//! Roll-outs: a change that goes over a fleet in waves, and back where a gate is not passed.
//!
//! Owns what is done next and when it stops:
//!
//! ```text
//! waves (who, when) -> drive (look, intend, make, soak) -> judge (readings against gates) -> next wave, pause or undo
//!                          |
//!                        state (a value) -> file (a file that outlives the process)
//! ```
//!
//! The rules: nothing is sent that is not in the state before; what was sent can be sent again, because its request id is in the state; a
//! gate without data is not passed. Everything outside is behind [`World`], so that a test can stop the process after each of its actions. It
//! never connects, and it never prints.

mod drive;
mod file;
mod gate;
mod judge;
mod plan;
mod reading;
mod state;
mod undo;
mod waves;

#[cfg(test)]
mod tests;

pub(crate) use drive::{
    Ask, Done, Heard, Looked, Planned, Said, Stopped, Trouble, World, begin, drive, resume, take_back,
};
pub(crate) use file::{StateError, StateFile, pause_file};
pub(crate) use gate::{Gate, Gates};
pub(crate) use reading::{ProbeReading, Reading};
pub(crate) use state::{Happened, Host, OnFailure, Phase, Setting, State, Step};
pub(crate) use waves::Waves;
