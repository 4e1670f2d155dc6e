//! The `error_log` file: the kernel's messages about refused definitions and filters.
//!
//! A record is three lines (kernel/trace/trace.c:tracing_log_err, since 5.2):
//!
//! ```text
//! [   12.345678] trace_kprobe: error: Invalid probed address or symbol
//!   Command: p:kprobes/x nosuch
//!                        ^
//! ```

use super::{Tracefs, TracefsError};

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelMessage {
    /// Time stamp as printed. Only good for telling two records apart.
    pub stamp: String,
    /// The part of the kernel that reports it, such as `trace_kprobe` or
    /// `event filter parse error`.
    pub subsystem: String,
    /// The message.
    pub text: String,
    /// The command as the kernel understood it: tokens joined by single blanks.
    pub command: String,
    /// Offset of the caret in `command`, in bytes.
    pub position: usize,
}

/// The kernel's answer to a write that it refuses, and what it says of it in its `error_log`, if anything.
pub type Refusal = (TracefsError, Option<KernelMessage>);

/// Length of `  Command: `, which the caret line is indented by.
const PREFIX: &str = "  Command: ";

impl KernelMessage {
    /// Parses all records of an `error_log`, oldest first. What has another form is left out.
    pub fn parse_log(text: &str) -> Vec<Self> {
        let lines: Vec<&str> = text.lines().collect();
        lines.windows(3).filter_map(parse_record).collect()
    }
}

fn parse_record(lines: &[&str]) -> Option<KernelMessage> {
    let [head, command, caret] = lines else { return None };
    let (stamp, rest) = head.strip_prefix('[')?.split_once(']')?;
    // `trace_kprobe: error: TEXT`, or for filters `event filter parse error: error: TEXT`.
    let (subsystem, text) = rest.trim_start().split_once(": error: ")?;
    let command = command.strip_prefix(PREFIX)?;
    let position = caret.find('^')?.checked_sub(PREFIX.len())?;
    Some(KernelMessage {
        stamp: stamp.trim().to_owned(),
        subsystem: subsystem.to_owned(),
        text: text.trim_end().to_owned(),
        command: command.to_owned(),
        position: position.min(command.len()),
    })
}

impl Tracefs {
    /// The last record of the log, about definitions and filters. No key ties a record to a writer,
    /// so what was there before a write is compared with what is there after it.
    ///
    /// # Errors
    /// [`TracefsError`].
    fn last_message(&self) -> Result<Option<KernelMessage>, TracefsError> {
        Ok(KernelMessage::parse_log(&self.files.read(&self.root().join("error_log"))?).pop())
    }

    /// Carries a write out, with what the kernel says if it refuses it.
    pub(super) fn with_message(
        &self,
        write: impl FnOnce() -> Result<(), TracefsError>,
    ) -> Result<(), Refusal> {
        let before = self.last_message().unwrap_or_default();
        write().map_err(|error| {
            let message = self.last_message().unwrap_or_default();
            (error, message.filter(|message| Some(message) != before.as_ref()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_are_found() {
        let text = "\
[    1.234567] trace_kprobe: error: Invalid probed address or symbol
  Command: p:kprobes/x nosuch
                       ^
[    2.000001] event filter parse error: error: Field not found
  Command: foo == 1
           ^
";
        let records = KernelMessage::parse_log(text);
        assert_eq!(records.len(), 2);
        assert_eq!(records[0].subsystem, "trace_kprobe");
        assert_eq!(records[0].text, "Invalid probed address or symbol");
        assert_eq!(&records[0].command[records[0].position..], "nosuch");
        assert_eq!(records[1].subsystem, "event filter parse error");
        assert_eq!(records[1].position, 0);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "(\\[[ 0-9.]*\\] [a-z_]*: error: .*\n)?(  Command: .*\n)? *\\^?.*") {
            for record in KernelMessage::parse_log(&text) {
                prop_assert!(record.position <= record.command.len());
            }
        }
    }
}
