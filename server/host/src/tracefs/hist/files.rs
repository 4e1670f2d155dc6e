//! The `trigger` and `hist` files of an event in a tracing instance: adding, removing and reading
//! hist triggers.

use std::sync::Arc;

use super::{HistError, HistTable, HistTrigger};
use crate::tracefs::{Instance, LineError, Tracefs, TracefsError};
use kprobed_lang::model::ProbeName;

impl Instance {
    /// Adds a trigger to an event of this instance. From then on the event is armed, whether it is
    /// enabled or not, and cannot be deleted.
    ///
    /// # Errors
    /// [`LineError`] with the kernel's own message if it has one.
    pub fn add_hist(&self, event: &ProbeName, trigger: &HistTrigger) -> Result<(), LineError> {
        // Each instance has an `error_log` of its own.
        let own = Tracefs::over(Arc::clone(&self.files), self.root(), "");
        // Opening it in any other way than to append removes every hist trigger
        // (kernel/trace/trace_events_trigger.c: event_trigger_regex_open).
        own.append_line(&self.event(event).join("trigger"), &trigger.to_string())
    }

    /// Removes a trigger.
    ///
    /// # Errors
    /// [`TracefsError`]; EBUSY while another trigger refers to its variable.
    pub fn remove_hist(&self, event: &ProbeName, trigger: &HistTrigger) -> Result<(), TracefsError> {
        self.remove_trigger(event, &trigger.to_string())
    }

    /// Removes a trigger by its text.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn remove_trigger(&self, event: &ProbeName, text: &str) -> Result<(), TracefsError> {
        self.files.append(&self.event(event).join("trigger"), &format!("!{text}"))
    }

    /// The triggers of an event, in the form in which they can be removed.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn triggers(&self, event: &ProbeName) -> Result<Vec<String>, TracefsError> {
        let text = self.files.read(&self.event(event).join("trigger"))?;
        // Without triggers the file says which ones there could be, in lines that begin with `#`.
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Ok(lines.map(|line| line.trim_end_matches(" [active]").to_owned()).collect())
    }

    /// The table of a trigger. Must not run while triggers of that event are added or removed.
    ///
    /// # Errors
    /// [`TracefsError`]; the inner error when the file cannot be understood.
    pub fn hist(
        &self,
        event: &ProbeName,
        trigger: &HistTrigger,
    ) -> Result<Result<HistTable, HistError>, TracefsError> {
        let triggers = self.triggers(event)?.len();
        let file = self.files.read_bytes(&self.event(event).join("hist"))?;
        Ok(HistTable::parse(&file, trigger, triggers))
    }
}
