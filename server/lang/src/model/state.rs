//! A state that a probe has had, as it is kept.

use std::time::SystemTime;

use super::ProbeUid;

/// A state, and since when a probe had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRecord {
    /// The probe.
    pub uid: ProbeUid,
    /// Since when.
    pub time: SystemTime,
    /// Its name, such as `ARMED`.
    pub state: String,
    /// Why, for programs; empty for none.
    pub reason: String,
    /// Why, for people; empty for none.
    pub message: String,
    /// What to do; empty for nothing.
    pub hint: String,
}
