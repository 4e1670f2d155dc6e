//! Tests of commands that report: hits, ledger, doctor, version.

use insta::assert_snapshot;
use kprobed_client::api::ExporterState;

use super::command::kprobectl;
use super::fake::{Ending, Fake, client, shown};

#[tokio::test]
async fn the_library_has_exporters_in_the_ledger() {
    let fake = Fake::start(Ending::Open);
    let exporters = client(fake.socket()).await.ledger().await.unwrap().exporters;
    let states: Vec<_> =
        exporters.iter().map(|exporter| (exporter.name.as_str(), exporter.state())).collect();
    assert_eq!(states, [("jsonl", ExporterState::Running), ("otlp", ExporterState::Failing)]);
}

#[test]
fn hits_and_ledger() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["hits"]), @"
    exit: 0
    -- stdout
    PROBE         HITS  OWN  NMISSED
    kprobes/open     5    2        1
    -- stderr
    ");
    assert_snapshot!(fake.run(&["hits", "-l", "team=net"]), @"
    exit: 0
    -- stdout
    PROBE             HITS  OWN  NMISSED
    kprobes/open         5    2        1
    kprobes/filtered     4    ?        1
    -- stderr
    note: `?`: HITS includes those by kprobed's own threads: the probe has a filter
    ");
    assert_snapshot!(fake.run(&["hits", "--include-self"]), @"
    exit: 0
    -- stdout
    PROBE         HITS  NMISSED
    kprobes/open     7        1
    -- stderr
    ");
    assert_eq!(fake.run(&["profile"]), fake.run(&["hits"]), "another name");
    // The past is the kernel's count.
    assert!(fake.run(&["hits", "--include-self", "--since", "10m"]).starts_with("exit: 2"));
    assert_snapshot!(fake.run(&["ledger"]), @"
    exit: 0
    -- stdout
    PROBE               CLOSES  HITS  = READ  + UNDECODABLE  + NOT READ  LOST  DISABLED  OWN  NMISSED
    kprobes/open        yes       13       6              1           6     2         1    3        1
    sched/sched_switch  -          -       3              0           -     -         -    -        -
    NOT READ: LOST + DISABLED + FILTERED + OWN + UNEXPLAINED; LOST: in buffers, in a pause, or taken by another program; DISABLED: while it was off; OWN: by kprobed itself; NMISSED: skipped by the kernel

    CPU  READ  OVERRUN  RESETS  UNDECODABLE  PAGES
      0     6        2       1            1      4
    RESETS: emptied by another program

    SUBSCRIBER  CLOSES  READ  = DELIVERED  + QUEUED  + DROPPED  + LIMITED  + SAMPLED OUT  + FILTERED
             1  yes       20            4         1          1          2              3           4
    DROPPED: queue full; LIMITED: over its rate; REPLAYED: events of the history, no part of READ; EXPIRED: events of the history that are gone, no part of READ

    HISTORY READ  CLOSES  = STORED  + IN MEMORY  + NOT STORED  AVAILABLE  EXPIRED  BYTES
               6  yes            4            1             1        100       50   4096
    IN MEMORY: until the disk works again; NOT STORED: disk full, failing or too slow; AVAILABLE: on disk now; EXPIRED: deleted to stay within the limits
    the last error of the history: no space left on device

    EXPORTER  STATE    CLOSES  READ  = ACKNOWLEDGED  + QUEUED  + DROPPED  + EXPIRED  + NOT SELECTED
    jsonl     running  yes       15               8         2          0          1               4
    otlp      failing  -          ?               3         ?          2          0               0
    QUEUED: in the history; DROPPED: refused finally; EXPIRED: gone from the history; FAILURES: attempts, no part of READ
    `otlp` fails since 2026-01-31T12:00:00Z: connect to `http://127.0.0.1:4317`: connection refused
      its events wait in the history; the next attempt is at 2026-01-31T12:00:00Z
    the receiver of `otlp` refused events finally, the last time: 2 records had no body
    the place of `otlp` cannot be written down: the disk is full
      events would be sent again after a restart of the daemon
    `otlp` met 1 gap with an unknown number of missing events

    columns that are 0 in all rows are left out: `-o wide` shows them
    the ledger closes, and it is settled
    -- stderr
    note: no room for NOT SELECTED, REPLAYED, EXPIRED, SINCE: `-o wide` shows all columns
    note: no room for OLDEST: `-o wide` shows all columns
    note: no room for FAILURES, DESTINATION: `-o wide` shows all columns
    ");
    assert_snapshot!(fake.run(&["ledger", "-o", "wide"]), @"
    exit: 0
    -- stdout
    PROBE               CLOSES  HITS  = READ  + UNDECODABLE  + NOT READ  LOST  DISABLED  FILTERED  OWN  UNEXPLAINED  NMISSED  PAUSED  FIRST READ  LAST READ
    kprobes/open        yes       13       6              1           6     2         1         0    3            0        1       0    0.001000   2.500000
    sched/sched_switch  -          -       3              0           -     -         -         -    -            -        -       -           -          -
    NOT READ: LOST + DISABLED + FILTERED + OWN + UNEXPLAINED; LOST: in buffers, in a pause, or taken by another program; DISABLED: while it was off; OWN: by kprobed itself; UNEXPLAINED: what is left since another program has changed what is recorded; NMISSED: skipped by the kernel

    CPU  READ  OVERRUN  COMMIT OVERRUN  DROPPED EVENTS  TAKEN  RESETS  UNDECODABLE  PAGES  BYTES  FIRST READ  LAST READ  FIRST OVERRUN  LAST OVERRUN
      0     6        2               0               0      0       1            1      4  65536           -          -       0.000007      0.000008
    COMMIT OVERRUN: writers nested too deep; DROPPED EVENTS: full, overwriting off; TAKEN: read by another program; RESETS: emptied by another program

    SUBSCRIBER  CLOSES  READ  = DELIVERED  + QUEUED  + DROPPED  + LIMITED  + SAMPLED OUT  + FILTERED  + NOT SELECTED  REPLAYED  EXPIRED  SINCE                 OVERFLOW     LOSS RECORDS  FIRST DELIVERED  LAST DELIVERED  FIRST DROPPED  LAST DROPPED
             1  yes       20            4         1          1          2              3           4               5         9        1  2026-01-31T12:00:00Z  drop-newest             2         0.001000        0.002000              -             -
    DROPPED: queue full; LIMITED: over its rate; REPLAYED: events of the history, no part of READ; EXPIRED: events of the history that are gone, no part of READ

    HISTORY READ  CLOSES  = STORED  + IN MEMORY  + NOT STORED  AVAILABLE  EXPIRED  BYTES  OLDEST
               6  yes            4            1             1        100       50   4096  2026-01-31T11:59:00Z
    IN MEMORY: until the disk works again; NOT STORED: disk full, failing or too slow; AVAILABLE: on disk now; EXPIRED: deleted to stay within the limits
    the last error of the history: no space left on device

    EXPORTER  STATE    CLOSES  READ  = ACKNOWLEDGED  + QUEUED  + DROPPED  + EXPIRED  + NOT SELECTED  FAILURES  DESTINATION                    ACKNOWLEDGED AT       CURSOR
    jsonl     running  yes       15               8         2          0          1               4         0  /var/log/kprobed/events.jsonl  2026-01-31T12:00:00Z  boot:3:13
    otlp      failing  -          ?               3         ?          2          0               0         7  http://127.0.0.1:4317          -                     -
    QUEUED: in the history; DROPPED: refused finally; EXPIRED: gone from the history; FAILURES: attempts, no part of READ
    `otlp` fails since 2026-01-31T12:00:00Z: connect to `http://127.0.0.1:4317`: connection refused
      its events wait in the history; the next attempt is at 2026-01-31T12:00:00Z
    the receiver of `otlp` refused events finally, the last time: 2 records had no body
    the place of `otlp` cannot be written down: the disk is full
      events would be sent again after a restart of the daemon
    `otlp` met 1 gap with an unknown number of missing events

    the ledger closes, and it is settled
    -- stderr
    ");
    assert_snapshot!(fake.run(&["ledger", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {
      "probes": [
        {
          "probe": "kprobes/open",
          "probe_uid": "1",
          "hits": "13",
          "nmissed": "1",
          "read": "6",
          "read_span": {
            "first_ns": "1000000",
            "last_ns": "2500000000"
          },
          "undecodable": "1",
          "not_read": "6",
          "lost": "2",
          "filtered": "0",
          "loss_is_shared": false,
          "paused": "0",
          "disabled": "1",
          "own": "3",
          "unexplained": "0",
          "closes": true
        },
        {
          "probe": "sched/sched_switch",
          "probe_uid": "0",
          "nmissed": "0",
          "read": "3",
          "undecodable": "0",
          "not_read": "0",
          "loss_is_shared": false,
          "paused": "0",
          "disabled": "0"
        }
      ],
      "buffers": [
        {
          "cpu": 0,
          "read": "6",
          "overrun": "2",
          "overrun_span": {
            "first_ns": "7000",
            "last_ns": "8000"
          },
          "commit_overrun": "0",
          "dropped_events": "0",
          "resets": "1",
          "undecodable": "1",
          "pages": "4",
          "buffer_bytes": "65536",
          "taken": "0"
        }
      ],
      "subscribers": [
        {
          "subscriber_id": "1",
          "start_time": "2026-01-31T12:00:00Z",
          "read": "20",
          "not_selected": "5",
          "filtered": "4",
          "sampled_out": "3",
          "limited": "2",
          "dropped": "1",
          "queued": "1",
          "delivered": "4",
          "delivered_span": {
            "first_ns": "1000000",
            "last_ns": "2000000"
          },
          "replayed": "9",
          "expired": "1",
          "loss_records": "2",
          "overflow": "OVERFLOW_POLICY_DROP_NEWEST",
          "closes": true
        }
      ],
      "settled": true,
      "spool": {
        "read": "6",
        "stored": "4",
        "in_memory": "1",
        "not_stored": "1",
        "available": "100",
        "expired": "50",
        "bytes": "4096",
        "oldest_time": "2026-01-31T11:59:00Z",
        "last_error": "no space left on device",
        "damaged": [],
        "closes": true
      },
      "problems": [],
      "exporters": [
        {
          "name": "jsonl",
          "start_time": "2026-01-31T12:00:00Z",
          "read": "15",
          "acknowledged": "8",
          "queued": "2",
          "dropped": "0",
          "expired": "1",
          "not_selected": "4",
          "unknown_gaps": "0",
          "failures": "0",
          "destination": "/var/log/kprobed/events.jsonl",
          "state": "EXPORTER_STATE_RUNNING",
          "error": "",
          "failures_in_a_row": "0",
          "acknowledged_time": "2026-01-31T12:00:00Z",
          "cursor": {
            "boot_id": "boot",
            "epoch": "3",
            "sequence": "13"
          },
          "refusal": "",
          "place_error": "",
          "dropped_spans": "0",
          "closes": true
        },
        {
          "name": "otlp",
          "start_time": "2026-01-31T12:00:00Z",
          "acknowledged": "3",
          "dropped": "2",
          "expired": "0",
          "not_selected": "0",
          "unknown_gaps": "1",
          "failures": "7",
          "destination": "http://127.0.0.1:4317",
          "state": "EXPORTER_STATE_FAILING",
          "error": "connect to `http://127.0.0.1:4317`: connection refused",
          "failing_since": "2026-01-31T12:00:00Z",
          "failures_in_a_row": "5",
          "retry_time": "2026-01-31T12:00:00Z",
          "refusal": "2 records had no body",
          "place_error": "the disk is full",
          "dropped_spans": "0"
        }
      ],
      "closes": true
    }
    -- stderr
    "#);
}

/// The width decides which columns there are; nothing of it shows in the forms for programs.
#[test]
fn accounts_fit_the_terminal() {
    let fake = Fake::start(Ending::Open);
    let at = |columns: &str, arguments: &[&str]| {
        shown(&fake.command(arguments).env("COLUMNS", columns).output().unwrap())
    };
    assert_snapshot!(at("80", &["ledger"]), @"
    exit: 0
    -- stdout
    PROBE               CLOSES  HITS  = READ  + UNDECODABLE  + NOT READ  LOST
    kprobes/open        yes       13       6              1           6     2
    sched/sched_switch  -          -       3              0           -     -
    NOT READ: LOST + DISABLED + FILTERED + OWN + UNEXPLAINED; LOST: in buffers, in a pause, or taken by another program; DISABLED: while it was off; OWN: by kprobed itself; NMISSED: skipped by the kernel

    CPU  READ  OVERRUN  RESETS  UNDECODABLE  PAGES
      0     6        2       1            1      4
    RESETS: emptied by another program

    SUBSCRIBER  CLOSES  READ  = DELIVERED  + QUEUED  + DROPPED  + LIMITED
             1  yes       20            4         1          1          2
    DROPPED: queue full; LIMITED: over its rate; REPLAYED: events of the history, no part of READ; EXPIRED: events of the history that are gone, no part of READ

    HISTORY READ  CLOSES  = STORED  + IN MEMORY  + NOT STORED  AVAILABLE  EXPIRED
               6  yes            4            1             1        100       50
    IN MEMORY: until the disk works again; NOT STORED: disk full, failing or too slow; AVAILABLE: on disk now; EXPIRED: deleted to stay within the limits
    the last error of the history: no space left on device

    EXPORTER  STATE    CLOSES  READ  = ACKNOWLEDGED  + QUEUED  + DROPPED  + EXPIRED
    jsonl     running  yes       15               8         2          0          1
    otlp      failing  -          ?               3         ?          2          0
    QUEUED: in the history; DROPPED: refused finally; EXPIRED: gone from the history; FAILURES: attempts, no part of READ
    `otlp` fails since 2026-01-31T12:00:00Z: connect to `http://127.0.0.1:4317`: connection refused
      its events wait in the history; the next attempt is at 2026-01-31T12:00:00Z
    the receiver of `otlp` refused events finally, the last time: 2 records had no body
    the place of `otlp` cannot be written down: the disk is full
      events would be sent again after a restart of the daemon
    `otlp` met 1 gap with an unknown number of missing events

    columns that are 0 in all rows are left out: `-o wide` shows them
    the ledger closes, and it is settled
    -- stderr
    note: no room for DISABLED, OWN, NMISSED: `-o wide` shows all columns
    note: no room for SAMPLED OUT, FILTERED, NOT SELECTED, REPLAYED, EXPIRED, SINCE: `-o wide` shows all columns
    note: no room for BYTES, OLDEST: `-o wide` shows all columns
    note: no room for NOT SELECTED, FAILURES, DESTINATION: `-o wide` shows all columns
    ");
    assert_snapshot!(at("200", &["ledger"]), @"
    exit: 0
    -- stdout
    PROBE               CLOSES  HITS  = READ  + UNDECODABLE  + NOT READ  LOST  DISABLED  OWN  NMISSED
    kprobes/open        yes       13       6              1           6     2         1    3        1
    sched/sched_switch  -          -       3              0           -     -         -    -        -
    NOT READ: LOST + DISABLED + FILTERED + OWN + UNEXPLAINED; LOST: in buffers, in a pause, or taken by another program; DISABLED: while it was off; OWN: by kprobed itself; NMISSED: skipped by the kernel

    CPU  READ  OVERRUN  RESETS  UNDECODABLE  PAGES
      0     6        2       1            1      4
    RESETS: emptied by another program

    SUBSCRIBER  CLOSES  READ  = DELIVERED  + QUEUED  + DROPPED  + LIMITED  + SAMPLED OUT  + FILTERED  + NOT SELECTED  REPLAYED  EXPIRED  SINCE
             1  yes       20            4         1          1          2              3           4               5         9        1  2026-01-31T12:00:00Z
    DROPPED: queue full; LIMITED: over its rate; REPLAYED: events of the history, no part of READ; EXPIRED: events of the history that are gone, no part of READ

    HISTORY READ  CLOSES  = STORED  + IN MEMORY  + NOT STORED  AVAILABLE  EXPIRED  BYTES  OLDEST
               6  yes            4            1             1        100       50   4096  2026-01-31T11:59:00Z
    IN MEMORY: until the disk works again; NOT STORED: disk full, failing or too slow; AVAILABLE: on disk now; EXPIRED: deleted to stay within the limits
    the last error of the history: no space left on device

    EXPORTER  STATE    CLOSES  READ  = ACKNOWLEDGED  + QUEUED  + DROPPED  + EXPIRED  + NOT SELECTED  FAILURES  DESTINATION
    jsonl     running  yes       15               8         2          0          1               4         0  /var/log/kprobed/events.jsonl
    otlp      failing  -          ?               3         ?          2          0               0         7  http://127.0.0.1:4317
    QUEUED: in the history; DROPPED: refused finally; EXPIRED: gone from the history; FAILURES: attempts, no part of READ
    `otlp` fails since 2026-01-31T12:00:00Z: connect to `http://127.0.0.1:4317`: connection refused
      its events wait in the history; the next attempt is at 2026-01-31T12:00:00Z
    the receiver of `otlp` refused events finally, the last time: 2 records had no body
    the place of `otlp` cannot be written down: the disk is full
      events would be sent again after a restart of the daemon
    `otlp` met 1 gap with an unknown number of missing events

    columns that are 0 in all rows are left out: `-o wide` shows them
    the ledger closes, and it is settled
    -- stderr
    ");
    assert_snapshot!(at("80", &["audit"]), @r"
    exit: 0
    -- stdout
    ENTRY  TIME                  ACTION   PRINCIPAL   CALL
        1  2026-01-31T12:00:01Z  changed  user:alice  CreateProbe
            PROBE kprobes/open
        2  2026-01-31T12:00:02Z  refused  uid:1000    DeleteProbe
            PROBE kprobes/open\x1b[2J; TIMES 41; it has no role
        3  2026-01-31T12:00:03Z  read     user:bob    StreamEvents
            PROBE kprobes/open; events
        4  2026-01-31T12:00:04Z  failed   user:alice  CreateProbe
            PROBE kprobes/open; the kernel answered EINVAL
    -- stderr
    ");
    assert_snapshot!(at("200", &["audit"]), @r"
    exit: 0
    -- stdout
    ENTRY  TIME                  ACTION   PRINCIPAL   CALL          PROBE                TIMES  REASON
        1  2026-01-31T12:00:01Z  changed  user:alice  CreateProbe   kprobes/open             -  -
        2  2026-01-31T12:00:02Z  refused  uid:1000    DeleteProbe   kprobes/open\x1b[2J     41  it has no role
        3  2026-01-31T12:00:03Z  read     user:bob    StreamEvents  kprobes/open             -  events
        4  2026-01-31T12:00:04Z  failed   user:alice  CreateProbe   kprobes/open             -  the kernel answered EINVAL
    -- stderr
    ");
    for arguments in [&["ledger", "-o", "json"][..], &["audit", "-o", "csv"]] {
        assert_eq!(at("80", arguments), at("200", arguments), "{arguments:?}");
    }
}

#[test]
fn doctor_and_version() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["doctor"]), @"
    exit: 1
    -- stdout
    host     testhost
    kernel   6.12.1 x86_64 #1 SMP
    boot     b0
    labels   zone=eu-1a
    daemon   0.1.0, since 2026-01-31T12:00:00Z
    tracefs  /sys/kernel/tracing, instance kprobed, clock mono
    buffers  2 CPUs, 4096 KiB each, sub-buffers of 4096 bytes

    CHECK            STATUS  FINDING
    tracefs_mounted  ok      mounted at /sys/kernel/tracing
    ftrace_enabled   failed  `kernel.ftrace_enabled` is 0
    fix: ftrace_enabled: sysctl kernel.ftrace_enabled=1

    FEATURE  AVAILABLE  FOR
    symstr   yes        symbols as text

    FOREIGN PROBE  DEFINITION
    other/thing    p:other/thing vfs_read
    -- stderr
    ");
    assert_snapshot!(fake.run(&["version"]), @"
    exit: 0
    -- stdout
    kprobectl 0.1.0
    kprobed 0.1.0 on testhost (Linux 6.12.1)
    -- stderr
    ");
    let nowhere = |more: &[&str]| {
        let arguments = [&["version", "--server", "/nonexistent/kprobed.sock"][..], more].concat();
        shown(&kprobectl(&arguments).output().unwrap())
    };
    assert_snapshot!(nowhere(&["--client"]), @"
    exit: 0
    -- stdout
    kprobectl 0.1.0
    -- stderr
    ");
    let answer = nowhere(&["-o", "json"]);
    assert!(answer.starts_with("exit: 3") && answer.contains("\"client_version\""), "{answer}");
    assert!(!answer.contains("daemon_version"), "{answer}");
    assert_snapshot!(nowhere(&[]), @"
    exit: 3
    -- stdout
    kprobectl 0.1.0
    -- stderr
    error: cannot connect to `unix:/nonexistent/kprobed.sock`: No such file or directory (os error 2)
    hint: is the daemon running? `systemctl status kprobed`
    hint: the default socket is `/run/kprobed/kprobed.sock`
    ");
}
