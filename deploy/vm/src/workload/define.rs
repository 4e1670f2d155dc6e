//! Definitions of probes with the kernel's interface alone: the kernel's answer to each, and the time that
//! many take.
//!
//! Never changes a probe that existed before, or one of another group.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

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

const COMMAND: &str = "  Command: ";

/// The most bytes of a command in the log of 5.10 (kernel/trace/trace.c: MAX_FILTER_STR_VAL).
const CUT: usize = 243;

/// The last entry of the log: where its caret is, in bytes from the beginning of the command, and
/// its message.
fn said(log: &str) -> Option<(String, String)> {
    let (_, entry) = log.rsplit_once(": error: ")?;
    let mut lines = entry.lines();
    let message = lines.next()?.trim().to_owned();
    let last = lines.next_back()?;
    // 5.10 cuts the line of a long command, with its end.
    let before = if last.starts_with(COMMAND) { COMMAND.len() + CUT } else { 0 };
    let caret = last.rfind('^')?.checked_sub(before + COMMAND.len())?;
    Some((caret.to_string(), message))
}

/// Name of the instance of [`cycle`], and the group of its events.
const NAME: &str = "cycle";

/// Defines, enables, disables and deletes one probe for each definition (what follows the name), and prints the
/// seconds of each: the baseline that the daemon is compared with. Uses as few system calls as possible.
pub(crate) fn cycle(tracefs: &Path, definitions: &Path, output: &mut impl Write) -> io::Result<()> {
    let text = fs::read_to_string(definitions)?;
    let places: Vec<&str> = text.lines().collect();
    let (events, instance) = (tracefs.join("kprobe_events"), tracefs.join("instances").join(NAME));
    fs::create_dir(&instance)?;
    let lines = |line: &dyn Fn(usize, &str) -> String| {
        places.iter().enumerate().map(|(number, place)| line(number, place)).collect::<Vec<_>>().join("\n")
    };
    let switch = |value: &str| {
        (0..places.len()).try_for_each(|number| {
            let file = instance.join(format!("events/{NAME}/p{number}/enable"));
            OpenOptions::new().write(true).open(file)?.write_all(value.as_bytes())
        })
    };
    let mut time = |what: &str, work: &dyn Fn() -> io::Result<()>| {
        let begun = Instant::now();
        work()?;
        writeln!(output, "{what} {}", begun.elapsed().as_secs_f64())
    };
    time("define", &|| append(&events, &lines(&|number, place| format!("p:{NAME}/p{number} {place}"))))?;
    time("enable", &|| switch("1"))?;
    time("disable", &|| switch("0"))?;
    // With the instance goes what would be emptied by each deletion.
    time("delete", &|| {
        fs::remove_dir(&instance)?;
        append(&events, &lines(&|number, _place| format!("-:{NAME}/p{number}")))
    })
}

/// One write: the kernel takes one line after the other.
fn append(path: &Path, lines: &str) -> io::Result<()> {
    let written = OpenOptions::new().append(true).open(path)?.write(lines.as_bytes())?;
    if written == lines.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
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
        let cut = format!(
            "[  1.0] trace_kprobe: error: Too many args\n  Command: {}    {}^\n",
            "a".repeat(243),
            " ".repeat(9)
        );
        assert_eq!(said(&cut), Some(("2".to_owned(), "Too many args".to_owned())));
    }
}
