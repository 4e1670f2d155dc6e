//! Statuses of the front end: sent before any service has seen a call, or instead of its answer.
//!
//! Owns their reasons. Never decides when a call is refused.

use std::time::Duration;

use tonic::{Code, Status};

use super::Parts;

/// The daemon has as many connections as it can have.
pub(crate) fn no_room(why: &str) -> Status {
    Parts::new(Code::ResourceExhausted, "TOO_MANY_CONNECTIONS").status(why)
}

/// The deadline that the client set has passed.
pub(crate) fn too_late(deadline: Duration) -> Status {
    Parts::new(Code::DeadlineExceeded, "DEADLINE")
        .status(&format!("the call took longer than the {deadline:?} that the client gave it"))
}
