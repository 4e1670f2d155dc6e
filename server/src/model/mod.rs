//! The domain: what probes, states and profiles are.
//!
//! Owns plain data. Never does I/O, knows no protobuf and no SQL, so that every other module can depend on it.

mod name;
mod probe;
mod profile;

pub use name::{Glob, NameError, ProbeName};
pub use probe::{Probe, ProbeKind, ProbeState, ProbeUid};
pub use profile::{HitProfile, Hits};
