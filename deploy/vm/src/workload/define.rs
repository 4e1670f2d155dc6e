//! The kernel's answers to definitions: each one is written, and removed at once if it was
//! accepted.
//!
//! Never changes a probe that existed before.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::cycle::append;

/// Prints a line for each definition: an errno (0 if it was accepted), the position of the caret
/// and the message, separated by tabs; `-` for what the kernel did not say.
pub(crate) fn run(events: &Path, definitions: &Path, output: &mut impl Write) -> io::Result<()> {
    let log = events.with_file_name("error_log");
    let before = listing(events)?;
    for line in fs::read_to_string(definitions)?.lines() {
        fs::write(&log, "\n")?;
        match append(events, line) {
            Ok(()) => {
                for name in listing(events)?.difference(&before) {
                    append(events, &format!("-:{name}"))?;
                }
                writeln!(output, "0\t-\t-")?;
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(-1);
                let said = said(&fs::read_to_string(&log)?);
                let (caret, message) = said.unwrap_or_else(|| ("-".to_owned(), "-".to_owned()));
                writeln!(output, "{errno}\t{caret}\t{message}")?;
            }
        }
    }
    Ok(())
}

/// Names of all events, `GROUP/EVENT`.
fn listing(events: &Path) -> io::Result<BTreeSet<String>> {
    let text = fs::read_to_string(events)?;
    let name = |line: &str| Some(line.split([':', ' ']).nth(1)?.to_owned());
    Ok(text.lines().filter_map(name).collect())
}

/// The last entry of the log: where its caret is, in bytes from the beginning of the command, and
/// its message.
fn said(log: &str) -> Option<(String, String)> {
    let (_, entry) = log.rsplit_once(": error: ")?;
    let mut lines = entry.lines();
    let message = lines.next()?.trim().to_owned();
    let caret = lines.next_back()?.find('^')?.checked_sub("  Command: ".len())?;
    Some((caret.to_string(), message))
}

#[cfg(test)]
mod tests {
    use super::said;

    #[test]
    fn the_last_entry_counts() {
        let log = "\
[  1.0] trace_kprobe: error: Invalid probed address or symbol
  Command: p:a b
               ^
[  2.0] trace_kprobe: error: Unknown type is specified
  Command: p:g/e f @1:no
                      ^
";
        assert_eq!(said(log), Some(("11".to_owned(), "Unknown type is specified".to_owned())));
        assert_eq!(said(""), None);
    }
}
