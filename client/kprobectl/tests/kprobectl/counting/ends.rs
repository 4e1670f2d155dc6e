//! Tests of the ways in which counting ends.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};

use super::{Ending, Fake, counted, interrupt};

/// Starts a command, and waits until it says that it counts.
fn begin(fake: &Fake, arguments: &[&str]) -> Child {
    let mut child = fake.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    let note = notes.next().unwrap().unwrap();
    assert!(note.contains("counting open"), "{note}");
    child
}

/// Starts to count, waits until it does, and sends a signal.
fn interrupted(fake: &Fake, arguments: &[&str]) -> (Option<i32>, String) {
    let mut child = begin(fake, arguments);
    interrupt(&child);
    let mut stdout = String::new();
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    (child.wait().unwrap().code(), stdout)
}

#[test]
fn what_was_counted_until_an_interrupt_is_shown() {
    let fake = Fake::start(Ending::Open);
    let (code, stdout) = interrupted(&fake, &["hist", "open"]);
    assert_eq!(code, Some(0), "that is how counting ends: {stdout}");
    assert!(stdout.contains("32 hits, 0 dropped"), "{stdout}");
    assert_eq!(counted(&fake, "the stream ended"), ["made open-0", "deleted open-0", "the stream ended"]);
    let (code, stdout) = interrupted(&fake, &["hist", "open", "--for", "1h"]);
    assert_eq!(code, Some(4), "there was more to come");
    assert!(stdout.contains("32 hits, 0 dropped"), "{stdout}");
}

#[test]
fn a_killed_command_ends_its_stream() {
    let fake = Fake::start(Ending::Open);
    let mut child = begin(&fake, &["hist", "open"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(counted(&fake, "the stream ended"), ["made open-0", "the stream ended"]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let fake = Fake::start(Ending::Open);
    let mut command = fake.command(&["hist", "open", "--interval", "1s"]);
    // It is gone before the command starts: it prints once, and a process that is just being forked beside this thread
    // has every pipe for a moment.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{stderr}");
    assert!(!stderr.contains("error"), "{stderr}");
    assert_eq!(counted(&fake, "the stream ended").last().unwrap(), "the stream ended");
}
