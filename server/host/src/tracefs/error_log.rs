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

/// What the command follows; the caret line is indented by its length.
const PREFIX: &str = "  Command: ";

/// Bytes of a command in the log of 5.10, which cuts longer ones, with the end of their line: the caret follows in the
/// same one (kernel/trace/trace.c: MAX_FILTER_STR_VAL, less a newline, the prefix and a zero).
const CUT: usize = 256 - 1 - PREFIX.len() - 1;

impl KernelMessage {
    /// Parses all records of an `error_log`, oldest first. What has another form is left out.
    pub fn parse_log(text: &str) -> Vec<Self> {
        let lines: Vec<&str> = text.lines().collect();
        (0..lines.len()).filter_map(|first| parse_record(&lines[first..])).collect()
    }
}

fn parse_record(lines: &[&str]) -> Option<KernelMessage> {
    let [head, command, after @ ..] = lines else { return None };
    let (stamp, rest) = head.strip_prefix('[')?.split_once(']')?;
    // `trace_kprobe: error: TEXT`, or for filters `event filter parse error: error: TEXT`.
    let (subsystem, text) = rest.trim_start().split_once(": error: ")?;
    let command = command.strip_prefix(PREFIX)?;
    let caret = after.first().filter(|line| line.trim_start() == "^");
    let (command, caret) =
        caret.map_or_else(|| command.split_at_checked(CUT), |caret| Some((command, caret)))?;
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

    /// 5.10 has room for 256 bytes: of what follows `error: ` too.
    #[test]
    fn the_caret_behind_a_command_that_was_cut_is_found() {
        let definition = format!("p:kprobes/x vfs_read {}", "a=$comm ".repeat(40));
        let cut = &definition[..CUT];
        let text = format!(
            "[    1.2] trace_kprobe: error: Too many args\n{PREFIX}{cut}{}^\n\
             [    2.0] event filter parse error: error: Field not found\n{PREFIX}foo == 1\n{}^\n",
            " ".repeat(PREFIX.len() + 12),
            " ".repeat(PREFIX.len())
        );
        let records = KernelMessage::parse_log(&text);
        assert_eq!((records.len(), records[0].text.as_str()), (2, "Too many args"));
        assert_eq!((records[0].command.as_str(), records[0].position), (cut, 12));
        assert_eq!((records[1].command.as_str(), records[1].position), ("foo == 1", 0));
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
