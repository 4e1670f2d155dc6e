//! Waiting until no CPU is still writing an event that was disabled.
//!
//! Disabling an event does not wait for handlers that run. Kernels up to 6.12 wait when the filter
//! of an event is removed, for handlers of system calls too
//! (kernel/trace/trace_events_filter.c:apply_event_filter, tracepoint_synchronize_unregister).
//! Newer ones free the filter later, without waiting (6.18: 17 us). So the daemon does both: it
//! removes a filter, and asks for a grace period.

use rustix::thread::{MembarrierCommand, membarrier};

use super::{Instance, TracefsError};
use kprobed_lang::model::ProbeName;

/// A filter that every event takes: all have the field
/// (kernel/trace/trace_events.c:trace_define_common_fields).
pub(super) const ANY_FILTER: &str = "common_pid == 0";

/// A filter that every event passes.
const ALL_FILTER: &str = "common_pid >= 0";

impl Instance {
    /// Clears the filter of an event that was switched off, and waits until no CPU is still writing
    /// one.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn clear_filter_and_settle(&self, name: &ProbeName) -> Result<(), TracefsError> {
        self.set_filter(name, ANY_FILTER)?;
        self.set_filter(name, "")?;
        grace_period();
        Ok(())
    }

    /// Waits as [`Instance::clear_filter_and_settle`] does, but by writing the filter of an event
    /// that records: the filter stays the same.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn settle_by(&self, name: &ProbeName, filter: &str) -> Result<(), TracefsError> {
        if filter.is_empty() {
            self.set_filter(name, ALL_FILTER)?;
        }
        self.set_filter(name, filter)?;
        grace_period();
        Ok(())
    }
}

/// Waits until every handler that runs has ended: they cannot be preempted while they record, so
/// that this is a grace period of RCU (kernel/sched/membarrier.c: `MEMBARRIER_CMD_GLOBAL`, since
/// 4.3). With one CPU it takes no time: none can run while it is requested.
pub fn grace_period() {
    if let Err(error) = membarrier(MembarrierCommand::Global) {
        // With CPUs that have no tick (`nohz_full`). On kernels up to 6.12 the filter is enough.
        tracing::debug!(%error, "cannot wait for a grace period");
    }
}
