//! Statuses of the front end: sent before any service has seen a call, or instead of its answer.
//!
//! Owns their reasons. Never decides when a call is refused.

use std::time::Duration;

use tonic::codegen::http::HeaderMap;
use tonic::{Code, Status};

use super::Parts;
use super::echo::fit_headers;
use crate::auth::{Denied, LimitReached};

/// The daemon has as many connections as it can have.
pub(crate) fn no_room(why: &str) -> Status {
    Parts::new(Code::ResourceExhausted, "TOO_MANY_CONNECTIONS").status(why)
}

/// The daemon has as many streams as it can have.
pub(crate) fn no_stream(why: &str) -> Status {
    let fix = "end streams that are not needed, or raise `listen.max_streams`";
    Parts::new(Code::ResourceExhausted, "TOO_MANY_STREAMS").with("fix", fix).status(why)
}

/// A request has a message that is too long.
pub(crate) fn message_too_long(bytes: u64, most: u64) -> Status {
    let message = format!(
        "a message of the request has {bytes} bytes, and the longest may have {most} (`listen.max_message_kib`)"
    );
    let fix = "divide it: ApplyProbes takes changes in several calls, CheckProbes text in several messages";
    Parts::new(Code::ResourceExhausted, "MESSAGE_TOO_LONG")
        .with("most", &most)
        .with("fix", fix)
        .status(&message)
}

/// A request has too many headers.
pub(crate) fn headers_too_long(bytes: u64, most: u32) -> Status {
    let message =
        format!("the headers of the call have {bytes} bytes, and can have {most} (`listen.max_header_kib`)");
    Parts::new(Code::ResourceExhausted, "HEADERS_TOO_LONG")
        .with("most", &most)
        .with("fix", "send less metadata with the call")
        .status(&message)
}

/// Calls hold as much memory as they may.
pub(crate) fn no_call_memory(why: &str) -> Status {
    let fix = "read the answers of calls, try again later, or raise `listen.call_memory_mib`";
    Parts::new(Code::ResourceExhausted, "CALL_MEMORY_FULL").with("fix", fix).status(why)
}

/// Gives a status on its way what every status of the daemon has: a reason, and a size that clients
/// accept. The library of gRPC says INTERNAL, without a reason, of a message that it cannot read.
pub(crate) fn finish(headers: &mut HeaderMap) {
    if headers.get("grpc-status").is_some_and(|code| code == "13")
        && !headers.contains_key("grpc-status-details-bin")
        && let Some(found) = Status::from_header_map(headers)
    {
        let message = format!("a message of the request cannot be read: {}", found.message());
        for name in ["grpc-status", "grpc-message"] {
            headers.remove(name);
        }
        let named = Parts::new(Code::InvalidArgument, "BAD_MESSAGE").status(&message);
        if let Err(error) = named.add_header(headers) {
            tracing::error!(%error, "a status cannot be sent");
        }
    }
    fit_headers(headers);
}

/// A request that did not arrive in time.
pub(crate) fn request_too_slow(within: Duration) -> Status {
    let message = format!("the request did not arrive within {within:?} (`listen.request_timeout_s`)");
    Parts::new(Code::DeadlineExceeded, "REQUEST_TOO_SLOW").status(&message)
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

/// A request beyond a limit of the caller's roles.
pub(crate) fn limit_reached(reached: &LimitReached) -> Status {
    beyond(reached).status(&reached.to_string())
}

/// What programs can tell from such a refusal: the limit, who sets it, and what is held of it.
pub(super) fn beyond(reached: &LimitReached) -> Parts {
    let LimitReached { principal, bound, asked } = reached;
    Parts::new(Code::ResourceExhausted, "ROLE_LIMIT")
        .with("principal", principal)
        .with("limit", bound.limit.name())
        .with("most", &bound.most)
        .with("held", &asked.held)
        .with("role", &bound.rule.role)
        .with("line", &bound.rule.line)
        .with("fix", reached.remedy())
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
