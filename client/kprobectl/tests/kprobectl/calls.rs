//! Tests of calls in `trace` and `observe`: an entry joined with its return.

use insta::assert_snapshot;
use serde_json::Value;

use super::fake::{Ending, Fake};

const OPEN: &str = "do_sys_openat2(filename:ustring) -> fd:s32";

#[test]
fn a_call_is_one_line_at_its_return() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["trace", OPEN, "-n", "3"]), @r#"
    exit: 0
    -- stdout
    TIME [CPU] COMM-TID FUNCTION FIELDS -> VALUE DURATION
    12:00:00.001005 [001] sh-133 do_sys_openat2 (no entry) -> fd=9
    12:00:00.001022 [001] cat-131 do_sys_openat2 filename="/etc/nothere" -> fd=-2 12.0us
    12:00:00.001035 [001] ls-132 do_sys_openat2 filename="/etc/ld.so" -> fd=4 5.0us
    -- stderr
    observing 4 probes
    8 delivered, 3 shown, 0 lost
      2 calls with both ends
      1 calls without an entry: begun before the first event, or skipped by the kernel (NMISSED)
    "#);
    let log = fake.log_of_holds();
    let made: Vec<_> = log.iter().filter(|change| change.starts_with("create")).collect();
    // The return probe first: it records before the entry probe.
    assert_eq!(
        made,
        [
            "create r4096 do_sys_openat2 fd=$retval:s32, enabled: false, held by: h-1",
            "create p do_sys_openat2 filename:ustring, enabled: false, held by: h-1"
        ]
    );
    assert_eq!(fake.asked().selection.unwrap().probes, ["kprobes/opened", "kprobes/opening"]);
}

