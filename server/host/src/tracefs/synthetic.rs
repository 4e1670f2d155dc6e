//! Synthetic events, which hist triggers make of variables (kernel/trace/trace_events_synth.c):
//! listing, defining and removing them.

use super::{Tracefs, TracefsError};

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
