//! Tests of `trace`.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use insta::assert_snapshot;

use super::fake::{Ending, Fake, interrupt};

const MADE: &str = "create p:open do_sys_openat2, enabled: false, held by: h-1";

#[test]
fn probes_are_there_for_their_events_alone() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["trace", "p:open do_sys_openat2", "-n", "2"]), @r#"
    exit: 0
    -- stdout
    TIME [CPU] COMM-TID PROBE (LOCATION) FIELDS
    12:00:00.001000 [001] cat-131 kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename="/etc/passwd"
    12:00:00.002000 [001] ls-132 kprobes/open (do_sys_openat2+0x0/0x170) dfd=3 filename="/tmp/\xff"
    -- stderr
    observing 2 probes
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    3 delivered, 2 shown, 12 lost
      12 lost: the kernel's ring buffer was full
    "#);
    let log = fake.log_of_holds();
    let enabled = "update kprobes/open, enabled: Some(true)";
    assert_eq!(log, ["hold", MADE, enabled, "delete kprobes/open", "hold ended"]);
    assert_eq!(fake.asked().selection.unwrap().probes, ["kprobes/open"]);
}

#[test]
fn an_interrupt_deletes_them() {
    // Without end, so that the rest which the daemon has still comes.
    let fake = Fake::start(Ending::Endless);
    let mut child = fake
        .command(&["trace", "p:open do_sys_openat2", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    interrupt(&child);
    assert!(lines.count() > 0);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "that is how it ends: {stderr}");
    let log = fake.log_of_holds();
    assert!(log.ends_with(&["delete kprobes/open".to_owned(), "hold ended".to_owned()]), "{log:?}");
}

#[test]
fn one_that_is_killed_leaves_them_to_the_hold() {
    let fake = Fake::start(Ending::Open);
    let mut child = fake
        .command(&["trace", "p:open do_sys_openat2", "-o", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let log = fake.log_of_holds();
    assert!(!log.iter().any(|change| change.starts_with("delete")), "{log:?}");
}

#[test]
fn a_definition_that_is_refused_leaves_nothing() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["trace", "p:open do_sys_openat2", "p:open do_sys_openat2+3"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | p:open do_sys_openat2+3
      |        ^^^^^^^^^^^^^^^^
    hint: `+5` works
    ");
    let log = fake.log_of_holds();
    assert!(log.len() == 4 && !log.iter().any(|change| change.starts_with("update")), "{log:?}");
}

#[test]
fn a_daemon_that_goes_away_is_an_error() {
    let fake = Fake::start(Ending::Broken);
    assert_snapshot!(fake.run(&["trace", "p:open do_sys_openat2"]), @r#"
    exit: 4
    -- stdout
    TIME [CPU] COMM-TID PROBE (LOCATION) FIELDS
    12:00:00.001000 [001] cat-131 kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename="/etc/passwd"
    12:00:00.002000 [001] ls-132 kprobes/open (do_sys_openat2+0x0/0x170) dfd=3 filename="/tmp/\xff"
    12:00:00.003000 [001] cat-131 kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename=(fault)
    -- stderr
    observing 2 probes
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    3 delivered, 3 shown, 12 lost
      12 lost: the kernel's ring buffer was full
    error: shutting down
    hint: the daemon is starting or stopping: try again
    "#);
    // It goes with the hold.
    assert!(fake.log_of_holds().len() >= 4);
    let fake = Fake::start(Ending::Ended);
    assert_snapshot!(fake.run(&["trace", "p:open do_sys_openat2"]), @r#"
    exit: 4
    -- stdout
    TIME [CPU] COMM-TID PROBE (LOCATION) FIELDS
    12:00:00.001000 [001] cat-131 kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename="/etc/passwd"
    12:00:00.002000 [001] ls-132 kprobes/open (do_sys_openat2+0x0/0x170) dfd=3 filename="/tmp/\xff"
    12:00:00.003000 [001] cat-131 kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename=(fault)
    -- stderr
    observing 2 probes
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    3 delivered, 3 shown, 12 lost
      12 lost: the kernel's ring buffer was full
    error: the daemon ended the stream
    hint: is the daemon running? `systemctl status kprobed`
    "#);
    fake.log_of_holds();
}
