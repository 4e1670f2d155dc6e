//! View of a subscriber: which probes and events it wants, in which order and pace.
//!
//! Owns the parameters of a subscription. Never applies them: `selection` and `queue` do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Pace;
use crate::filter::Filter;
use crate::wire::Projection;
use kprobed_lang::model::{Glob, LabelSelector, Labels, ProbeName, ProbeUid};

/// All parameters of a subscription.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Globs of probe names: a probe is wanted if one of them matches; all are if there is no glob.
    pub probes: Vec<Glob>,
    /// Selector that their labels must match.
    pub labels: LabelSelector,
    /// Filter of their events; absent for all. Of a probe that it cannot be bound to, no event is
    /// delivered.
    pub filter: Option<Filter>,
    /// Sampling: one in this many of the events that pass the filter; 0 and 1 for all.
    pub sample_one_in: u64,
    /// Fields of the events that are sent.
    pub projection: Projection,
    /// Order of the events.
    pub order: Order,
    /// Pace of the readers.
    pub pace: Pace,
    /// Limits of the queue.
    pub limits: QueueLimits,
    /// Events a second at most; 0 for any number.
    pub max_events_per_second: u64,
    /// Watermarks are sent at least this often, even if no event is recorded.
    pub heartbeat: Option<Duration>,
    /// What the subscriber may receive at all. Absent: everything.
    pub permits: Option<Permits>,
}

/// Which probes and events of the host a subscriber may receive. It is asked each time that sources are
/// selected, and never for an event.
#[derive(Clone)]
pub struct Permits {
    permission: Arc<Permission>,
    shows_addresses: bool,
}

type Permission = dyn Fn(&ProbeName, ProbeUid) -> bool + Send + Sync;

impl Permits {
    /// Permission for each probe, and for each event of the host, by a function; and whether kernel
    /// addresses are shown in events.
    pub fn new(
        shows_addresses: bool,
        permission: impl Fn(&ProbeName, ProbeUid) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { permission: Arc::new(permission), shows_addresses }
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permits").finish_non_exhaustive()
    }
}

impl View {
    /// Whether it wants every event with all its fields, as the history stores them.
    pub fn is_of_everything(&self) -> bool {
        self.probes.is_empty()
            && self.labels.is_empty()
            && self.filter.is_none()
            && self.sample_one_in <= 1
            && self.max_events_per_second == 0
            && self.projection == Projection::default()
            && self.permits.is_none()
    }

    /// Whether the subscriber may receive the events of this probe at all. The name of a probe that was
    /// deleted can be that of another one now.
    pub fn permits(&self, name: &ProbeName, uid: ProbeUid) -> bool {
        self.permits.as_ref().is_none_or(|permits| (permits.permission)(name, uid))
    }

    /// Whether kernel addresses in its events are replaced.
    pub(super) fn hides_addresses(&self) -> bool {
        self.permits.as_ref().is_some_and(|permits| !permits.shows_addresses)
    }

    /// Whether the globs and the label selector match a probe with this name and these labels.
    pub fn selects(&self, name: &ProbeName, labels: &Labels) -> bool {
        let named = self.probes.is_empty() || self.probes.iter().any(|glob| glob.matches_name(name));
        named && self.labels.matches(labels)
    }
}

/// Order in which events are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Events of each CPU in order; CPUs in the order in which they are read.
    #[default]
    PerCpu,
    /// All events by time, up to watermarks.
    Time,
}

/// Overflow policy of a full queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The queue drops its oldest batches.
    #[default]
    DropOldest,
    /// The queue drops new batches.
    DropNewest,
    /// The subscription ends after the queued items.
    Disconnect,
}

/// Limits of a subscriber's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// The most events in the queue.
    pub events: u64,
    /// The most bytes of messages in the queue.
    pub bytes: u64,
    /// Policy for events beyond these limits.
    pub overflow: Overflow,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { events: 1_000_000, bytes: 64 << 20, overflow: Overflow::default() }
    }
}
