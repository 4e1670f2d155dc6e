//! Statuses of the front end: sent before any service has seen a call, or instead of its answer.
//!
//! Owns their reasons. Never decides when a call is refused.

use std::time::Duration;

use tonic::{Code, Status};

use super::Parts;
use crate::auth::Denied;

/// The daemon has as many connections as it can have.
pub(crate) fn no_room(why: &str) -> Status {
    Parts::new(Code::ResourceExhausted, "TOO_MANY_CONNECTIONS").status(why)
}

/// The roles of the caller do not allow the call.
pub(crate) fn denied(denied: &Denied) -> Status {
    refusal(denied).status(&denied.to_string())
}

/// A question about an address, by a caller that may not see them.
pub(crate) fn no_addresses() -> Status {
    Parts::new(Code::PermissionDenied, "NOT_ALLOWED")
        .with("fix", "name the function, or ask for a rule with `addresses` in `reads`")
        .status("a place that is an address needs a role that may see addresses")
}

/// What programs can tell from a refusal: who asked for what, and the rule that decided.
pub(super) fn refusal(denied: &Denied) -> Parts {
    let parts = Parts::new(Code::PermissionDenied, "NOT_ALLOWED")
        .with("principal", &denied.principal)
        .with("method", denied.method)
        .with(
            "fix",
            "`kprobectl auth whoami` lists your roles; ask whoever keeps the role file of this host",
        );
    let parts = match denied.decision.rule() {
        Some(rule) => parts.with("role", &rule.role).with("line", &rule.line),
        None => parts,
    };
    match &denied.object {
        Some(name) => parts.with("probe", name),
        None => parts,
    }
}

/// A call of a method that the daemon does not have.
pub(crate) fn no_method(path: &str) -> Status {
    Parts::new(Code::Unimplemented, "NO_SUCH_METHOD")
        .status(&format!("the daemon has no method `{path}`: the client may be newer than the daemon"))
}

/// The deadline that the client set has passed.
pub(crate) fn too_late(deadline: Duration) -> Status {
    Parts::new(Code::DeadlineExceeded, "DEADLINE")
        .status(&format!("the call took longer than the {deadline:?} that the client gave it"))
}
