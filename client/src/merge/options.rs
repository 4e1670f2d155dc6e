//! Options of a merge.

use std::num::NonZeroUsize;
use std::time::Duration;

/// Options of a merge.
#[derive(Clone, Copy, Debug)]
pub struct MergeOptions {
    /// How long the others wait for a silent host.
    pub max_wait: Duration,
    /// Events of all hosts together that are read ahead: a host whose part is used up is not read
    /// until some of its events have gone, unless the others wait for it. Its part is never less
    /// than 1000.
    pub read_ahead_events: usize,
    /// How many connections are made at the same time. Open ones stay: one for each host.
    pub parallel: NonZeroUsize,
    /// Whether hosts that are lost are tried again.
    pub reconnect: bool,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self {
            max_wait: Duration::from_secs(10),
            read_ahead_events: 1_000_000,
            parallel: NonZeroUsize::MIN.saturating_add(63),
            reconnect: true,
        }
    }
}
