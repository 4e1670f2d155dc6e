//! gRPC statuses: the only place that makes them of errors.
//!
//! Owns the mapping from errors to codes, reasons and details. Every status carries
//! `google.rpc.ErrorInfo`; one about a field `google.rpc.BadRequest`; one about a text
//! `kprobed.v1.Diagnostics`. Never decides whether a request fails.

mod aggregation;
mod echo;
mod front;
mod store;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashMap;
use std::iter;

use kprobed_proto::{ERROR_DOMAIN, v1};
use prost::Message as _;
use prost_types::Any;
use tonic::{Code, Status};
use tonic_types::pb;

pub(crate) use front::{
    denied, finish, headers_too_long, limit_reached, message_too_long, no_addresses, no_call_memory,
    no_method, no_room, no_stream, request_too_slow, too_late,
};

use crate::control::{ControlError, HoldError, KPROBES_ON};
use crate::messages;
use kprobed_host::tracefs::{KernelMessage, TracefsError};
use kprobed_lang::definition::{self, RefusedBy};
use kprobed_lang::model::LabelError;
use kprobed_trace::filter::FilterError;
use kprobed_trace::history::HistoryError;
use kprobed_trace::spool::SpoolError;
use kprobed_verdict::validate::Refusal;
use kprobed_verdict::validate::typed::DescribeError;

/// The field that contains the text of a definition.
const DEFINITION: &str = "definition";

/// What goes into a status.
struct Parts {
    code: Code,
    reason: &'static str,
    field: Option<Cow<'static, str>>,
    metadata: Vec<(&'static str, String)>,
    diagnostics: Option<v1::Diagnostics>,
}

impl Parts {
    fn new(code: Code, reason: &'static str) -> Self {
        Self { code, reason, field: None, metadata: Vec::new(), diagnostics: None }
    }

    fn field(mut self, field: impl Into<Cow<'static, str>>) -> Self {
        self.field = Some(field.into());
        self
    }

    fn with(mut self, key: &'static str, value: &(impl ToString + ?Sized)) -> Self {
        self.metadata.push((key, value.to_string()));
        self
    }

    /// The kernel's errno for a definition, and whether the kernel itself refuses it.
    fn refused(self, errno: i32, by: RefusedBy) -> Self {
        let by = match by {
            RefusedBy::Kernel => "kernel",
            RefusedBy::Kprobed => "kprobed",
        };
        self.with("errno", &errno).with("by", by)
    }

    fn diagnostics(mut self, text: &str, diagnostics: Vec<v1::Diagnostic>) -> Self {
        self.diagnostics = Some(v1::Diagnostics { text: text.to_owned(), diagnostics });
        self
    }

