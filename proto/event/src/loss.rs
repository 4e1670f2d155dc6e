//! Losses: gaps in an event stream, and their causes.
//!
//! Owns the causes, for the daemon and the client library, and the only conversion between them and
//! messages of the API. Never detects a loss.

use std::time::Duration;

use crate::api;
use crate::row::wall_ns;

/// Events that will never arrive. It precedes the first event after the gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The cause.
    pub cause: LossCause,
    /// The CPU whose events are missing. `None`: any.
    pub cpu: Option<u32>,
    /// How many are missing. `None`: an unknown number; the ledger has the sum. 0: an earlier gap
    /// of the CPU has counted them.
    pub count: Option<u64>,
    /// Trace-clock time of the first event after the gap, in nanoseconds. `None`: there is none
    /// yet.
    pub before_ns: Option<u64>,
    /// The same as wall-clock time, in nanoseconds since 1970.
    pub before_wall_ns: Option<u64>,
    /// Number of gaps in this report; at least 1.
    pub gaps: u64,
    /// Reason and length of the pause, if the cause is [`LossCause::Paused`].
    pub pause: Option<RecordingPause>,
}

/// A pause in which the daemon recorded nothing. Of several gaps: their sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingPause {
    /// The reason.
    pub reason: PauseReason,
    /// How long it lasted.
    pub duration: Duration,
    /// Hits of all probes during the pause, including those that filters would have rejected.
    /// `None`: the kernel did not count them.
    pub hits: Option<u64>,
}

/// What the daemon paused recording for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PauseReason {
    /// To take a baseline when the daemon started: one time at which the ledgers of probes begin
    /// that are hit all the time.
    Baseline,
    /// To delete a probe.
    Deletion,
    /// To enlarge the ring buffers.
    Resize,
    /// A reason that this version does not know.
    Other,
}

impl PauseReason {
    /// Name for programs, such as `baseline`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Deletion => "deletion",
            Self::Resize => "resize",
            Self::Other => "other",
        }
    }
}

impl From<PauseReason> for api::PauseReason {
    fn from(reason: PauseReason) -> Self {
        match reason {
            PauseReason::Baseline => Self::Baseline,
            PauseReason::Deletion => Self::Deletion,
            PauseReason::Resize => Self::Resize,
            PauseReason::Other => Self::Unspecified,
        }
    }
}

impl From<api::PauseReason> for PauseReason {
    fn from(reason: api::PauseReason) -> Self {
        match reason {
            api::PauseReason::Baseline => Self::Baseline,
            api::PauseReason::Deletion => Self::Deletion,
            api::PauseReason::Resize => Self::Resize,
            api::PauseReason::Unspecified => Self::Other,
        }
    }
}

/// Why events are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LossCause {
    /// The kernel's ring buffer was full and overwrote events that the daemon had not read.
    Overrun,
    /// This client did not read fast enough, and its queue in the daemon was full.
    SubscriberQueue,
    /// The daemon could not decode bytes from the kernel.
    Undecodable,
    /// The events exceeded this subscriber's own rate limit.
    RateLimit,
    /// The requested events are no longer in the history, or never were.
    Expired,
    /// The daemon could not store the events in the history.
    NotStored,
    /// The daemon paused recording.
    Paused,
    /// Another program emptied the daemon's ring buffers.
    Reset,
    /// The kernel gave events up because too many writers were nested in its ring buffer.
    CommitOverrun,
    /// The kernel refused events because its ring buffer was full and overwriting was switched off.
    DroppedEvents,
    /// A cause that this version does not know.
    Other,
}

impl LossCause {
    /// Name for programs, such as `overrun`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Overrun => "overrun",
            Self::SubscriberQueue => "subscriber_queue",
            Self::Undecodable => "undecodable",
            Self::RateLimit => "rate_limit",
            Self::Expired => "expired",
            Self::NotStored => "not_stored",
            Self::Paused => "paused",
            Self::Reset => "reset",
            Self::CommitOverrun => "commit_overrun",
            Self::DroppedEvents => "dropped_events",
            Self::Other => "other",
        }
    }
}

impl From<LossCause> for api::LossCause {
    fn from(cause: LossCause) -> Self {
        match cause {
            LossCause::Overrun => Self::Overrun,
            LossCause::SubscriberQueue => Self::SubscriberQueue,
            LossCause::Undecodable => Self::Undecodable,
            LossCause::RateLimit => Self::RateLimit,
            LossCause::Expired => Self::Expired,
            LossCause::NotStored => Self::NotStored,
            LossCause::Paused => Self::Paused,
            LossCause::Reset => Self::Reset,
            LossCause::CommitOverrun => Self::CommitOverrun,
            LossCause::DroppedEvents => Self::DroppedEvents,
            LossCause::Other => Self::Unspecified,
        }
    }
}

impl From<api::LossCause> for LossCause {
    fn from(cause: api::LossCause) -> Self {
        match cause {
            api::LossCause::Overrun => Self::Overrun,
            api::LossCause::SubscriberQueue => Self::SubscriberQueue,
            api::LossCause::Undecodable => Self::Undecodable,
            api::LossCause::RateLimit => Self::RateLimit,
            api::LossCause::Expired => Self::Expired,
            api::LossCause::NotStored => Self::NotStored,
            api::LossCause::Paused => Self::Paused,
            api::LossCause::Reset => Self::Reset,
            api::LossCause::CommitOverrun => Self::CommitOverrun,
            api::LossCause::DroppedEvents => Self::DroppedEvents,
            api::LossCause::Unspecified => Self::Other,
        }
    }
}

impl From<&api::RecordingPause> for RecordingPause {
    fn from(pause: &api::RecordingPause) -> Self {
        let duration = Duration::from_nanos(pause.duration_ns);
        Self { reason: pause.reason().into(), duration, hits: pause.hits }
    }
}

impl From<RecordingPause> for api::RecordingPause {
    fn from(pause: RecordingPause) -> Self {
        let RecordingPause { reason, duration, hits } = pause;
        let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self { reason: api::PauseReason::from(reason).into(), duration_ns, hits }
    }
}

impl Loss {
    /// Reads the loss message of the API. `wall_offset_ns` is wall clock minus trace clock.
    pub fn new(loss: &api::Loss, wall_offset_ns: i64) -> Self {
        let before_ns = (loss.before_ns != 0).then_some(loss.before_ns);
        Self {
            cause: loss.cause().into(),
            cpu: loss.cpu,
            count: loss.count,
            before_ns,
            before_wall_ns: before_ns.map(|before_ns| wall_ns(before_ns, wall_offset_ns)),
            gaps: loss.gaps.max(1),
            pause: loss.pause.as_ref().map(RecordingPause::from),
        }
    }
}
