//! The `trigger` and `hist` files of an event in a tracing instance, and the synthetic events that hist triggers make
//! of variables (kernel/trace/trace_events_synth.c).
//!
//! Owns that the trigger with which the kernel records its call stack behind each record of an event is there whenever
//! the event is on. The kernel sets no filter and no list of threads before a trigger, so that its condition has all of
//! them. A trigger keeps its event armed, whether it is on or off, and from being deleted; it goes with the instance.

use std::sync::Arc;

use super::hist::{HistError, HistTable, HistTrigger};
use super::{Instance, LineError, Tracefs, TracefsError};
use kprobed_lang::model::ProbeName;

/// The trigger for call stacks.
const STACK_TRIGGER: &str = "stacktrace";

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

    /// Removes a trigger by its text.
    ///
    /// # Errors
    /// [`TracefsError`]; EBUSY while another trigger refers to its variable.
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

    /// Switches an event on, with the call stack of each record that meets `condition`. Stacks are recorded first: the
    /// first event has its own.
    ///
    /// # Errors
    /// [`TracefsError`]. Then it is off, and no stacks are recorded.
    pub fn enable_with_stacks(&self, name: &ProbeName, condition: &str) -> Result<(), TracefsError> {
        self.remove_stacks(name)?;
        // Opening it in any other way than to append removes triggers of another kind.
        let trigger = format!("{STACK_TRIGGER} if {condition}");
        self.files.append(&self.event(name).join("trigger"), &trigger)?;
        self.set_enabled(name, true).or_else(|error| self.remove_stacks(name).and(Err(error)))
    }

    /// Switches an event off, and then its call stacks: the last event has its own.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn disable_with_stacks(&self, name: &ProbeName) -> Result<(), TracefsError> {
        self.set_enabled(name, false)?;
        self.remove_stacks(name)
    }

    /// Whether call stacks are recorded with an event, or would be if it were on.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn has_stacks(&self, name: &ProbeName) -> Result<bool, TracefsError> {
        Ok(self.triggers(name)?.iter().any(|trigger| trigger.starts_with(STACK_TRIGGER)))
    }

    fn remove_stacks(&self, name: &ProbeName) -> Result<(), TracefsError> {
        // An event has one trigger of this kind at most.
        if self.has_stacks(name)? { self.remove_trigger(name, STACK_TRIGGER) } else { Ok(()) }
    }
}

impl Tracefs {
    fn synthetic_events(&self) -> std::path::PathBuf {
        self.root().join("synthetic_events")
    }

    /// All synthetic events of the host as `NAME FIELDS`, with single blanks between the words.
    ///
    /// # Errors
    /// [`TracefsError`]; ENOENT on a kernel without them.
    pub fn list_synthetic(&self) -> Result<Vec<String>, TracefsError> {
        let words = |line: &str| line.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        Ok(self.files.read(&self.synthetic_events())?.lines().map(words).collect())
    }

    /// Makes a synthetic event; fields are `TYPE NAME; TYPE NAME`.
    ///
    /// # Errors
    /// [`TracefsError`]; EINVAL also when it exists.
    pub fn define_synthetic(&self, name: &str, fields: &str) -> Result<(), TracefsError> {
        self.files.append(&self.synthetic_events(), &format!("{name} {fields}"))
    }

    /// Removes a synthetic event.
    ///
    /// # Errors
    /// [`TracefsError`]; EBUSY while a trigger uses it.
    pub fn remove_synthetic(&self, name: &str) -> Result<(), TracefsError> {
        self.files.append(&self.synthetic_events(), &format!("!{name}"))
    }
}
