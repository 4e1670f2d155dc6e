//! The `kprobe_events` file: defining and listing kprobe events.
//!
//! Never deletes: that is in [`super::own_events`].

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{KernelMessage, Tracefs, TracefsError};
use kprobed_lang::model::ProbeName;

/// One line of `kprobe_events`, of any program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedProbe {
    /// Its event. Absent if the kernel accepts the name and kprobed does not.
    pub name: Option<ProbeName>,
    /// The event part as printed.
    pub event: String,
    /// The whole line. It is not what was written: a return probe gets its MAXACTIVE, an address is
    /// hashed, `$arg*` is expanded.
    pub line: String,
}

/// Why the kernel refused a line: a definition, or a trigger.
#[derive(Debug, Error)]
#[error("the kernel refused `{line}`: {}", message.as_ref().map_or_else(|| error.source.to_string(), |m| m.text.clone()))]
pub struct LineError {
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
        names_of(&self.line)
    }

    /// Parses a listing. Lines of another form are left out.
    pub fn parse_list(text: &str) -> Vec<Self> {
        text.lines().filter_map(parse_line).collect()
    }
}

/// Group and event of `p:GROUP/EVENT PLACE ...` or `rN:GROUP/EVENT PLACE ...`.
fn names_of(line: &str) -> Option<(&str, &str)> {
    let (head, _) = line.split_once(' ')?;
    head.split_once(':')?.1.split_once('/')
}

fn parse_line(line: &str) -> Option<ListedProbe> {
    let (group, event) = names_of(line)?;
    Some(ListedProbe {
        name: ProbeName::new(group, event).ok(),
        event: event.to_owned(),
        line: line.to_owned(),
    })
}

impl Tracefs {
    pub(super) fn kprobe_events(&self) -> PathBuf {
        self.root().join("kprobe_events")
    }

    /// Appends definitions, in one write if the kernel accepts them all. Returns the outcome of
    /// each. A successful write does not prove that the kernel registered the probe: see
    /// [`Tracefs::registered`].
    ///
    /// The kernel carries out the lines of a write in order, stops at the first that it refuses,
    /// keeps those before it, and does not say which it was (kernel/trace/trace.c:
    /// trace_parse_run_command). So the first line whose event is not there is written again alone:
    /// it gets the same answer, which then belongs to one line.
    pub fn define_kprobes(&self, lines: &[&str]) -> Vec<Result<(), LineError>> {
        let mut outcomes = Vec::with_capacity(lines.len());
        let is_there = |line: &&str| self.has_event_of(line);
        // An event that existed before proves nothing.
        let together = !lines.iter().any(&is_there);
        let mut rest = lines;
        while !rest.is_empty() {
            if together && rest.len() > 1 {
                let taken = match self.files.append(&self.kprobe_events(), &rest.join("\n")) {
                    Ok(()) => rest.len(),
                    Err(_) => rest.iter().take_while(|line| is_there(line)).count(),
                };
                outcomes.extend((0..taken).map(|_| Ok(())));
                rest = rest.get(taken..).unwrap_or_default();
            }
            if let [first, others @ ..] = rest {
                outcomes.push(self.define_kprobe(first));
                rest = others;
            }
        }
        outcomes
    }

    /// Whether there is an event of the name in `LETTERS:GROUP/EVENT …`.
    fn has_event_of(&self, line: &str) -> bool {
        let is_name = |(group, event): &(&str, &str)| ProbeName::new(group, event).is_ok();
        names_of(line).filter(is_name).is_some_and(|(group, event)| self.has_event(group, event))
    }

    /// Appends one definition.
    fn define_kprobe(&self, line: &str) -> Result<(), LineError> {
        self.append_line(&self.kprobe_events(), line).map_err(|refused| {
            let message = refused.message.filter(|message| message.subsystem == "trace_kprobe");
            LineError { message, ..refused }
        })
    }

    /// Appends a line to a file, with what the kernel says of it in `error_log`.
    pub(super) fn append_line(&self, path: &Path, line: &str) -> Result<(), LineError> {
        self.with_message(|| self.files.append(path, line)).map_err(|(error, message)| LineError {
            line: line.to_owned(),
            error,
            message,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file takes every line; only the kernel refuses one: see the guest tests.
    #[test]
    fn many_are_defined_in_one_write() {
        let directory = tempfile::tempdir().unwrap();
        let tracefs = Tracefs::new(directory.path(), directory.path());
        let file = directory.path().join("kprobe_events");
        std::fs::write(&file, "p:other/x vfs_read\n").unwrap();
        let outcomes = tracefs.define_kprobes(&["p:k/a vfs_read", "r:k/b vfs_write"]);
        assert!(outcomes.iter().all(Result::is_ok) && outcomes.len() == 2);
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            "p:other/x vfs_read\np:k/a vfs_read\nr:k/b vfs_write"
        );
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir_all(directory.path().join("events/k/a")).unwrap();
        let outcomes = tracefs.define_kprobes(&["p:k/b vfs_read", "p:k/a vfs_read", "p:k/c vfs_read"]);
        let lines: Vec<_> =
            outcomes.iter().map(|outcome| outcome.as_ref().unwrap_err().line.as_str()).collect();
        assert_eq!(lines, ["p:k/b vfs_read", "p:k/a vfs_read", "p:k/c vfs_read"], "each has its own answer");
        assert!(tracefs.define_kprobes(&[]).is_empty());
    }

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
