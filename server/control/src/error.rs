//! Errors of requests: the reason of each for programs, a message for people, and what it is about.
//!
//! The code that knows a fault makes the whole error; `status.rs` turns it into a gRPC status. Owns the list of
//! reasons, and the errors that several rooms make.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use kprobed_proto::v1;
use nix::errno::Errno;
use tonic::Code;

use kprobed_host::kernel::FactsError;
use kprobed_host::tracefs::{ClaimError, KernelMessage, LineError, TracefsError};
use kprobed_lang::definition::{self, Diagnostic, RefusedBy};
use kprobed_lang::model::LabelError;
use kprobed_trace::filter::FilterError;
use kprobed_trace::pipeline::ReadersError;
use kprobed_verdict::checker::{CheckError, Taken};
use kprobed_verdict::message::{diagnostic, finding};

/// Why a request failed, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Its name, as in `google.rpc.ErrorInfo`.
    pub name: &'static str,
    /// The code of its status.
    pub code: Code,
}

macro_rules! reasons {
    ($($code:ident: $($name:ident)+;)+) => {
        impl Reason {
            $($(
                #[doc = concat!("`", stringify!($name), "`: see `proto/guide/errors.md`.")]
                pub const $name: Self = Self { name: stringify!($name), code: Code::$code };
            )+)+

            /// Every reason that is not the name of a rule for definitions.
            pub const ALL: &[Self] = &[$($(Self::$name,)+)+];
        }
    };
}

reasons! {
    InvalidArgument: AMBIGUOUS_NAME BAD_ARGUMENT BAD_DEFINITION BAD_FILTER BAD_LABEL BAD_MESSAGE CHANGED_TWICE
        FOREIGN_CURSOR KERNEL_REFUSED NO_SUCH_HOLD REQUEST_ID_REUSED TOO_MANY_POINTS UNKNOWN_FIELD;
    NotFound: FOREIGN_PROBE NO_SUCH_AGGREGATION NO_SUCH_EVENT NO_SUCH_FUNCTION NO_SUCH_MODULE
        NO_SUCH_PROBE;
    AlreadyExists: AGGREGATION_EXISTS FOREIGN_EVENT_EXISTS PROBE_EXISTS;
    PermissionDenied: NOT_ALLOWED;
    FailedPrecondition: COUNTED DATABASE_BUSY DATABASE_IO DATABASE_MOVED DATABASE_READ_ONLY DECLARED_BY_FILE
        FTRACE_DISABLED HELD_BACK INSTANCE_IN_USE IN_USE KERNEL_FACTS_HIDDEN KPROBES_DISABLED
        LEASE_ENDED NOT_ADOPTABLE NOT_BUILT NOT_HELD_BACK NOT_IN_KERNEL NOT_REGISTERED NO_HISTORY NO_KPROBE_EVENTS
        TRIGGER_REFUSED;
    ResourceExhausted: CALL_MEMORY_FULL DATABASE_FULL HEADERS_TOO_LONG MESSAGE_TOO_LONG QUEUE_FULL ROLE_LIMIT
        TOO_MANY_AGGREGATIONS TOO_MANY_CONNECTIONS TOO_MANY_HOLDS TOO_MANY_STREAMS;
    Aborted: BATCH_FAILED ETAG_MISMATCH;
    DeadlineExceeded: DEADLINE REQUEST_TOO_SLOW;
    Unimplemented: NO_SUCH_METHOD;
    DataLoss: DATABASE_CORRUPT NOT_DURABLE UNREADABLE_TABLE;
    Unavailable: NO_RANDOM_NUMBERS NO_TIMER STOPPING;
    Internal: BAD_FORMAT DATABASE HISTORY INTERNAL TRACEFS;
}

/// The field that contains the text of a definition.
const DEFINITION: &str = "definition";

/// Why a request was not carried out.
#[derive(Clone, Debug)]
#[expect(clippy::error_impl_error, reason = "the daemon has one, and every room means it")]
pub struct Error {
    /// For programs.
    pub reason: Reason,
    /// For people, in one line.
    pub message: String,
    /// The path of the field of the request that is at fault.
    pub field: Option<Cow<'static, str>>,
    /// What the reason is about; `fix` says what to do.
    pub metadata: Vec<(&'static str, String)>,
    /// What is wrong with a text.
    pub diagnostics: Option<Box<v1::Diagnostics>>,
    /// The error that it was made of.
    pub source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().and_then(std::error::Error::source)
    }
}