#[test]
fn what_lacks_an_end_is_named_and_is_no_loss() {
    let fake = Fake::start(Ending::Ended);
    assert_snapshot!(fake.run(&["trace", OPEN]), @r#"
    exit: 4
    -- stdout
    TIME [CPU] COMM-TID FUNCTION FIELDS -> VALUE DURATION
    12:00:00.001005 [001] sh-133 do_sys_openat2 (no entry) -> fd=9
    12:00:00.001022 [001] cat-131 do_sys_openat2 filename="/etc/nothere" -> fd=-2 12.0us
    12:00:00.001035 [001] ls-132 do_sys_openat2 filename="/etc/ld.so" -> fd=4 5.0us
    12:00:00.003045 [001] ls-132 do_sys_openat2 filename="/etc/passwd" -> fd=3 2.02ms
    12:00:00.001040 [000] sh-133 do_sys_openat2 filename="/dev/tty" -> (gap)
    12:00:00.006001 [000] cat-131 do_sys_openat2 filename="/etc/hosts" -> fd=3 1.0us
    -- stderr
    observing 4 probes
    lost: 12 events of CPU 0 before 12:00:00.006000: the kernel's ring buffer was full
    10 delivered, 6 shown, at least 12 lost
      12 lost: the kernel's ring buffer was full
      4 calls with both ends
      1 calls without an entry: begun before the first event, or skipped by the kernel (NMISSED)
      1 calls beside lost events
      the last events may be missing: the stream ended before them
    error: the daemon ended the stream
    hint: is the daemon running? `systemctl status kprobed`
    "#);
}

#[test]
fn a_filter_sees_both_ends() {
    let fake = Fake::start(Ending::Ended);
    assert_snapshot!(fake.run(&["trace", OPEN, "--filter", "fd < 0 && filename ~ \"/etc/*\"", "--comm", "c*"]), @r#"
    exit: 4
    -- stdout
    TIME [CPU] COMM-TID FUNCTION FIELDS -> VALUE DURATION
    12:00:00.001022 [001] cat-131 do_sys_openat2 filename="/etc/nothere" -> fd=-2 12.0us
    -- stderr
    observing 4 probes
    lost: 12 events of CPU 0 before 12:00:00.006000: the kernel's ring buffer was full
    10 delivered, 1 shown, at least 12 lost
      12 lost: the kernel's ring buffer was full
      4 calls with both ends
      1 calls without an entry: begun before the first event, or skipped by the kernel (NMISSED)
      1 calls beside lost events
      the last events may be missing: the stream ended before them
    error: the daemon ended the stream
    hint: is the daemon running? `systemctl status kprobed`
    "#);
    // The daemon must not leave out one of the ends.
    assert_eq!(fake.asked().selection.unwrap().filter, "");
    // A value that is missing is neither so nor otherwise.
    let shown = fake.run(&["trace", OPEN, "--filter", "!(fd == 3) || fd == 3", "-q"]);
    assert_eq!(shown.matches("do_sys_openat2").count(), 5, "{shown}");
}

#[test]
fn programs_get_one_object_for_a_call() {
    let fake = Fake::start(Ending::Ended);
    let output = fake.command(&["trace", OPEN, "-o", "json"]).output().unwrap();
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let calls: Vec<_> = lines.iter().filter(|line| line["type"] == "call").collect();
    let whole = calls.iter().find(|call| call["fields"]["fd"] == -2).unwrap();
    assert_snapshot!(serde_json::to_string_pretty(whole).unwrap(), @r#"
    {
      "type": "call",
      "time": "2026-01-31T12:00:00.001022000Z",
      "timestamp_ns": 1022000,
      "function": "do_sys_openat2",
      "cpu": 1,
      "tid": 131,
      "tgid": 131,
      "comm": "cat",
      "duration_ns": 12000,
      "incomplete": null,
      "fields": {
        "filename": "/etc/nothere",
        "fd": -2
      },
      "faults": [],
      "unproven": []
    }
    "#);
    let lacking: Vec<_> = calls.iter().filter_map(|call| call["incomplete"].as_str()).collect();
    assert_eq!(lacking, ["no_entry", "gap"]);
    assert!(calls.iter().all(|call| call["duration_ns"].is_null() == call["incomplete"].is_string()));
    assert_eq!(lines.iter().filter(|line| line["type"] == "loss").count(), 1);
}

#[test]
fn observe_has_calls_too() {
    let fake = Fake::start(Ending::Open);
    let shown = fake.run(&["observe", "-p", OPEN, "-n", "2", "-q", "--time", "trace"]);
    assert_snapshot!(shown, @r#"
    exit: 0
    -- stdout
    TIME [CPU] COMM-TID FUNCTION FIELDS -> VALUE DURATION
    0.001005 [001] sh-133 do_sys_openat2 (no entry) -> fd=9
    0.001022 [001] cat-131 do_sys_openat2 filename="/etc/nothere" -> fd=-2 12.0us
    -- stderr
    "#);
}

#[test]
fn what_cannot_be_said_of_calls_is_refused() {
    let fake = Fake::start(Ending::Open);
    let refused = [
        &["trace", "do_sys_openat2(filename:ustring) ->"][..],
        &["trace", "do_sys_openat2(int dfd) -> fd"],
        &["trace", OPEN, "--filter", "fdd < 0"],
        &["trace", OPEN, "--filter", "common_flags == 1"],
        &["trace", OPEN, "--filter", "fd <"],
        &["trace", OPEN, "--sample", "3"],
        &["trace", OPEN, "--fields", "fd"],
    ]
    .map(|arguments| fake.run(arguments));
    assert_snapshot!(refused.concat(), @r#"
    exit: 1
    -- stdout
    -- stderr
    error: the name of the return value is expected behind `->` [UNEXPECTED_TOKEN, by kprobed]
      | do_sys_openat2(filename:ustring) ->
      |                                    ^
    hint: write `-> NAME` or `-> NAME:TYPE`, as in `-> fd:s32`
    exit: 1
    -- stdout
    -- stderr
    error: `int dfd` is no argument of a call, which has a name and then its type [UNEXPECTED_TOKEN, by kprobed]
      | do_sys_openat2(int dfd) -> fd
      |                ^^^^^^^
    hint: write NAME:TYPE, as in `filename:ustring`
    exit: 2
    -- stdout
    -- stderr
    error: `fdd < 0`: there is no field `fdd` in do_sys_openat2
    hint: did you mean `fd`? there are filename, fd, common_pid, common_type, common_flags, common_preempt_count, COMM, comm, CPU, cpu, common_cpu, __probe_func, __probe_ret_ip, pid, tgid, probe, host
    exit: 2
    -- stdout
    -- stderr
    error: `common_flags == 1`: `common_flags` is known to the daemon only: it is not sent
    hint: a filter on calls is evaluated by this command, on the fields of both ends
    exit: 2
    -- stdout
    -- stderr
    error: `fd <`: expected a value to compare the field with
    hint: numbers are like 1, -1 or 0x1f, and texts are in quotes: "bash"
    exit: 2
    -- stdout
    -- stderr
    error: `--sample` takes single events, and a call is two
    hint: use `--filter`, or `-n` to stop early
    exit: 2
    -- stdout
    -- stderr
    error: `--fields` selects fields of single events, and a call has those that it names
    hint: name them in the call
    "#);
}