    fn status(self, message: &str) -> Status {
        let metadata: HashMap<String, String> =
            self.metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let info =
            pb::ErrorInfo { reason: self.reason.to_owned(), domain: ERROR_DOMAIN.to_owned(), metadata };
        let mut details = vec![any("google.rpc.ErrorInfo", &info)];
        if let Some(field) = self.field {
            let violation = pb::bad_request::FieldViolation {
                field: field.into_owned(),
                description: message.to_owned(),
                reason: self.reason.to_owned(),
                ..Default::default()
            };
            details.push(any("google.rpc.BadRequest", &pb::BadRequest { field_violations: vec![violation] }));
        }
        if let Some(diagnostics) = &self.diagnostics {
            details.push(any("kprobed.v1.Diagnostics", diagnostics));
        }
        let whole = echo::fit(pb::Status { code: self.code as i32, message: message.to_owned(), details });
        #[expect(clippy::disallowed_methods, reason = "the only place that makes them")]
        Status::with_details(self.code, whole.message.clone(), whole.encode_to_vec().into())
    }
}

/// A status as a message: of one of several requests, of which others may have succeeded.
pub(super) fn of_one(status: &Status) -> v1::FailedRequest {
    let details = pb::Status::decode(status.details()).map(|status| status.details).unwrap_or_default();
    v1::FailedRequest { code: status.code().into(), message: status.message().to_owned(), details }
}

fn any(name: &str, message: &impl prost::Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
}

/// A field of a request with a value that it cannot have.
pub(super) fn invalid(field: impl Into<Cow<'static, str>>, message: &str) -> Status {
    Parts::new(Code::InvalidArgument, "BAD_ARGUMENT").field(field).status(message)
}

/// A page token that the daemon never returned.
pub(super) fn page_token() -> Status {
    invalid("page_token", "`page_token` was not returned by this call: repeat the call without it")
}

/// A fault of the daemon itself: a task that ended early, or its own data that it cannot read.
pub(crate) fn internal(message: &str) -> Status {
    Parts::new(Code::Internal, "INTERNAL").status(message)
}

/// A control file of the trace instance that cannot be read now.
pub(super) fn unreadable_instance(error: &TracefsError) -> Status {
    Parts::new(Code::Unavailable, "TRACEFS").with("errno", &error.errno()).status(&error.to_string())
}

/// A stream of the past, from a daemon that keeps no history.
pub(super) fn no_history() -> Status {
    let message =
        "this daemon keeps no history: set `spool.enabled` in its configuration, or start with the present";
    Parts::new(Code::FailedPrecondition, "NO_HISTORY").field("start").status(message)
}

/// A history that cannot be read.
pub(super) fn of_history(error: &HistoryError) -> Status {
    let message = error.to_string();
    match error {
        HistoryError::Spool(SpoolError::ForeignCursor { .. }) => {
            Parts::new(Code::InvalidArgument, "FOREIGN_CURSOR")
                .field("start.cursor")
                .status(&format!("`start.cursor`: {message}"))
        }
        HistoryError::Ended => Parts::new(Code::Unavailable, "STOPPING").status(&message),
        HistoryError::Spool(_) | HistoryError::Task(_) => {
            tracing::error!(%error, "cannot read the history");
            Parts::new(Code::Internal, "HISTORY").status(&message)
        }
    }
}

/// The daemon cannot make a hold.
pub(super) fn no_hold(error: &HoldError) -> Status {
    let parts = match error {
        HoldError::TooMany => Parts::new(Code::ResourceExhausted, "TOO_MANY_HOLDS"),
        HoldError::Random(_) => Parts::new(Code::Unavailable, "NO_RANDOM_NUMBERS"),
        HoldError::Stopping => Parts::new(Code::Unavailable, "STOPPING"),
    };
    parts.status(&error.to_string())
}

/// The end of a stream that asked to end if its queue is full.
pub(super) fn overflowed(sequence: u64) -> Status {
    let message = format!(
        "the queue of this subscriber was full: the daemon ended the stream as asked, at log position {sequence}"
    );
    Parts::new(Code::ResourceExhausted, "QUEUE_FULL").with("sequence", &sequence).status(&message)
}

/// Labels or a selector that cannot be parsed.
pub(super) fn unlabelled(field: &'static str, error: &LabelError) -> Status {
    label_parts(field, error).status(&error.to_string())
}

fn label_parts(field: &'static str, error: &LabelError) -> Parts {
    let field = match &error.key {
        // The path to an entry of a map.
        Some(key) => Cow::Owned(format!("{field}[{key:?}]")),
        None => field.into(),
    };
    let diagnostic = v1::Diagnostic {
        severity: v1::Severity::Error.into(),
        code: BAD_LABEL.to_owned(),
        message: error.to_string(),
        hint: error.problem.hint().to_owned(),
        span_start: messages::length(error.span.start),
        span_end: messages::length(error.span.end),
        by: v1::RefusedBy::Unspecified.into(),
    };
    let parts = Parts::new(Code::InvalidArgument, BAD_LABEL).field(field);
    if error.text.is_empty() { parts } else { parts.diagnostics(&error.text, vec![diagnostic]) }
}

const BAD_LABEL: &str = "BAD_LABEL";

/// A function, or a path from it, that cannot be described.
pub(super) fn undescribed(error: &DescribeError, function: &str, path: &str) -> Status {
    let (code, field, text, diagnostic) = match error {
        DescribeError::Function(diagnostic) => (Code::NotFound, "function", function, diagnostic),
        DescribeError::Path(diagnostic) => (Code::InvalidArgument, "path", path, diagnostic),
    };
    Parts::new(code, diagnostic.code.name())
        .field(field)
        .diagnostics(text, vec![messages::diagnostic(diagnostic)])
        .status(&diagnostic.message)
}

/// A function that does not exist, and what the client may have meant.
pub(super) fn no_function(function: &str, hint: String) -> Status {
    let message = format!("the kernel has no function `{function}`");
    unknown(Code::NotFound, "NO_SUCH_FUNCTION", ("function", function), &message, hint)
}

/// A module that is not loaded, and what the client may have meant.
pub(super) fn no_module(module: &str, hint: String) -> Status {
    let message = format!("no module `{module}` is loaded");
    unknown(Code::NotFound, "NO_SUCH_MODULE", ("module", module), &message, hint)
}

/// A field of events that no selected source has, and the fields that they have.
pub(super) fn unknown_field(name: &str, message: &str, hint: String) -> Status {
    unknown(Code::InvalidArgument, "UNKNOWN_FIELD", ("fields", name), message, hint)
}

/// A name that does not exist: it is all of the text in the field.
fn unknown(
    code: Code,
    reason: &'static str,
    (field, text): (&'static str, &str),
    message: &str,
    hint: String,
) -> Status {
    let diagnostic = v1::Diagnostic {
        severity: v1::Severity::Error.into(),
        code: reason.to_owned(),
        message: message.to_owned(),
        hint,
        span_start: 0,
        span_end: messages::length(text.len()),
        by: v1::RefusedBy::Unspecified.into(),
    };
    Parts::new(code, reason).field(field).diagnostics(text, vec![diagnostic]).status(message)
}

impl From<ControlError> for Status {
    fn from(error: ControlError) -> Self {
        parts_of(&error).status(&error.to_string())
    }
}

/// Maps every way in which a request can fail.
fn parts_of(error: &ControlError) -> Parts {
    match error {
        ControlError::Denied(denied) => front::refusal(denied),
        ControlError::Limit(reached) => front::beyond(reached),
        ControlError::Definition { text, diagnostics } => {
            let parts = match diagnostics.first() {
                Some(first) => {
                    let code = match first.code {
                        definition::Code::NoSuchProbe | definition::Code::ForeignProbe => Code::NotFound,
                        _ => Code::InvalidArgument,
                    };
                    Parts::new(code, first.code.name()).refused(first.errno, first.by)
                }
                None => Parts::new(Code::InvalidArgument, "BAD_DEFINITION"),
            };
            parts.field(DEFINITION).diagnostics(text, diagnostics.iter().map(messages::diagnostic).collect())
        }
        ControlError::Refused { text, refusal, further } => {
            let first = refusal_diagnostic(refusal.as_ref().clone());
            Parts::new(Code::InvalidArgument, refusal.rule.name())
                .field(DEFINITION)
                .refused(refusal.errno as i32, refusal.rule.refused_by())
                .diagnostics(
                    text,
                    iter::once(first).chain(further.iter().map(messages::diagnostic)).collect(),
                )
        }
        ControlError::Kernel(error) => {
            let parts =
                Parts::new(Code::InvalidArgument, kernel_reason(error.message.as_ref(), "KERNEL_REFUSED"))
                    .field(DEFINITION)
                    .refused(error.error.errno(), RefusedBy::Kernel);
            match &error.message {
                Some(message) => {
                    let by = v1::RefusedBy::Kernel.into();
                    let found = kernel_diagnostic(message, "KERNEL_REFUSED");
                    parts.diagnostics(&message.command, vec![v1::Diagnostic { by, ..found }])
                }
                None => parts,
            }
        }
        ControlError::Filter { filter, error, message, found } => {
            let parts =
                Parts::new(Code::InvalidArgument, "BAD_FILTER").field("filter").with("errno", &error.errno());
            match (found, message) {
                (Some(found), message) => {
                    // The kernel counts from the first character that is not a blank.
                    let same_text = message.as_ref().filter(|message| message.command == *filter);
                    let kernel = same_text.map(|message| kernel_diagnostic(message, "BAD_FILTER"));
                    parts.diagnostics(filter, iter::once(filter_diagnostic(found)).chain(kernel).collect())
                }
                (None, Some(message)) => {
                    parts.diagnostics(&message.command, vec![kernel_diagnostic(message, "BAD_FILTER")])
                }
                (None, None) => parts.with("filter", filter),
            }
        }
        ControlError::HarmfulFilter { filter, found } => Parts::new(Code::InvalidArgument, "BAD_FILTER")
            .field("filter")
            .refused(nix::errno::Errno::EINVAL as i32, RefusedBy::Kprobed)
            .diagnostics(filter, vec![filter_diagnostic(found)]),
        ControlError::Taken { text, taken } => {
            let reason = if taken.ours { "PROBE_EXISTS" } else { "FOREIGN_EVENT_EXISTS" };
            Parts::new(Code::AlreadyExists, reason)
                .field(DEFINITION)
                .with("probe", &taken.name)
                .with("rule", taken.problem.code.name())
                .refused(taken.problem.errno, taken.problem.by)
                .diagnostics(text, vec![messages::diagnostic(&taken.problem)])
        }
        ControlError::ExistsForeign { name } => {
            Parts::new(Code::AlreadyExists, "FOREIGN_EVENT_EXISTS").with("probe", name)
        }
        ControlError::NotFound { name, foreign: false } => {
            Parts::new(Code::NotFound, "NO_SUCH_PROBE").with("probe", name)
        }
        ControlError::NotFound { name, foreign: true } => {
            Parts::new(Code::NotFound, "FOREIGN_PROBE").with("probe", name)
        }
        ControlError::Ambiguous { event, .. } => {
            Parts::new(Code::InvalidArgument, "AMBIGUOUS_NAME").field("name").with("event", event)
        }
        ControlError::Changed { name, current } => {
            Parts::new(Code::Aborted, "ETAG_MISMATCH").with("probe", name).with("etag", current)
        }
        ControlError::InUse { name } => Parts::new(Code::FailedPrecondition, "IN_USE").with("probe", name),
        ControlError::Unregistered { name } => {
            Parts::new(Code::FailedPrecondition, "NOT_REGISTERED").with("probe", name)
        }
        ControlError::FtraceDisabled => Parts::new(Code::FailedPrecondition, "FTRACE_DISABLED")
            .with("fix", "sysctl kernel.ftrace_enabled=1"),
        ControlError::KprobesDisabled => {
            Parts::new(Code::FailedPrecondition, "KPROBES_DISABLED").with("fix", KPROBES_ON)
        }
        ControlError::NotInKernel { name, hint, .. } => {
            let parts = Parts::new(Code::FailedPrecondition, "NOT_IN_KERNEL").with("probe", name);
            if hint.is_empty() { parts } else { parts.with("fix", hint) }
        }
        ControlError::LeaseEnded { name } => Parts::new(Code::FailedPrecondition, "LEASE_ENDED")
            .with("fix", &format!("kprobectl update {name} --renew")),
        ControlError::NoHold => Parts::new(Code::InvalidArgument, "NO_SUCH_HOLD").field("lease.holder"),
        ControlError::Alarm(_) => Parts::new(Code::Unavailable, "NO_TIMER"),
        ControlError::HeldBack { name, hint, .. } => {
            Parts::new(Code::FailedPrecondition, "HELD_BACK").with("probe", name).with("fix", hint)
        }
        ControlError::NotHeldBack { name } => {
            Parts::new(Code::FailedPrecondition, "NOT_HELD_BACK").with("probe", name)
        }
        ControlError::Claim(_) => Parts::new(Code::FailedPrecondition, "INSTANCE_IN_USE"),
        ControlError::Labels { field, error } => label_parts(field, error),
        ControlError::NoKprobeEvents => Parts::new(Code::FailedPrecondition, "NO_KPROBE_EVENTS"),
        ControlError::NoSuchEvent { name } => Parts::new(Code::NotFound, "NO_SUCH_EVENT").with("event", name),
        ControlError::NoSwitch { name } => {
            Parts::new(Code::FailedPrecondition, "EVENT_HAS_NO_SWITCH").with("event", name)
        }
        ControlError::OwnProbe { name } => {
            Parts::new(Code::InvalidArgument, "OWN_PROBE").field("name").with("probe", name)
        }
        ControlError::NotAdoptable { name, obstacle } => {
            Parts::new(Code::FailedPrecondition, "NOT_ADOPTABLE")
                .with("event", name)
                .with("obstacle", obstacle.code)
        }
        ControlError::BatchFailed { .. } => Parts::new(Code::Aborted, "BATCH_FAILED"),
        ControlError::Declared { name, file } => Parts::new(Code::FailedPrecondition, "DECLARED_BY_FILE")
            .with("probe", name)
            .with("file", file)
            .with(
                "fix",
                "change the file, or take the probe over (`--take-over`): the file changes it no more then",
            ),
        ControlError::Twice { name } => {
            Parts::new(Code::InvalidArgument, "CHANGED_TWICE").field("changes").with("probe", name)
        }
        ControlError::Attached { name } => {
            Parts::new(Code::AlreadyExists, "EVENT_ATTACHED").with("event", name)
        }
        ControlError::NotAttached { name } => {
            Parts::new(Code::NotFound, "EVENT_NOT_ATTACHED").with("event", name)
        }
        ControlError::BadArgument { field, .. } => {
            Parts::new(Code::InvalidArgument, "BAD_ARGUMENT").field(*field)
        }
        ControlError::Format { name, .. } => Parts::new(Code::Internal, "BAD_FORMAT").with("probe", name),
        ControlError::Aggregation(error) => aggregation::parts_of(error),
        ControlError::Facts(_) => Parts::new(Code::FailedPrecondition, "KERNEL_FACTS_HIDDEN"),
        ControlError::Tracefs(error) => Parts::new(Code::Internal, "TRACEFS").with("errno", &error.errno()),
        ControlError::Store(error) => store::parts_of(error),
        ControlError::Stopping => Parts::new(Code::Unavailable, "STOPPING"),
    }
}

/// The name of the kernel's message, if it is a known one.
fn kernel_reason(message: Option<&KernelMessage>, otherwise: &'static str) -> &'static str {
    message
        .and_then(|message| definition::Code::from_kernel_text(&message.text))
        .map_or(otherwise, definition::Code::name)
}

/// The kernel's own message, with our hint.
fn kernel_diagnostic(message: &KernelMessage, otherwise: &'static str) -> v1::Diagnostic {
    let code = definition::Code::from_kernel_text(&message.text);
    let rest = message.command.get(message.position..).unwrap_or_default();
    let word = rest.find(' ').unwrap_or(rest.len());
    v1::Diagnostic {
        severity: v1::Severity::Error.into(),
        code: code.map_or(otherwise, definition::Code::name).to_owned(),
        message: message.text.clone(),
        hint: code.map_or("", definition::Code::hint).to_owned(),
        span_start: messages::length(message.position),
        span_end: messages::length(message.position + word),
        by: v1::RefusedBy::Unspecified.into(),
    }
}

/// A subscription filter that cannot be used.
pub(super) fn filter_status(filter: &str, error: &FilterError) -> Status {
    Parts::new(Code::InvalidArgument, "BAD_FILTER")
        .field("selection.filter")
        .diagnostics(filter, vec![filter_diagnostic(error)])
        .status(&error.to_string())
}

/// The problem of a filter, with its text.
pub(super) fn filter_diagnostic(error: &FilterError) -> v1::Diagnostic {
    v1::Diagnostic {
        severity: v1::Severity::Error.into(),
        code: error.code.name().to_owned(),
        message: error.message.clone(),
        hint: error.hint.clone(),
        span_start: messages::length(error.span.start),
        span_end: messages::length(error.span.end),
        by: v1::RefusedBy::Unspecified.into(),
    }
}

pub(super) fn refusal_diagnostic(refusal: Refusal) -> v1::Diagnostic {
    v1::Diagnostic {
        by: messages::refused_by(refusal.rule.refused_by()).into(),
        severity: v1::Severity::Error.into(),
        code: refusal.rule.name().to_owned(),
        message: refusal.message,
        hint: refusal.hint,
        span_start: messages::length(refusal.span.start),
        span_end: messages::length(refusal.span.end),
    }
}
