//! State record: one entry of a probe's history of states.
//!
//! Owns the type. Never decides what a state is.

use std::time::SystemTime;

use super::ProbeUid;

/// A state, and since when a probe had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRecord {
    /// The probe.
    pub uid: ProbeUid,
    /// Time since which the probe had it.
    pub time: SystemTime,
    /// Its name, such as `ARMED`.
    pub state: String,
    /// Reason code; empty for none.
    pub reason: String,
    /// Reason for people; empty for none.
    pub message: String,
    /// What to do; may be empty.
    pub hint: String,
}
