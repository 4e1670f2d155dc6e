//! Tests of repeated readings.

use insta::assert_snapshot;

use super::{Ending, Fake, counted, run, shown};

#[test]
fn readings_in_between() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(shown(&fake, &["hist", "open", "--by", "comm", "--interval", "1s"]), @"
    12:00:01.000, counted since 12:00:00.000
    COMM   COUNT  SHARE
    ls         5  62.5%
    <...>      2  25.0%
    cat        1  12.5%

    8 hits, 0 dropped, 3 rows

    12:00:02.000, counted since 12:00:00.000
    COMM   COUNT  SHARE
    ls        10  62.5%
    <...>      4  25.0%
    cat        2  12.5%

    16 hits, 0 dropped, 3 rows

    12:00:04.000, counted since 12:00:00.000
    COMM   COUNT  SHARE
    ls        20  62.5%
    <...>      8  25.0%
    cat        4  12.5%

    32 hits, 0 dropped, 3 rows
    ");
    assert_snapshot!(shown(&fake, &["hist", "open", "--interval", "1s", "--deltas", "-o", "json"]), @r#"
    {"name":"open-1","time":"2026-01-31T12:00:02Z","since":"2026-01-31T12:00:01Z","delta":true,"rows":[{"keys":[],"count":"16","sums":[]}],"hits":"16","dropped":"0","kernel_rows":1,"starts":"0","match_dropped":"0","key_names":[],"sum_names":[],"not_shown":{"rows":"0","count":"0"},"last":false}
    {"name":"open-1","time":"2026-01-31T12:00:04Z","since":"2026-01-31T12:00:00Z","delta":false,"rows":[{"keys":[],"count":"32","sums":[]}],"hits":"32","dropped":"0","kernel_rows":1,"starts":"0","match_dropped":"0","key_names":[],"sum_names":[],"not_shown":{"rows":"0","count":"0"},"last":true}
    "#);
}

#[test]
fn what_was_read_before_a_failure_stays() {
    let fake = Fake::start(Ending::Open);
    let arguments = |probe| ["hist", probe, "--by", "comm", "--interval", "1s"];
    let whole = shown(&fake, &arguments("open"));
    let output = fake.command(&arguments("broken")).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(whole.starts_with(&stdout) && stdout.ends_with("\n16 hits, 0 dropped, 3 rows\n"), "{stdout}");
    assert_eq!(output.status.code(), Some(4));
    assert_snapshot!(String::from_utf8_lossy(&output.stderr), @"
    note: counting broken until Ctrl-C
    error: shutting down
    hint: the daemon is starting or stopping: try again
    ");
    assert_snapshot!(run(&fake, &["hist", "unread"]), @"
    exit: 1
    -- stdout
    -- stderr
    note: counting unread for 100ms
    error: cannot read the final counts
    hint: the daemon's log has the reason: `journalctl -u kprobed`
    ");
}

#[test]
fn aggregations_are_followed_and_stay() {
    let fake = Fake::start(Ending::Open);
    let arguments = ["aggregations", "read", "reads", "--interval", "1s", "--deltas", "--for", "300ms"];
    assert_snapshot!(fake.run(&arguments), @"
    exit: 0
    -- stdout
    12:00:01.000, counted since 12:00:00.000
    comm=ls
    LATENCY         COUNT
    [100us, 200us)      5 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    count 5, average 3us, total 15us
    p50 in [100us, 200us), p90 in [100us, 200us), p99 in [100us, 200us), greatest in [100us, 200us)

    comm=<...>
    LATENCY         COUNT
    [300us, 400us)      2 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    count 2, average 1.5ms, total 3ms
    p50 in [300us, 400us), p90 in [300us, 400us), p99 in [300us, 400us), greatest in [300us, 400us)

    comm=cat
    LATENCY     COUNT
    [0, 100us)      1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    count 1, average 1us, total 1us
    p50 in [0, 100us), p90 in [0, 100us), p99 in [0, 100us), greatest in [0, 100us)

    8 measured, 8 starts, 0 not matched, 0 dropped, 3 rows

    12:00:02.000, counted since 12:00:01.000
    comm=ls
    LATENCY         COUNT
    [100us, 200us)     10 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    count 10, average 3us, total 30us
    p50 in [100us, 200us), p90 in [100us, 200us), p99 in [100us, 200us), greatest in [100us, 200us)

    comm=<...>
    LATENCY         COUNT
    [300us, 400us)      4 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    count 4, average 1.5ms, total 6ms
    p50 in [300us, 400us), p90 in [300us, 400us), p99 in [300us, 400us), greatest in [300us, 400us)

    comm=cat
    LATENCY     COUNT
    [0, 100us)      2 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    count 2, average 1us, total 2us
    p50 in [0, 100us), p90 in [0, 100us), p99 in [0, 100us), greatest in [0, 100us)

    16 measured, 16 starts, 0 not matched, 0 dropped, 3 rows
    -- stderr
    ");
    assert_eq!(counted(&fake, "the stream ended"), ["the stream ended"], "nothing was deleted");
}
