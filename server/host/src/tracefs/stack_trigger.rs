//! The trigger with which the kernel records its call stack behind each record of an event, in one instance.
//!
//! Owns that it is there whenever the event is on. The kernel sets no filter and no list of threads before a trigger,
//! so that its condition has all of them. A trigger keeps its event armed, whether it is on or off, and from being
//! deleted; it goes with the instance.

use super::{Instance, TracefsError};
use kprobed_lang::model::ProbeName;

const TRIGGER: &str = "stacktrace";

impl Instance {
    /// Switches an event on, with the call stack of each record that meets `condition`. Stacks are recorded first: the
    /// first event has its own.
    ///
    /// # Errors
    /// [`TracefsError`]. Then it is off, and no stacks are recorded.
    pub fn enable_with_stacks(&self, name: &ProbeName, condition: &str) -> Result<(), TracefsError> {
        self.remove_stacks(name)?;
        // Opening it in any other way than to append removes triggers of another kind.
        let trigger = format!("{TRIGGER} if {condition}");
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
        Ok(self.triggers(name)?.iter().any(|trigger| trigger.starts_with(TRIGGER)))
    }

    fn remove_stacks(&self, name: &ProbeName) -> Result<(), TracefsError> {
        // An event has one trigger of this kind at most.
        if self.has_stacks(name)? { self.remove_trigger(name, TRIGGER) } else { Ok(()) }
    }
}
