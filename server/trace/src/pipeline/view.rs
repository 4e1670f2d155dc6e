//! What a subscriber wants to see, and how.

use std::time::Duration;

use super::{Form, Pace};
use crate::filter::Filter;
use crate::wire::Projection;
use kprobed_lang::model::{Glob, LabelSelector, Labels, ProbeName};

/// Everything that a subscriber can say about its stream.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Which probes: those that one of these matches; all when there are none.
    pub probes: Vec<Glob>,
    /// What is required of their labels.
    pub labels: LabelSelector,
    /// Which of their events; absent for all. A probe that it cannot be used for gives none.
    pub filter: Option<Filter>,
    /// One in so many of the events that passed everything else; 0 and 1 for all.
    pub sample_one_in: u64,
    /// Which fields of them.
    pub projection: Projection,
    /// In which form.
    pub form: Form,
    /// Order.
    pub order: Order,
    /// Pace.
    pub pace: Pace,
    /// Queue.
    pub limits: QueueLimits,
    /// Events a second at most; 0 for any number.
    pub max_events_per_second: u64,
    /// Watermarks come at least this often, even if nothing happens.
    pub heartbeat: Option<Duration>,
}

impl View {
    /// Whether it wants every event with all its fields, as they are stored.
    pub fn is_of_everything(&self) -> bool {
        self.probes.is_empty()
            && self.labels.is_empty()
            && self.filter.is_none()
            && self.sample_one_in <= 1
            && self.max_events_per_second == 0
            && self.projection == Projection::default()
            && self.form == Form::Message
    }

    /// Whether events of a probe with this name and these labels are wanted, as far as these two
    /// say.
    pub fn selects(&self, name: &ProbeName, labels: &Labels) -> bool {
        let named = self.probes.is_empty() || self.probes.iter().any(|glob| glob.matches_name(name));
        named && self.labels.matches(labels)
    }
}

/// In which order events come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Of each CPU in order; CPUs as they are read.
    #[default]
    PerCpu,
    /// All by time, up to watermarks.
    Time,
}

/// What becomes of events for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The oldest batches go.
    #[default]
    DropOldest,
    /// New batches are not taken.
    DropNewest,
    /// The subscription ends after what is in the queue.
    Disconnect,
}

/// How much may wait for a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Events.
    pub events: u64,
    /// Bytes of messages.
    pub bytes: u64,
    /// What happens beyond.
    pub overflow: Overflow,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { events: 1_000_000, bytes: 64 << 20, overflow: Overflow::default() }
    }
}
