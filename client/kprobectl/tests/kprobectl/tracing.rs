//! Tests of `trace`.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use insta::assert_snapshot;

use super::fake::{Beginning, Ending, Fake, interrupt};

const MADE: &str = "create p:open do_sys_openat2, enabled: false, held by: h-1";
const ENABLED: &str = "update kprobes/open, enabled: Some(true)";
const DELETED: &str = "delete kprobes/open";

/// Events that the fake's ledger has for the command.
const LEDGER: u64 = 5;

/// A command that tells what it does on stderr alone.
fn start(fake: &Fake, arguments: &[&str]) -> Child {
    let mut command = fake.command(arguments);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Its exit code, and what it said.
fn end(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// The number before these words.
fn figure(said: &str, words: &str) -> Option<u64> {
    said.split_once(words)?.0.rsplit([' ', '\n']).next()?.parse().ok()
}

/// Events that the daemon had for the command and that were shown, by the summary.
fn figures(said: &str) -> (u64, u64) {
    let shown = figure(said, " shown, ").unwrap_or_else(|| panic!("{said}"));
    (shown + figure(said, " more came, not shown").unwrap_or(0), shown)
}

#[test]
fn probes_are_there_for_their_events_alone() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["trace", "p:open do_sys_openat2", "-n", "2"]), @r#"
    exit: 0
    -- stdout
    TIME [CPU] COMM-TID PROBE (LOCATION) FIELDS
    12:00:00.001000 [001] cat-131 kprobes/open dfd=-100 filename="/etc/passwd"
    12:00:00.002000 [001] ls-132  kprobes/open dfd=3 filename="/tmp/\xff"
    -- stderr
    observing 2 probes
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    15 recorded, 2 shown, 12 lost
      7 of them were not selected
      6 more came, not shown
      12 lost: the kernel's ring buffer was full
      1 run of `kprobes/open` was skipped by the kernel (NMISSED): it was hit while another probe ran on the same CPU
    "#);
    let log = fake.log_of_holds();
    assert_eq!(log, ["hold", MADE, ENABLED, DELETED, "hold ended"]);
    assert_eq!(fake.asked().selection.unwrap().probes, ["kprobes/open"]);
}

#[test]
fn the_kernel_filters_what_it_can() {
    for (filter, kernel) in [
        ("dfd == 3", ", filter: dfd == 3 && 1"),
        // The daemon filters in any case.
        ("comm == 'too large for the kernel'", ""),
    ] {
        let fake = Fake::start(Ending::Open);
        let said = fake.run(&["trace", "p:open do_sys_openat2", "--filter", filter, "-n", "1"]);
        assert!(said.starts_with("exit: 0"), "{said}");
        let log = fake.log_of_holds();
        assert_eq!(log[log.len() - 3..], [&format!("{ENABLED}{kernel}"), DELETED, "hold ended"], "{log:?}");
        assert!(!said.contains("error"), "{said}");
    }
    let fake = Fake::start(Ending::Open);
    fake.run(&["observe", "-p", "p:open do_sys_openat2", "--comm", "cat", "-n", "1"]);
    assert!(fake.log_of_holds().contains(&format!("{ENABLED}, filter: comm == \"cat\" && 1")));
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
    assert!(log.ends_with(&[DELETED.to_owned(), "hold ended".to_owned()]), "{log:?}");
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

/// The daemon says what a text stands for; each line of several is a probe.
#[test]
fn a_short_form_is_what_the_daemon_makes_of_it() {
    let fake = Fake::start(Ending::Open);
    let (code, said) = end(start(&fake, &["trace", "openat", "-n", "2"]));
    assert!(code == Some(0) && said.starts_with("note: `openat` is `p do_sys_openat2 $arg*`\n"), "{said}");
    let (code, said) = end(start(&fake, &["trace", "open*", "-n", "2"]));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("`open*` is 2 probes, from `p:open do_sys_openat2` to `p:waiting"), "{said}");
    assert!(said.contains("note: `open*` leaves out 2 functions"), "{said}");
    let log = fake.log_of_holds();
    let made: Vec<_> = log.iter().filter(|change| change.starts_with("create")).collect();
    let expected = [
        "create openat, enabled: false",
        "create p:open do_sys_openat2,",
        "create p:waiting do_sys_openat2,",
    ];
    assert_eq!(made.len(), 3, "{log:?}");
    assert!(made.iter().zip(expected).all(|(made, expected)| made.starts_with(expected)), "{log:?}");
}

