//! Filters and switches of attached events: trace events that the daemon records and did not
//! define.
//!
//! Writes only to the daemon's own instance. The switch and the filter of the same event at the top
//! level may be in use by others, so a filter is tried here and not with
//! [`super::Tracefs::try_filter`].

use super::instance::from_filter_file;
use super::{Instance, KernelMessage, TracefsError};
use kprobed_lang::model::ProbeName;

/// A filter that every event takes: all have the field
/// (kernel/trace/trace_events.c:trace_define_common_fields).
pub(super) const ANY_FILTER: &str = "common_pid == 0";

impl Instance {
    /// Whether an event can be switched on. The entries of `ftrace/` describe what tracers write,
    /// and have no switch.
    pub fn has_switch(&self, name: &ProbeName) -> bool {
        self.files.exists(&self.event(name).join("enable"))
    }

    /// Sets the filter of an event that is switched off; empty removes it. A refusal leaves none in
    /// force.
    ///
    /// # Errors
    /// The kernel's errno and, if it has one, its message. Each instance has an `error_log` of its
    /// own (since 5.2, kernel/trace/trace.c:init_tracer_tracefs).
    pub fn set_first_filter(
        &self,
        name: &ProbeName,
        filter: &str,
    ) -> Result<(), (TracefsError, Option<KernelMessage>)> {
        let before = self.last_own_message();
        self.set_filter(name, filter).map_err(|error| {
            let message = self.last_own_message().filter(|message| Some(message) != before.as_ref());
            // Kernels that do not log filter errors still leave the text and a caret in the file.
            let message = message.or_else(|| {
                let text = self.files.read(&self.event(name).join("filter")).ok()?;
                from_filter_file(&text)
            });
            // A refused text stays in the file.
            if let Err(error) = self.set_filter(name, "") {
                tracing::warn!(%error, "cannot clear a refused filter");
            }
            (error, message)
        })
    }

    fn last_own_message(&self) -> Option<KernelMessage> {
        let log = self.files.read(&self.root().join("error_log")).ok()?;
        KernelMessage::parse_log(&log).pop()
    }
}
