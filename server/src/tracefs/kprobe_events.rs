//! The `kprobe_events` file: defining and listing probes. Deleting them is in [`super::own`].

use thiserror::Error;

use super::{KernelMessage, Tracefs, TracefsError, control_file};
use crate::model::ProbeName;

/// One line of `kprobe_events`, whoever wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedProbe {
    /// Its event. Absent when the name has a form that the kernel took and we would not.
    pub name: Option<ProbeName>,
    /// The event part as printed.
    pub event: String,
    /// The whole line. It is not what was written: a return probe gets its MAXACTIVE, an address is hashed, `$arg*` is expanded.
    pub line: String,
}

/// Why the kernel refused a definition.
#[derive(Debug, Error)]
#[error("the kernel refused `{line}`: {}", message.as_ref().map_or_else(|| error.source.to_string(), |m| m.text.clone()))]
pub struct DefineError {
    /// What was written.
    pub line: String,
    /// The kernel's answer to the write.
    pub error: TracefsError,
    /// What it wrote to its `error_log`, if anything.
    pub message: Option<KernelMessage>,
}

impl ListedProbe {
    /// Group and event as they are printed, whatever their form.
    pub fn group_and_event(&self) -> Option<(&str, &str)> {
        let (head, _) = self.line.split_once(' ')?;
        head.split_once(':')?.1.split_once('/')
    }

    /// Parses a listing. Lines of another form are left out.
    pub fn parse_list(text: &str) -> Vec<Self> {
        text.lines().filter_map(parse_line).collect()
    }
}

/// `p:GROUP/EVENT PLACE ...` or `rN:GROUP/EVENT PLACE ...`.
fn parse_line(line: &str) -> Option<ListedProbe> {
    let (head, _) = line.split_once(' ')?;
    let (_, full_name) = head.split_once(':')?;
    let (group, event) = full_name.split_once('/')?;
    Some(ListedProbe {
        name: ProbeName::new(group, event).ok(),
        event: event.to_owned(),
        line: line.to_owned(),
    })
}

impl Tracefs {
    pub(super) fn kprobe_events(&self) -> std::path::PathBuf {
        self.root().join("kprobe_events")
    }

    /// All kprobe events of the host, in the order of their definition. None where the kernel cannot have any.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn list_kprobes(&self) -> Result<Vec<ListedProbe>, TracefsError> {
        if !self.has_kprobe_events() {
            return Ok(Vec::new());
        }
        Ok(ListedProbe::parse_list(&control_file::read(&self.kprobe_events())?))
    }

    /// Appends one definition. A successful write is no proof that the kernel registered the probe: see
    /// [`Tracefs::registered`].
    ///
    /// # Errors
    /// [`DefineError`] with the kernel's own words where it has any.
    pub fn define_kprobe(&self, line: &str) -> Result<(), DefineError> {
        let before = self.last_message().unwrap_or_default();
        control_file::append(&self.kprobe_events(), line).map_err(|error| {
            let message = self
                .last_message()
                .unwrap_or_default()
                .filter(|message| Some(message) != before.as_ref() && message.subsystem == "trace_kprobe");
            DefineError { line: line.to_owned(), error, message }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_read() {
        let listed = ListedProbe::parse_list(
            "p:kprobes/a vfs_read arg1=%di\nr10:my-group/b vfs_write\np:kprobes/c 0x00000000deadbeef\n",
        );
        assert_eq!(listed.len(), 3);
        assert_eq!(listed[1].name, Some(ProbeName::new("my-group", "b").unwrap()));
        assert_eq!(listed[2].line, "p:kprobes/c 0x00000000deadbeef");
    }
}
