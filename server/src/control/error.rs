//! Errors of the control thread: why a request was not carried out.
//!
//! Owns their texts. Never chooses a gRPC code, details or hints: [`crate::rpc::status`] does.

use std::sync::Arc;

use thiserror::Error;

use super::Obstacle;
use crate::auth::{Denied, LimitReached};
use crate::store::StoreError;
use kprobed_host::kernel::FactsError;
use kprobed_host::tracefs::{ClaimError, DefineError, KernelMessage, TracefsError};
use kprobed_lang::definition::Diagnostic;
use kprobed_lang::model::{LabelError, ProbeName};
use kprobed_trace::filter::FilterError;
use kprobed_verdict::checker::{CheckError, Taken};
use kprobed_verdict::validate::Refusal;

/// Why a request was not carried out. Every variant is mapped to a gRPC status in one place:
/// [`crate::rpc::status`].
#[derive(Debug, Error)]
pub enum ControlError {
    /// No role of the caller allows the request.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// It goes beyond a limit of the caller's roles.
    #[error(transparent)]
    Limit(Box<LimitReached>),
    /// The text is not a definition.
    #[error("{}", diagnostics.first().map_or("the definition cannot be read", |first| first.message.as_str()))]
    Definition {
        /// The text.
        text: String,
        /// What is wrong with it; never empty.
        diagnostics: Vec<Diagnostic>,
    },
    /// The kernel would refuse the place.
    #[error("{}", refusal.message)]
    Refused {
        /// The text.
        text: String,
        /// Why.
        refusal: Box<Refusal>,
        /// Further problems of the text.
        further: Vec<Diagnostic>,
    },
    /// The kernel refused the definition.
    #[error(transparent)]
    Kernel(Box<DefineError>),
    /// The kernel refused the filter. The filter before it is still in force.
    #[error("the kernel refused the filter: {}", match (found, message) {
        (Some(found), _) => found.message.clone(),
        (None, Some(message)) => message.text.clone(),
        (None, None) => error.to_string(),
    })]
    Filter {
        /// The filter.
        filter: String,
        /// The kernel's answer to the write.
        error: TracefsError,
        /// What it wrote to its log, if anything.
        message: Option<KernelMessage>,
        /// The daemon's own finding: the kernel often writes no message, and never says what to do
        /// instead.
        found: Option<Box<FilterError>>,
    },
    /// The filter would harm the host. It is never written to the kernel.
    #[error("{}", found.message)]
    HarmfulFilter {
        /// The filter.
        filter: String,
        /// What the kernel would do, and what to write instead.
        found: Box<FilterError>,
    },
    /// The name of the definition is taken.
    #[error("{}", taken.problem.message)]
    Taken {
        /// The text.
        text: String,
        /// Who has the name, and what the kernel would say.
        taken: Box<Taken>,
    },
    /// There is an event of that name, and it is not one of this daemon's.
    #[error("the event `{name}` exists, and kprobed did not define it")]
    ExistsForeign {
        /// The name.
        name: ProbeName,
    },
    /// No probe of that name.
    #[error("there is no probe `{name}`")]
    NotFound {
        /// The name as asked for.
        name: String,
        /// Whether the host has an event of that name that is not a probe of this daemon.
        foreign: bool,
    },
    /// Several probes of that event name.
    #[error("several probes have an event `{event}`: {}", list(names))]
    Ambiguous {
        /// The event.
        event: String,
        /// The probes.
        names: Vec<ProbeName>,
    },
    /// The probe was changed since its etag was read.
    #[error("`{name}` has changed: its etag is `{current}` now")]
    Changed {
        /// The probe.
        name: ProbeName,
        /// Its etag.
        current: String,
    },
    /// Another program has the event enabled, or a trigger or perf holds it.
    #[error(
        "`{name}` is in use outside of this daemon (enabled in another tracing instance, held by a trigger, or attached by perf)"
    )]
    InUse {
        /// The probe.
        name: ProbeName,
    },
    /// The kernel has the definition and has not registered the probe.
    #[error("the kernel took `{name}` and did not register it")]
    Unregistered {
        /// The probe.
        name: ProbeName,
    },
    /// A probe at a function's entry would never fire.
    #[error("probes at function entries do not fire while `kernel.ftrace_enabled` is 0")]
    FtraceDisabled,
    /// Kprobes are switched off on the whole host.
    #[error("no probe fires while kprobes are switched off (`/sys/kernel/debug/kprobes/enabled` is 0)")]
    KprobesDisabled,
    /// The kernel does not have the probe.
    #[error("the kernel does not have `{name}`: {reason}")]
    NotInKernel {
        /// The probe.
        name: ProbeName,
        /// Why.
        reason: String,
        /// What to do; may be empty.
        hint: String,
    },
    /// The probe would record something other than what it was made for, or this daemon refuses its
    /// place.
    #[error("`{name}` is held back: {reason}")]
    HeldBack {
        /// The probe.
        name: ProbeName,
        /// Why.
        reason: String,
        /// What to do.
        hint: String,
    },
    /// There is nothing to accept.
    #[error("`{name}` is not held back: it records what it was made for")]
    NotHeldBack {
        /// The probe.
        name: ProbeName,
    },
    /// The kernel was built without kprobe events.
    #[error(
        "this kernel has no kprobe events (CONFIG_KPROBE_EVENTS): it can have no probes, but its own events can be attached"
    )]
    NoKprobeEvents,
    /// The host has no event of that name.
    #[error("the host has no event `{name}`: `available_events` in tracefs lists all that it has")]
    NoSuchEvent {
        /// The event.
        name: ProbeName,
    },
    /// The event has no switch.
    #[error("`{name}` cannot be recorded by itself: it describes what a tracer writes")]
    NoSwitch {
        /// The event.
        name: ProbeName,
    },
    /// The event is one of this daemon's probes.
    #[error("`{name}` is a probe of this daemon: its events are streamed without being attached")]
    OwnProbe {
        /// The event.
        name: ProbeName,
    },
    /// The event cannot become a probe.
    #[error("`{name}` cannot be adopted: {}", obstacle.message)]
    NotAdoptable {
        /// The event.
        name: ProbeName,
        /// Why.
        obstacle: Obstacle,
    },
    /// The event is attached and recorded.
    #[error("`{name}` is attached already: detach it first to give it another filter")]
    Attached {
        /// The event.
        name: ProbeName,
    },
    /// The event is not attached.
    #[error("no event `{name}` is attached")]
    NotAttached {
        /// The event.
        name: ProbeName,
    },
    /// An argument of the request is malformed or out of range.
    #[error("{message}")]
    BadArgument {
        /// The field.
        field: &'static str,
        /// What is wrong.
        message: String,
    },
    /// Labels that a probe cannot have.
    #[error("{error}")]
    Labels {
        /// The field.
        field: &'static str,
        /// What is wrong.
        error: LabelError,
    },
    /// The kernel describes an event in a way that is not understood.
    #[error("the kernel describes `{name}` in a way that is not understood: {reason}")]
    Format {
        /// The probe.
        name: ProbeName,
        /// Why.
        reason: String,
    },
    /// Aggregations.
    #[error(transparent)]
    Aggregation(#[from] super::AggregationError),
    /// Facts of the kernel are not known.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// Tracefs.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// A tracing instance of ours belongs to another daemon.
    #[error(transparent)]
    Claim(ClaimError),
    /// Database. Several changes can fail by the same error.
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// A file declares the probe.
    #[error("the file `{file}` declares `{name}`")]
    Declared {
        /// The probe.
        name: ProbeName,
        /// The file, by its name below the directory of declarations.
        file: String,
    },
    /// A change of a batch is about a probe that another one is about.
    #[error("another change of this request is about `{name}`")]
    Twice {
        /// The probe.
        name: ProbeName,
    },
    /// The lease of a probe has ended, and the change would bring it back without another one.
    #[error("the lease of `{name}` has ended")]
    LeaseEnded {
        /// The probe.
        name: ProbeName,
    },
    /// A probe is to be held by a hold that does not exist.
    #[error("there is no such hold: it has ended, or the daemon never gave out this key")]
    NoHold,
    /// The kernel cannot make a timer for the end of leases.
    #[error("cannot make a timer: {0}")]
    Alarm(#[source] std::io::Error),
    /// One change of a batch that is made all or not at all failed.
    #[error("not made, since another change of the same request failed: {cause}")]
    BatchFailed {
        /// Why that change failed.
        cause: String,
    },
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
}

impl From<CheckError> for ControlError {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Definition { text, diagnostics } => Self::Definition { text, diagnostics },
            CheckError::Facts(error) => Self::Facts(error),
            CheckError::NoKprobeEvents => Self::NoKprobeEvents,
        }
    }
}

impl From<StoreError> for ControlError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl From<ClaimError> for ControlError {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Tracefs(error) => Self::Tracefs(error),
            held @ ClaimError::Held { .. } => Self::Claim(held),
        }
    }
}

fn list(names: &[ProbeName]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
