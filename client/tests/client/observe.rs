//! Following events, and how it ends.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use insta::assert_snapshot;

use super::fake::{Ending, Fake};

#[test]
fn observe_text() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["observe", "kprobes/*", "-n", "3"]), @r#"
    exit: 0
    -- stdout
    TIME [CPU] COMM-TID PROBE (LOCATION) FIELDS
    12:00:00.001000 [001] cat-131 kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename="/etc/passwd"
    12:00:00.002000 [001] ls-132 kprobes/open (do_sys_openat2+0x0/0x170) dfd=3 filename="/tmp/\xff"
    12:00:00.003000 [001] cat-131 kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename=(fault)
    -- stderr
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    3 delivered, 3 shown, 12 lost
      12 lost: the kernel's ring buffer was full
    "#);
    assert_snapshot!(fake.run(&["observe", "open", "-n", "1", "--wide", "--comm", "l?", "--time", "trace", "--no-header"]), @r#"
    exit: 0
    -- stdout
    0.002000 [001] d..1. ls-132 kprobes/open (do_sys_openat2+0x0/0x170) dfd=3 filename="/tmp/\xff"
    -- stderr
    lost: 12 events of CPU 1 before 2026-01-31T12:00:00.001000: the kernel's ring buffer was full
    3 delivered, 1 shown, 12 lost
      12 lost: the kernel's ring buffer was full
    "#);
    assert_snapshot!(fake.run(&["observe", "--duration", "300ms", "--where", "dfd == -100", "--where", "filename ~ /etc/*"]), @r#"
    exit: 0
    -- stdout
    TIME [CPU] COMM-TID PROBE (LOCATION) FIELDS
    12:00:00.001000 [001] cat-131 kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename="/etc/passwd"
    -- stderr
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    3 delivered, 1 shown, 12 lost
      12 lost: the kernel's ring buffer was full
    "#);
}

#[test]
fn observe_for_programs() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["observe", "-n", "3", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"type":"loss","cause":"overrun","cpu":1,"count":12,"before":"2026-01-31T12:00:00.001000000Z","before_ns":1000000}
    {"type":"event","time":"2026-01-31T12:00:00.001000000Z","timestamp_ns":1000000,"probe":"kprobes/open","cpu":1,"tid":131,"comm":"cat","context":{"irqs_off":false,"hardirq":false,"softirq":false,"nmi":false,"need_resched":false,"bh_off":false,"preempt_depth":0,"migrate_disable_depth":0},"location":"do_sys_openat2+0x0/0x170","return_location":null,"fields":{"dfd":-100,"filename":"/etc/passwd"},"faults":[]}
    {"type":"event","time":"2026-01-31T12:00:00.002000000Z","timestamp_ns":2000000,"probe":"kprobes/open","cpu":1,"tid":132,"comm":"ls","context":{"irqs_off":true,"hardirq":false,"softirq":false,"nmi":false,"need_resched":false,"bh_off":false,"preempt_depth":1,"migrate_disable_depth":0},"location":"do_sys_openat2+0x0/0x170","return_location":null,"fields":{"dfd":3,"filename":{"hex":"2f746d702fff"}},"faults":[]}
    {"type":"event","time":"2026-01-31T12:00:00.003000000Z","timestamp_ns":3000000,"probe":"kprobes/open","cpu":1,"tid":131,"comm":"cat","context":null,"location":"do_sys_openat2+0x0/0x170","return_location":null,"fields":{"dfd":-100,"filename":null},"faults":["filename"]}
    -- stderr
    3 delivered, 3 shown, 12 lost
      12 lost: the kernel's ring buffer was full
    "#);
}

#[test]
fn observe_refuses_conditions_that_can_not_hold() {
    let fake = Fake::start(Ending::Open);
    // One of the two probes has no fields yet, so that an unknown field is no error there.
    assert_snapshot!(fake.run(&["observe", "--where", "dfd == many"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: field `dfd` is a number
    hint: `many` is none; write decimal, or hexadecimal with `0x`
    ");
    assert_snapshot!(fake.run(&["observe", "--where", "dfd = 3"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: invalid value 'dfd = 3' for '--where <FIELD OP VALUE>': expected one of `== != < <= > >= ~` behind the field

    For more information, try '--help'.
    ");
}

#[test]
fn observe_says_how_a_stream_ended() {
    assert_snapshot!(Fake::start(Ending::Ended).run(&["observe", "--no-header"]), @r#"
    exit: 4
    -- stdout
    12:00:00.001000 [001] cat-131 kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename="/etc/passwd"
    12:00:00.002000 [001] ls-132 kprobes/open (do_sys_openat2+0x0/0x170) dfd=3 filename="/tmp/\xff"
    12:00:00.003000 [001] cat-131 kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename=(fault)
    -- stderr
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    3 delivered, 3 shown, 12 lost
      12 lost: the kernel's ring buffer was full
    error: the daemon ended the stream
    hint: is the daemon running? `systemctl status kprobed`
    "#);
    assert_snapshot!(Fake::start(Ending::Broken).run(&["observe", "--no-header"]), @r#"
    exit: 4
    -- stdout
    12:00:00.001000 [001] cat-131 kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename="/etc/passwd"
    12:00:00.002000 [001] ls-132 kprobes/open (do_sys_openat2+0x0/0x170) dfd=3 filename="/tmp/\xff"
    12:00:00.003000 [001] cat-131 kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename=(fault)
    -- stderr
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    3 delivered, 3 shown, 12 lost
      12 lost: the kernel's ring buffer was full
    error: shutting down
    hint: the daemon is starting or stopping: try again
    "#);
}

/// Starts to follow, waits for the first lines, and sends a signal.
fn interrupted(fake: &Fake, arguments: &[&str]) -> (Option<i32>, String) {
    let mut child = fake.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    lines.for_each(drop);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    (child.wait().unwrap().code(), stderr)
}

#[test]
fn observe_until_interrupted() {
    let fake = Fake::start(Ending::Open);
    let (code, stderr) = interrupted(&fake, &["observe", "-o", "json"]);
    assert_eq!(code, Some(0), "that is how following ends: {stderr}");
    assert!(stderr.contains("3 delivered, 3 shown, 12 lost"), "{stderr}");
    let (code, _) = interrupted(&fake, &["observe", "-o", "json", "-n", "100"]);
    assert_eq!(code, Some(4), "there was more to come");
    let endless = Fake::start(Ending::Endless);
    let (code, _) = interrupted(&endless, &["observe", "-o", "json"]);
    assert_eq!(code, Some(0), "signals are heard while events pour in");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let fake = Fake::start(Ending::Endless);
    let mut child = fake.command(&["observe"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    drop(stdout);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!stderr.contains("error"), "{stderr}");
}
