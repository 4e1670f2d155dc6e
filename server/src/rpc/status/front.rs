//! What a caller is told before any service has seen its call, or instead of its answer.

use std::time::Duration;

use tonic::{Code, Status};

use super::Parts;

/// There is no room for the connection.
pub(crate) fn no_room(why: &str) -> Status {
    Parts::new(Code::ResourceExhausted, "TOO_MANY_CONNECTIONS").status(why)
}

/// The deadline that the client set has passed.
pub(crate) fn too_late(deadline: Duration) -> Status {
    Parts::new(Code::DeadlineExceeded, "DEADLINE")
        .status(&format!("the call took longer than the {deadline:?} that the client gave it"))
}
