//! Which of the events that arrive are shown.

use kprobed_client::event::Row;

use super::condition::Condition;
use crate::command::glob;

/// What an event must be: of each kind that is given, one of those (tids, comms, CPUs), and all conditions.
pub(super) struct Selection {
    pub(super) tids: Vec<i32>,
    pub(super) comms: Vec<String>,
    pub(super) cpus: Vec<u32>,
    pub(super) conditions: Vec<Condition>,
}

impl Selection {
    /// Whether an event is shown.
    pub(super) fn selects(&self, row: &Row<'_>) -> bool {
        (self.cpus.is_empty() || self.cpus.contains(&row.cpu()))
            && (self.tids.is_empty() || self.tids.contains(&row.tid()))
            && (self.comms.is_empty() || self.selects_comm(row))
            && self.conditions.iter().all(|condition| condition.holds(row))
    }

    fn selects_comm(&self, row: &Row<'_>) -> bool {
        row.comm()
            .is_some_and(|comm| self.comms.iter().any(|pattern| glob::matches(pattern.as_bytes(), comm)))
    }
}