#[test]
fn many_probes_are_confirmed() {
    let fake = Fake::start(Ending::Open);
    for command in [&["trace", "*", "-n", "2"][..], &["add", "*"]] {
        let (code, said) = end(start(&fake, command));
        assert!(code == Some(2) && said.contains("`*` stands for 101 probes"), "{said}");
        assert!(said.contains("hint: add `--yes`"), "{said}");
    }
    assert!(fake.changed_at_once().is_empty());
    let (code, said) = end(start(&fake, &["add", "*", "--yes"]));
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_daemon_that_goes_away_is_an_error() {
    let fake = Fake::start(Ending::Broken);
    assert_snapshot!(fake.run(&["trace", "p:open do_sys_openat2"]), @r#"
    exit: 4
    -- stdout
    TIME [CPU] COMM-TID PROBE (LOCATION) FIELDS
    12:00:00.001000 [001] cat-131 kprobes/open dfd=-100 filename="/etc/passwd"
    12:00:00.002000 [001] ls-132  kprobes/open dfd=3 filename="/tmp/\xff"
    12:00:00.003000 [001] cat-131 kprobes/open dfd=-100 filename=(fault)
    -- stderr
    observing 2 probes
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    3 shown, at least 12 lost
      12 lost: the kernel's ring buffer was full
      the last events may be missing: an error came before them
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
    12:00:00.001000 [001] cat-131 kprobes/open dfd=-100 filename="/etc/passwd"
    12:00:00.002000 [001] ls-132  kprobes/open dfd=3 filename="/tmp/\xff"
    12:00:00.003000 [001] cat-131 kprobes/open dfd=-100 filename=(fault)
    -- stderr
    observing 2 probes
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    3 shown, at least 12 lost
      12 lost: the kernel's ring buffer was full
      the last events may be missing: the stream ended before them
    error: the daemon ended the stream
    hint: is the daemon running? `systemctl status kprobed`
    "#);
    fake.log_of_holds();
}

#[test]
fn a_stream_does_not_end_before_it_has_begun() {
    let whole = |(delivered, shown): (u64, u64)| delivered >= LEDGER && shown == delivered;
    let cut = |(delivered, shown): (u64, u64)| delivered >= 2 && shown == 2;
    for (arguments, is_right) in [
        (&["trace", "p:open do_sys_openat2", "--", "true"][..], &whole as &dyn Fn((u64, u64)) -> bool),
        (&["trace", "p:open do_sys_openat2", "--for", "1ms"], &whole),
        (&["trace", "p:open do_sys_openat2", "-n", "2", "--", "true"], &cut),
        (&["observe", "-p", "p:open do_sys_openat2", "--for", "1ms"], &whole),
        (&["observe", "kprobes/open", "--for", "1ms"], &|(delivered, shown)| delivered == shown),
    ] {
        let fake = Fake::beginning(Beginning::Late, Ending::Endless);
        let (code, said) = end(start(&fake, arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
        assert!(said.starts_with("observing 2 probes\n"), "{arguments:?}: {said}");
        assert!(is_right(figures(&said)) && !said.contains("at least"), "{arguments:?}: {said}");
    }
}

#[test]
fn what_the_queue_left_out_last_is_told_too() {
    let fake = Fake::start(Ending::LateLosses);
    let (_, said) = end(start(&fake, &["trace", "p:open do_sys_openat2", "--", "true"]));
    for told in [
        "15 recorded, 6 shown, 15 lost",
        "  7 of them were not selected\n",
        "  1 lost: this command printed too slowly, and its queue was full\n",
        "  2 lost: they exceeded `--rate`\n",
    ] {
        assert!(said.contains(told), "{said}");
    }
}

#[test]
fn an_interrupt_ends_a_stream_that_has_just_begun_and_shows_its_events() {
    let fake = Fake::beginning(Beginning::Late, Ending::Endless);
    let child = start(&fake, &["trace", "p:open do_sys_openat2"]);
    fake.log_with(ENABLED);
    interrupt(&child);
    let (code, said) = end(child);
    assert_eq!(code, Some(0), "{said}");
    let (delivered, shown) = figures(&said);
    assert!(delivered >= LEDGER && shown == delivered && !said.contains("at least"), "{said}");
    assert_eq!(fake.log_of_holds(), ["hold", MADE, ENABLED, DELETED, "hold ended"]);
}

#[test]
fn an_interrupt_before_the_stream_begins_records_nothing() {
    let fake = Fake::beginning(Beginning::Never, Ending::Open);
    let child = start(&fake, &["trace", "p:open do_sys_openat2", "--", "false"]);
    fake.wait_for_request();
    interrupt(&child);
    let (code, said) = end(child);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.starts_with("error: interrupted\n"), "{said}");
    assert_eq!(fake.log_of_holds(), ["hold", MADE, "hold ended"], "the daemon deletes it with the hold");
}

#[test]
fn a_stream_that_does_not_begin_in_time_is_an_error() {
    let fake = Fake::beginning(Beginning::Never, Ending::Open);
    let (code, said) =
        end(start(&fake, &["--timeout", "2s", "trace", "p:open do_sys_openat2", "--", "false"]));
    assert_eq!(code, Some(3), "{said}");
    assert!(said.starts_with("error: the daemon did not answer within 2s\n"), "{said}");
    assert_eq!(fake.log_of_holds(), ["hold", MADE, "hold ended"]);
}

#[test]
fn what_the_daemon_does_not_send_at_the_end_is_not_called_nothing() {
    // It has more in its ledger than it sends.
    let fake = Fake::start(Ending::Open);
    let (code, said) = end(start(&fake, &["trace", "p:open do_sys_openat2", "--", "true"]));
    assert_eq!(code, Some(0), "{said}");
    let told = "15 recorded, 3 shown, at least 12 lost\n  7 of them were not selected\n  12 lost: the kernel's ring buffer was full\n  \
                1 run of `kprobes/open` was skipped by the kernel (NMISSED): it was hit while another probe ran on the same CPU\n  \
                the last events may be missing: the daemon did not send them in time\n";
    assert!(said.ends_with(told), "{said}");
}

#[test]
fn a_second_interrupt_waits_for_nothing() {
    let fake = Fake::start(Ending::Open);
    let child = start(&fake, &["trace", "p:open do_sys_openat2"]);
    fake.log_with(ENABLED);
    interrupt(&child);
    fake.log_with(DELETED);
    let begun = Instant::now();
    interrupt(&child);
    let (code, said) = end(child);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}: {said}", begun.elapsed());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("at least 12 lost") && said.ends_with("may be missing: interrupted\n"), "{said}");
}
