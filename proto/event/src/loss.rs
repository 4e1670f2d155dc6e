//! Losses: gaps in an event stream, and their causes.
//!
//! Owns the names of the causes for programs, and the only conversion between losses and messages of the API.
//! Never detects a loss.

use std::time::Duration;

use crate::api::{self, LossCause, PauseReason};
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

/// Name of a cause for programs, such as `rate_limit`; `other` for one that this version does not know.
pub fn cause_name(cause: LossCause) -> String {
    name(cause.as_str_name(), "LOSS_CAUSE_")
}

/// Name of a reason for programs, such as `baseline`; `other` for one that this version does not know.
pub fn reason_name(reason: PauseReason) -> String {
    name(reason.as_str_name(), "PAUSE_REASON_")
}

fn name(name: &str, prefix: &str) -> String {
    match name.trim_start_matches(prefix) {
        "UNSPECIFIED" => "other".to_owned(),
        name => name.to_lowercase(),
    }
}

impl From<&api::RecordingPause> for RecordingPause {
    fn from(pause: &api::RecordingPause) -> Self {
        let duration = Duration::from_nanos(pause.duration_ns);
        Self { reason: pause.reason(), duration, hits: pause.hits }
    }
}

impl From<RecordingPause> for api::RecordingPause {
    fn from(pause: RecordingPause) -> Self {
        let RecordingPause { reason, duration, hits } = pause;
        let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self { reason: reason.into(), duration_ns, hits }
    }
}

impl Loss {
    /// Reads the loss message of the API. `wall_offset_ns` is wall clock minus trace clock.
    pub fn new(loss: &api::Loss, wall_offset_ns: i64) -> Self {
        let before_ns = (loss.before_ns != 0).then_some(loss.before_ns);
        Self {
            cause: loss.cause(),
            cpu: loss.cpu,
            count: loss.count,
            before_ns,
            before_wall_ns: before_ns.map(|before_ns| wall_ns(before_ns, wall_offset_ns)),
            gaps: loss.gaps.max(1),
            pause: loss.pause.as_ref().map(RecordingPause::from),
        }
    }
}