impl Error {
    /// An error about nothing else.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let (field, diagnostics) = (None, None);
        Self { reason, message: message.into(), field, metadata: Vec::new(), diagnostics, source: None }
    }

    /// An error with the message of another one.
    pub fn caused(reason: Reason, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::new(reason, source.to_string()).because(source)
    }

    /// Keeps the error that it was made of.
    #[must_use]
    pub fn because(self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Arc::new(source)), ..self }
    }

    /// An error about the probe of this name.
    pub fn of_probe(reason: Reason, name: impl fmt::Display, message: impl Into<String>) -> Self {
        Self::new(reason, message).with("probe", &name)
    }

    /// Names the field that is at fault.
    #[must_use]
    pub fn field(self, field: impl Into<Cow<'static, str>>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    /// Says what it is about.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: &(impl ToString + ?Sized)) -> Self {
        self.metadata.push((key, value.to_string()));
        self
    }

    /// Says what to do, if that is known.
    #[must_use]
    pub fn fix(self, fix: &str) -> Self {
        if fix.is_empty() { self } else { self.with("fix", fix) }
    }

    /// Shows what is wrong with a text.
    #[must_use]
    pub fn diagnostics(self, text: &str, diagnostics: Vec<v1::Diagnostic>) -> Self {
        Self { diagnostics: Some(Box::new(v1::Diagnostics { text: text.to_owned(), diagnostics })), ..self }
    }

    /// Says which errno the kernel has for a definition, and whether the kernel itself refuses it.
    fn refused(self, errno: i32, by: RefusedBy) -> Self {
        let by = match by {
            RefusedBy::Kernel => "kernel",
            RefusedBy::Kprobed => "kprobed",
        };
        self.with("errno", &errno).with("by", by)
    }

    /// What it says of itself by this key.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(name, _)| *name == key).map(|(_, value)| value.as_str())
    }

    /// What to do; empty if nothing is known.
    pub fn hint(&self) -> &str {
        let first = self.diagnostics.as_ref().and_then(|found| found.diagnostics.first());
        first.map_or_else(|| self.value("fix").unwrap_or_default(), |first| first.hint.as_str())
    }

    /// The error that it was made of, if it is of this type.
    pub fn cause<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.source.as_ref()?.downcast_ref()
    }

    /// Whether the roles of the caller, or their limits, refuse the request. Such a refusal is in the audit log.
    pub fn is_of_roles(&self) -> bool {
        [Reason::NOT_ALLOWED, Reason::ROLE_LIMIT].contains(&self.reason)
    }

    /// Whether the definition of a probe is refused.
    pub fn is_of_definition(&self) -> bool {
        self.field.as_deref() == Some(DEFINITION)
    }

    /// Whether this daemon refuses a place that the kernel would take.
    pub fn is_objection(&self) -> bool {
        let is_its_reason = |code: &definition::Code| code.is_objection() && code.name() == self.reason.name;
        self.is_of_definition()
            && self.value("by") == Some("kprobed")
            && definition::Code::ALL.iter().any(is_its_reason)
    }

    /// A field of a request has a value that it cannot have.
    pub fn bad_argument(field: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(Reason::BAD_ARGUMENT, message).field(field)
    }

    /// A page token that the daemon never returned.
    pub fn page_token() -> Self {
        Self::bad_argument(
            "page_token",
            "`page_token` was not returned by this call: repeat the call without it",
        )
    }

    /// A fault of the daemon itself: a task that ended early, or its own data that it cannot read.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(Reason::INTERNAL, message.to_string())
    }

    /// The daemon is stopping.
    pub fn stopping() -> Self {
        Self::new(Reason::STOPPING, "the daemon is stopping")
    }

    /// There is no probe of that name.
    pub fn no_probe(name: impl fmt::Display) -> Self {
        let error = Self::of_probe(Reason::NO_SUCH_PROBE, &name, format!("there is no probe `{name}`"));
        let is_kind = ["probe", "probes"].contains(&name.to_string().as_str());
        error.fix(if is_kind { "all are probes: write names alone, or none" } else { "" })
    }

    /// There is an event of that name, and it is not one of this daemon's.
    pub fn exists_foreign(name: impl fmt::Display) -> Self {
        let message = format!("the event `{name}` exists, and kprobed did not define it");
        Self::of_probe(Reason::FOREIGN_EVENT_EXISTS, name, message)
    }

    /// A change of a batch is about a probe that another one is about.
    pub fn twice(name: impl fmt::Display) -> Self {
        let message = format!("another change of this request is about `{name}`");
        Self::of_probe(Reason::CHANGED_TWICE, name, message).field("changes")
    }

    /// One change of a batch that is made all or not at all failed.
    pub fn batch_failed(cause: &str) -> Self {
        let message = format!("not made, since another change of the same request failed: {cause}");
        Self::new(Reason::BATCH_FAILED, message)
    }

    /// Another program has the event enabled, or a trigger or perf holds it.
    pub fn in_use(name: impl fmt::Display) -> Self {
        let message = format!(
            "`{name}` is in use outside of this daemon (enabled in another tracing instance, held by a trigger, or \
             attached by perf)"
        );
        let tracing = "/sys/kernel/tracing";
        let hint = format!(
            "`grep . {tracing}/events/{name}/enable {tracing}/events/{name}/trigger \
             {tracing}/instances/*/events/{name}/enable` shows where it is enabled (1), and its triggers; \
             perf is in no file"
        );
        Self::of_probe(Reason::IN_USE, name, message).fix(&hint)
    }

    /// The kernel has the definition and has not registered the probe.
    pub fn unregistered(name: impl fmt::Display) -> Self {
        let message = format!("the kernel took `{name}` and did not register it");
        Self::of_probe(Reason::NOT_REGISTERED, name, message)
    }

    /// The kernel does not have the probe.
    pub fn not_in_kernel(name: impl fmt::Display, reason: &str, hint: &str) -> Self {
        let message = format!("the kernel does not have `{name}`: {reason}");
        Self::of_probe(Reason::NOT_IN_KERNEL, name, message).fix(hint)
    }

    /// The probe would record something other than what it was made for, or this daemon refuses its place.
    pub fn held_back(name: impl fmt::Display, reason: &str, hint: &str) -> Self {
        let message = format!("`{name}` is held back: {reason}");
        Self::of_probe(Reason::HELD_BACK, name, message).with("fix", hint)
    }

    /// The lease of a probe has ended, and the change would bring it back without another one.
    pub fn lease_ended(name: impl fmt::Display) -> Self {
        Self::new(Reason::LEASE_ENDED, format!("the lease of `{name}` has ended"))
            .fix(&format!("kprobectl update {name} --renew"))
    }

    /// The host has no event of that name.
    pub fn no_event(name: impl fmt::Display) -> Self {
        let message = format!("the host has no event `{name}`");
        Self::new(Reason::NO_SUCH_EVENT, message)
            .with("event", &name)
            .fix("kprobectl functions --events PART")
    }

    /// The text is not a definition, or the kernel would refuse its place.
    pub fn definition(text: &str, found: &[Diagnostic]) -> Self {
        let error = match found.first() {
            Some(first) => {
                let code = match first.code {
                    definition::Code::NoSuchProbe
                    | definition::Code::NoSuchEvent
                    | definition::Code::ForeignProbe => Code::NotFound,
                    definition::Code::EventHasNoSwitch => Code::FailedPrecondition,
                    _ => Code::InvalidArgument,
                };
                Self::new(Reason { name: first.code.name(), code }, &first.message)
                    .refused(first.errno, first.by)
            }
            None => Self::new(Reason::BAD_DEFINITION, "the definition cannot be read"),
        };
        error.field(DEFINITION).diagnostics(text, found.iter().map(diagnostic).collect())
    }

    /// The name of a definition is taken.
    pub fn taken(text: &str, taken: &Taken) -> Self {
        let reason = if taken.ours { Reason::PROBE_EXISTS } else { Reason::FOREIGN_EVENT_EXISTS };
        Self::of_probe(reason, &taken.name, &taken.problem.message)
            .field(DEFINITION)
            .with("rule", taken.problem.code.name())
            .refused(taken.problem.errno, taken.problem.by)
            .diagnostics(text, vec![diagnostic(&taken.problem)])
    }

    /// A filter of a stream cannot be used.
    pub fn filter(filter: &str, found: &FilterError) -> Self {
        Self::new(Reason::BAD_FILTER, found.to_string())
            .field("selection.filter")
            .diagnostics(filter, vec![of_filter(found)])
    }

    /// kprobed refuses a filter that the kernel would take: it would harm the host, or compare something else than is
    /// shown. It is never written to the kernel.
    pub fn refused_filter(field: &'static str, filter: &str, found: &FilterError) -> Self {
        Self::new(Reason::BAD_FILTER, &found.message)
            .field(field)
            .refused(Errno::EINVAL as i32, RefusedBy::Kprobed)
            .diagnostics(filter, vec![of_filter(found)])
    }

    /// The kernel refused a filter. The filter before it is still in force. `found` is the daemon's own finding: the
    /// kernel often writes no message, and never says what to do instead.
    pub fn kernel_filter(
        (field, filter): (&'static str, &str),
        (error, message): &(TracefsError, Option<KernelMessage>),
        found: Option<&FilterError>,
    ) -> Self {
        let refused = |why: &str| {
            let refused = Self::new(Reason::BAD_FILTER, format!("the kernel refused the filter: {why}"));
            refused.field(field).with("errno", &error.errno())
        };
        match (found, message) {
            // The kernel's message is of the same mistake, and without a hint.
            (Some(found), _) => refused(&found.message).diagnostics(filter, vec![of_filter(found)]),
            (None, Some(message)) => {
                let mut judged = of_kernel(message, Reason::BAD_FILTER);
                let newer = FILTERS_SINCE.iter().find(|(part, _)| message.command.contains(part));
                if let Some((part, since)) = newer {
                    judged.hint = format!(
                        "kernels know `{part}` from {since} on; `trace --filter` and `observe --filter` know it on all"
                    );
                }
                refused(&message.text).diagnostics(&message.command, vec![judged])
            }
            (None, None) => refused(&error.to_string()).with("filter", filter),
        }
    }

    /// Labels or a selector that cannot be parsed.
    pub fn labels(field: &'static str, error: &LabelError) -> Self {
        let field = match &error.key {
            // The path to an entry of a map.
            Some(key) => Cow::Owned(format!("{field}[{key:?}]")),
            None => field.into(),
        };
        let message = error.to_string();
        let found = finding(Reason::BAD_LABEL.name, (&message, error.hint), error.span.clone());
        let refused = Self::new(Reason::BAD_LABEL, message).field(field);
        if error.text.is_empty() { refused } else { refused.diagnostics(&error.text, vec![found]) }
    }

    /// A name that does not exist, with a hint: it is all of the text in the field.
    pub fn unknown(
        reason: Reason,
        (field, name): (&'static str, &str),
        message: impl Into<String>,
        hint: &str,
    ) -> Self {
        let error = Self::new(reason, message).field(field);
        let found = finding(reason.name, (&error.message, hint), 0..name.len());
        error.diagnostics(name, vec![found])
    }
}

impl From<CheckError> for Error {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Definition { text, diagnostics } => Self::definition(&text, &diagnostics),
            CheckError::Facts(error) => error.into(),
            none @ CheckError::NoKprobeEvents => Self::new(Reason::NO_KPROBE_EVENTS, none.to_string()),
        }
    }
}

