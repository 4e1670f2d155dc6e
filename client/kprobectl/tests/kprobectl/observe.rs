//! Tests of `observe`: how it follows, and how it ends.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use insta::assert_snapshot;

use kprobed_client::api::stream_start::Start;

use super::fake::{Ending, Fake, answers, interrupt};

#[test]
fn observe_text() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["observe", "kprobes/*", "-n", "3"]), @r#"
    exit: 0
    -- stdout
    TIME [CPU] COMM-TID PROBE (LOCATION) FIELDS
    12:00:00.001000 [001] cat-131 kprobes/open dfd=-100 filename="/etc/passwd"
    12:00:00.002000 [001] ls-132  kprobes/open dfd=3 filename="/tmp/\xff"
    12:00:00.003000 [001] cat-131 kprobes/open dfd=-100 filename=(fault)
    -- stderr
    observing 2 probes
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    3 shown, 12 lost
      12 lost: the kernel's ring buffer was full
    "#);
    assert_snapshot!(fake.run(&["observe", "open", "-n", "1", "--wide", "--time", "trace", "--no-headers"]), @r#"
    exit: 0
    -- stdout
    0.001000 [001] ..... cat-131 kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename="/etc/passwd"
    -- stderr
    observing 2 probes
    lost: 12 events of CPU 1 before 2026-01-31T12:00:00.001000: the kernel's ring buffer was full
    1 shown, 12 lost
      2 more came, not shown
      12 lost: the kernel's ring buffer was full
    "#);
    assert_snapshot!(fake.run(&["observe", "-n", "2", "--fields", "dfd,location", "--order", "time", "-q"]), @r#"
    exit: 0
    -- stdout
    TIME [CPU] PROBE (LOCATION) FIELDS
    12:00:00.001000 [001] kprobes/open (do_sys_openat2+0x0/0x170) dfd=-100 filename="/etc/passwd"
    12:00:00.002000 [001] kprobes/open (do_sys_openat2+0x0/0x170) dfd=3 filename="/tmp/\xff"
    -- stderr
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    "#);
}

#[test]
fn observe_counts_probes_of_overlapping_globs_once() {
    let fake = Fake::start(Ending::Open);
    let told = fake.run(&["observe", "kprobes/*", "open", "-n", "3"]);
    assert!(told.contains("observing 2 probes\n"), "{told}");
}

#[test]
fn observe_asks_the_daemon() {
    let fake = Fake::start(Ending::Ended);
    let arguments = [
        "observe",
        "open",
        "-l",
        "team in (storage,net),!reviewed",
        "--filter",
        "dfd == -100",
        "--comm",
        "s*",
        "--pid",
        "7",
        "--tid",
        "8",
        "--cpu",
        "1",
        "--sample",
        "10",
        "--last",
        "5",
        "--order",
        "time",
        "--pace",
        "latency",
        "--overflow",
        "disconnect",
        "--queue",
        "9",
        "--queue-bytes",
        "1MiB",
        "--rate",
        "100",
        "--fields",
        "dfd,comm",
    ];
    assert_snapshot!(fake.run(&arguments), @r#"
    exit: 0
    -- stdout
    TIME [CPU] COMM-TID PROBE FIELDS
    12:00:00.001000 [001] cat-131 kprobes/open dfd=-100 filename="/etc/passwd"
    12:00:00.002000 [001] ls-132  kprobes/open dfd=3 filename="/tmp/\xff"
    12:00:00.003000 [001] cat-131 kprobes/open dfd=-100 filename=(fault)
    -- stderr
    note: the kernel can apply this filter: `kprobectl update kprobes/open --filter '(dfd == -100) && (tgid == 7 || pid == 7) && (pid == 8) && (comm ~ "s*") && (cpu == 1) && 1'`
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    3 shown, 12 lost
      12 lost: the kernel's ring buffer was full
    "#);
    assert_snapshot!(format!("{:#?}", fake.asked()), @r#"
    StreamEventsRequest {
        selection: Some(
            EventSelection {
                probes: [
                    "*/open",
                ],
                label_selector: "team in (storage,net),!reviewed",
                filter: "(dfd == -100) && (tgid == 7 || pid == 7) && (pid == 8) && (comm ~ \"s*\") && (cpu == 1)",
                sample_one_in: 10,
            },
        ),
        fields: [
            "dfd",
            "comm",
        ],
        start: Some(
            StreamStart {
                until_now: true,
                start: Some(
                    LastEvents(
                        5,
                    ),
                ),
            },
        ),
        delivery: Some(
            Delivery {
                order: Time,
                pace: Latency,
                overflow: Disconnect,
                queue_events: 9,
                queue_bytes: 1048576,
                max_events_per_second: 100,
                heartbeat_ms: 0,
            },
        ),
        form: Columns,
    }
    "#);
}

#[test]
fn observe_keeps_its_place() {
    let fake = Fake::start(Ending::Open);
    let place = fake.directory().join("place");
    let place = place.to_str().unwrap();
    let run = |more: &[&str]| {
        let arguments = [&["observe", "--cursor", place, "-q", "--no-headers"][..], more].concat();
        let code = fake.command(&arguments).output().unwrap().status.code();
        (code, fake.asked().start.unwrap(), std::fs::read_to_string(place).unwrap())
    };
    let (code, start, saved) = run(&["--until-now"]);
    assert_eq!((code, saved.as_str()), (Some(0), "b0:2:5\n"), "behind all that has happened");
    assert!(start.until_now && start.start == Some(Start::Oldest(true)), "{start:?}");
    let (code, start, saved) = run(&["-n", "3"]);
    assert_eq!((code, saved.as_str()), (Some(0), "b0:2:3\n"), "behind the batch");
    assert_eq!(start.start, Some(Start::Cursor(answers::cursor(5))));
    let (_, start, saved) = run(&["-n", "2"]);
    assert_eq!(
        (start.start, saved.as_str()),
        (Some(Start::Cursor(answers::cursor(3))), "b0:2:0 3000000 2\n"),
        "a batch that was cut before its event of that time"
    );
    // Its rest, and not the whole batch again: a small -n reads the events in parts.
    let arguments = ["observe", "--cursor", place, "-n", "1", "--time", "trace", "--no-headers"];
    let output = fake.command(&arguments).output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(fake.asked().start.unwrap().start, Some(Start::Cursor(answers::cursor(0))));
    assert!(stdout.contains("0.003000") && stdout.lines().count() == 1, "{stdout}");
    assert!(stderr.contains("1 shown, ") && !stderr.contains("more came"), "{stderr}");
    assert_eq!(std::fs::read_to_string(place).unwrap(), "b0:2:3\n");
    // The first two events, as if they were of one time: the second is not printed again either.
    std::fs::write(place, "b0:2:0 2000000 2").unwrap();
    let output = fake.command(&arguments).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("0.003000") && stdout.lines().count() == 1, "{stdout}");
    std::fs::write(place, "nothing").unwrap();
    assert_eq!(fake.command(&["observe", "--cursor", place]).output().unwrap().status.code(), Some(2));
}

#[test]
fn a_history_of_no_probe_is_noted() {
    let fake = Fake::start(Ending::Open);
    let note = "note: no probe matches now: the history can have events of probes that were deleted\n";
    let stderr =
        |arguments: &[&str]| String::from_utf8(fake.command(arguments).output().unwrap().stderr).unwrap();
    assert!(stderr(&["observe", "nothing", "--oldest"]).starts_with(note));
    assert!(!stderr(&["observe", "open", "--oldest"]).contains("no probe matches"));
    assert!(!stderr(&["observe", "nothing", "--oldest", "-q"]).contains("no probe matches"));
}

#[test]
fn observe_tells_that_something_may_be_missing() {
    let fake = Fake::start(Ending::Open);
    let told =
        "maybe lost: the daemon did not stop cleanly, so the history may lack the last events of that run";
    let output = fake.command(&["observe", "--oldest", "-q"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.lines().next() == Some(told), "{stderr}");
    let output = fake.command(&["observe", "--oldest", "-q", "-o", "json"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let told =
        r#"{"type":"epoch","cursor":"b0:2:0","may_miss":true,"start_time":"1970-01-01T00:00:00.000000002Z"}"#;
    assert_eq!(stdout.lines().next(), Some(told), "{stdout}");
}

#[test]
fn observe_tells_when_nobody_recorded() {
    let fake = Fake::start(Ending::Open);
    let output = fake.command(&["observe", "--last", "77", "-q"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let told = "maybe not recorded: what happened from the end of the daemon's run before until it had armed the \
                probes again, after its start at 12:00:10";
    assert_eq!(stderr.lines().last(), Some(told), "{stderr}");
    let output = fake.command(&["observe", "--last", "77", "-q", "-o", "json"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let told = r#"{"type":"epoch","cursor":"b0:1769860810000000000:0","may_miss":false,"start_time":"2026-01-31T12:00:10.000000000Z"}"#;
    assert!(stdout.lines().any(|line| line == told), "{stdout}");
    // The beginning of the stream is not a restart.
    assert_eq!(stdout.matches("\"epoch\"").count(), 1, "{stdout}");
}

#[test]
fn observe_connects_again() {
    // The second connection stays: the command ends with one, and has missed nothing.
    let fake = Fake::start(Ending::BrokenOnce);
    let output = fake.command(&["observe", "--for", "700ms", "-o", "json"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    // The fake begins anew each time: what it sends a second time was seen before.
    let of = |kind: &str| stdout.lines().filter(|line| line.contains(kind)).count();
    assert_eq!(
        (output.status.code(), of("\"event\""), of("\"interruption\"") > 0),
        (Some(0), 3, true),
        "{stdout}"
    );
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains(" lost, 1 reconnect\n"), "{stderr}");
}

#[test]
fn observe_says_when_it_did_not_connect_again() {
    let fake = Fake::start(Ending::Gone);
    assert_snapshot!(fake.run(&["observe", "--for", "700ms", "--no-headers"]), @r#"
    exit: 4
    -- stdout
    12:00:00.001000 [001] cat-131 kprobes/open dfd=-100 filename="/etc/passwd"
    12:00:00.002000 [001] ls-132  kprobes/open dfd=3 filename="/tmp/\xff"
    12:00:00.003000 [001] cat-131 kprobes/open dfd=-100 filename=(fault)
    -- stderr
    observing 2 probes
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    note: shutting down; connecting again
    3 shown, at least 12 lost
      12 lost: the kernel's ring buffer was full
      the last events may be missing: the connection was lost, and not made again
    "#);
    // All that was asked for has come.
    let whole = Fake::start(Ending::Gone).run(&["observe", "-n", "3"]);
    assert!(whole.starts_with("exit: 0") && whole.contains("3 shown, 12 lost"), "{whole}");
}

#[test]
fn observe_for_programs() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["observe", "-n", "3", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"type":"loss","cause":"overrun","cpu":1,"count":12,"before":"2026-01-31T12:00:00.001000000Z","before_ns":1000000,"gaps":1}
    {"type":"event","time":"2026-01-31T12:00:00.001000000Z","timestamp_ns":1000000,"probe":"kprobes/open","cpu":1,"tid":131,"tgid":130,"comm":"cat","context":{"irqs_off":false,"hardirq":false,"softirq":false,"nmi":false,"need_resched":false,"bh_off":false,"preempt_depth":0,"migrate_disable_depth":0},"location":"do_sys_openat2+0x0/0x170","return_location":null,"fields":{"dfd":-100,"filename":"/etc/passwd"},"faults":[],"unproven":[]}
    {"type":"event","time":"2026-01-31T12:00:00.002000000Z","timestamp_ns":2000000,"probe":"kprobes/open","cpu":1,"tid":132,"tgid":null,"comm":"ls","context":{"irqs_off":true,"hardirq":false,"softirq":false,"nmi":false,"need_resched":false,"bh_off":false,"preempt_depth":1,"migrate_disable_depth":0},"location":"do_sys_openat2+0x0/0x170","return_location":null,"fields":{"dfd":3,"filename":{"hex":"2f746d702fff"}},"faults":[],"unproven":[]}
    {"type":"event","time":"2026-01-31T12:00:00.003000000Z","timestamp_ns":3000000,"probe":"kprobes/open","cpu":1,"tid":131,"tgid":130,"comm":"cat","context":null,"location":"do_sys_openat2+0x0/0x170","return_location":null,"fields":{"dfd":-100,"filename":null},"faults":["filename"],"unproven":[]}
    -- stderr
    observing 2 probes
    3 shown, 12 lost
      12 lost: the kernel's ring buffer was full
    "#);
}

#[test]
fn the_past_needs_a_beginning() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["observe", "--until-now"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `--until-now` needs a place in the history to begin at
    hint: add `--since`, `--last`, `--oldest` or `--cursor`
    ");
}

#[test]
fn observe_says_what_the_kernel_could_do() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["observe", "-n", "1", "--filter", "dfd == -100", "--no-headers"]), @r#"
    exit: 0
    -- stdout
    12:00:00.001000 [001] cat-131 kprobes/open dfd=-100 filename="/etc/passwd"
    -- stderr
    note: the filter selects no event of `kprobes/waiting`: probe point is not an instruction boundary
    note: the kernel can apply this filter: `kprobectl update kprobes/open --filter 'dfd == -100 && 1'`
    observing 2 probes
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    1 shown, 12 lost
      2 more came, not shown
      12 lost: the kernel's ring buffer was full
    "#);
}

#[test]
fn observe_says_which_probes_lack_a_field() {
    let fake = Fake::start(Ending::Open);
    let notes = |arguments: &[&str]| {
        let probes = ["observe", "kprobes/open", "raw_syscalls/sys_enter", "-n", "1"];
        let arguments = [&probes[..], arguments].concat();
        let all = String::from_utf8(fake.command(&arguments).output().unwrap().stderr).unwrap();
        all.lines().filter(|line| line.starts_with("note:")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(notes(&["--fields", "comm,location"]), [""; 0], "all events have them");
    assert_snapshot!(notes(&["--fields", "dfd,flags"]).join("\n"), @"note: `raw_syscalls/sys_enter` has no field `dfd`");
}

#[test]
fn observe_says_how_a_stream_ended() {
    let ended = |ending: Ending| {
        let fake = Fake::start(ending);
        let output = fake.command(&["observe", "--no-headers", "--no-reconnect"]).output().unwrap();
        assert_eq!(
            (output.status.code(), String::from_utf8_lossy(&output.stdout).lines().count()),
            (Some(4), 3)
        );
        String::from_utf8(output.stderr).unwrap()
    };
    assert_snapshot!(ended(Ending::Ended), @"
    observing 2 probes
    lost: 12 events of CPU 1 before 12:00:00.001000: the kernel's ring buffer was full
    3 shown, 12 lost
      12 lost: the kernel's ring buffer was full
    error: the daemon ended the stream
    hint: is the daemon running? `systemctl status kprobed`
    ");
    let broken = ended(Ending::Broken);
    assert!(
        broken.ends_with("error: shutting down\nhint: the daemon is starting or stopping: try again\n"),
        "{broken}"
    );
}

/// Starts to follow, waits for the first lines, and sends a signal.
fn interrupted(fake: &Fake, arguments: &[&str]) -> (Option<i32>, String) {
    let mut child = fake.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    interrupt(&child);
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
    assert!(stderr.contains("3 shown, 12 lost"), "{stderr}");
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