impl From<FactsError> for Error {
    fn from(error: FactsError) -> Self {
        Self::caused(Reason::KERNEL_FACTS_HIDDEN, error)
    }
}

impl From<TracefsError> for Error {
    fn from(error: TracefsError) -> Self {
        let errno = error.errno();
        Self::caused(Reason::TRACEFS, error).with("errno", &errno)
    }
}

impl From<ClaimError> for Error {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Tracefs(error) => error.into(),
            held @ ClaimError::Held { .. } => Self::caused(Reason::INSTANCE_IN_USE, held),
        }
    }
}

impl From<ReadersError> for Error {
    fn from(error: ReadersError) -> Self {
        match error {
            ReadersError::Tracefs(error) => error.into(),
            other => Self::caused(Reason::INTERNAL, other),
        }
    }
}

impl From<LineError> for Error {
    fn from(error: LineError) -> Self {
        let code =
            error.message.as_ref().and_then(|message| definition::Code::from_kernel_text(&message.text));
        let name = code.map_or(Reason::KERNEL_REFUSED.name, definition::Code::name);
        let refused = Self::new(Reason { name, ..Reason::KERNEL_REFUSED }, error.to_string())
            .field(DEFINITION)
            .refused(error.error.errno(), RefusedBy::Kernel);
        let Some(message) = &error.message else { return refused };
        let found = of_kernel(message, Reason::KERNEL_REFUSED);
        let by = v1::RefusedBy::Kernel.into();
        refused.diagnostics(&message.command, vec![v1::Diagnostic { by, ..found }])
    }
}

/// The problem of a filter, with its text.
pub fn of_filter(error: &FilterError) -> v1::Diagnostic {
    finding(error.code.name(), (&error.message, &error.hint), error.span.range())
}

/// What older kernels do not know in a filter, with the first version that does
/// (kernel/trace/trace_events_filter.c:parse_pred).
const FILTERS_SINCE: [(&str, &str); 2] = [(".function", "6.3"), ("CPUS{", "6.6")];

/// The kernel's own message, with our hint.
fn of_kernel(message: &KernelMessage, otherwise: Reason) -> v1::Diagnostic {
    let code = definition::Code::from_kernel_text(&message.text);
    let rest = message.command.get(message.position..).unwrap_or_default();
    let word = rest.find(' ').unwrap_or(rest.len());
    let texts = (message.text.as_str(), code.map_or("", definition::Code::hint));
    let span = message.position..message.position + word;
    finding(code.map_or(otherwise.name, definition::Code::name), texts, span)
}
