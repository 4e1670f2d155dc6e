//! Commands that count in the kernel, and the calls below them.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use kprobed_client::api::aggregation_spec::Aggregation as Kind;
use kprobed_client::api::stream_aggregation_request::Source;
use kprobed_client::api::{AggregationSpec, HistogramSpec};
use kprobed_client::{Client, ConnectOptions, Target};

use super::fake::{Ending, Fake};

/// Waits until the log of the fake ends so.
fn counted(fake: &Fake, last: &str) -> Vec<String> {
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        let log = fake.counted();
        if log.last().is_some_and(|entry| entry == last) || Instant::now() > limit {
            return log;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Counts for a moment.
fn run(fake: &Fake, arguments: &[&str]) -> String {
    fake.run(&[arguments, &["--duration", "100ms"]].concat())
}

// Dropping a stream tells the daemon while this thread waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_library_counts() {
    let fake = Fake::start(Ending::Open);
    let target = Target::Unix(fake.socket().to_owned());
    let client = Client::connect(target, ConnectOptions::default()).await.unwrap();
    let spec = || {
        let spec = HistogramSpec { probe: "open".to_owned(), ..Default::default() };
        AggregationSpec { aggregation: Some(Kind::Histogram(spec)) }
    };
    let made = client.create_aggregation("mine", spec(), Some(Duration::from_mins(1))).await.unwrap();
    assert_eq!((made.name.as_str(), made.bound_to_stream), ("mine", false));
    let error = client.create_aggregation("opens", spec(), None).await.unwrap_err();
    assert_eq!(error.rpc().unwrap().code, tonic::Code::AlreadyExists);
    let names: Vec<_> = client.list_aggregations().await.unwrap().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["opens", "reads"]);
    assert_eq!(client.get_aggregation("reads").await.unwrap().keys.len(), 2);
    assert_eq!(client.read_aggregation("opens").await.unwrap().hits, 8);
    assert_eq!(client.delete_aggregation("opens").await.unwrap().unwrap().hits, 32);
    let interval = Duration::from_millis(100);
    let mut stream = client.stream_aggregation(Source::Spec(spec()), interval, true).await.unwrap();
    assert!(stream.aggregation().bound_to_stream);
    assert!(!stream.next().await.unwrap().unwrap().delta);
    assert!(stream.next().await.unwrap().unwrap().delta);
    drop(stream);
    assert_eq!(counted(&fake, "the stream ended").last().unwrap(), "the stream ended");
}

#[test]
fn hist_counts_by_value() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["hist", "open"]), @"
    exit: 0
    -- stdout
    COUNT   SHARE
       32  100.0%

    32 hits, 0 dropped, 1 row
    -- stderr
    note: counting open for 100ms
    ");
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "filename,comm", "--sum", "dfd"]), @r"
    exit: 0
    -- stdout
    FILENAME     COMM  COUNT  SHARE  SUM(DFD)  AVERAGE(DFD)
    /tmp/\xff    cat      20  62.5%        80             4
    a;b c        ls        8  25.0%       800           100
    /etc/passwd  cat       4  12.5%       -40           -10

    32 hits, 0 dropped, 3 rows
    -- stderr
    note: counting open for 100ms
    ");
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "thread", "--sort", "key", "--top", "1"]), @"
    exit: 0
    -- stdout
    THREAD   COUNT  SHARE
    <...>-7      8  25.0%

    32 hits, 0 dropped, 3 rows
      24 of them are in 2 rows that `--top` does not show
    -- stderr
    note: counting open for 100ms
    ");
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "flags", "--by", "ip.sym", "--sum", "dfd", "--sort", "dfd"]), @"
    exit: 0
    -- stdout
     FLAGS  IP                  COUNT  SHARE  SUM(DFD)  AVERAGE(DFD)
    0x1000  0xffffffffc0001000      8  25.0%       800           100
       0x3  vfs_write              20  62.5%        80             4
     -0x64  vfs_read                4  12.5%       -40           -10

    32 hits, 0 dropped, 3 rows
    -- stderr
    note: counting open for 100ms
    ");
    assert_snapshot!(run(&fake, &["hist", "idle", "--by", "comm"]), @"
    exit: 0
    -- stdout
    0 hits, 0 dropped, 0 rows
    -- stderr
    note: counting idle for 100ms
    ");
}

#[test]
fn hist_draws_ranges() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "dfd.log2"]), @"
    exit: 0
    -- stdout
    DFD       COUNT
    (..., 0)      4 |@@@@@@@@@@                                          |
    [0, 1]        0 |                                                    |
    (1, 2]       20 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    (2, 4]        0 |                                                    |
    (4, 8]        0 |                                                    |
    (8, 16]       8 |@@@@@@@@@@@@@@@@@@@@                                |
    count 32
    p50 in (1, 2], p90 in (8, 16], p99 in (8, 16], greatest in (8, 16]

    32 hits, 0 dropped, 3 rows
    -- stderr
    note: counting open for 100ms
    ");
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "comm,bytes.buckets=4096", "--sum", "bytes"]), @"
    exit: 0
    -- stdout
    comm=cat
    BYTES      COUNT
    [0, 4K)        4 |@@@@@@@@@@                                          |
    [4K, 8K)       0 |                                                    |
    [8K, 12K)     20 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    count 24, average bytes 1.7, total bytes 40
    p50 in [8K, 12K), p90 in [8K, 12K), p99 in [8K, 12K), greatest in [8K, 12K)

    comm=ls
    BYTES         COUNT
    [400K, 404K)      8 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    count 8, average bytes 100, total bytes 800
    p50 in [400K, 404K), p90 in [400K, 404K), p99 in [400K, 404K), greatest in [400K, 404K)

    32 hits, 0 dropped, 3 rows
    -- stderr
    note: counting open for 100ms
    ");
}

#[test]
fn what_is_in_no_row_is_told() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["hist", "busy", "--by", "cpu", "--top", "2"]), @"
    exit: 0
    -- stdout
    CPU  COUNT  SHARE
      1     20  62.5%
      7      8  25.0%

    35 hits, 5 dropped, 3 rows (4 in the kernel)
      3 of them came while the rows were read, which do not have them yet
      4 of them are in 1 row that `--top` does not show
      5 dropped, which are in no row: the kernel's table was full; `--size` makes it larger, and coarser keys need fewer rows
    -- stderr
    note: counting busy for 100ms
    ");
    assert_snapshot!(run(&fake, &["latency", "busy", "opened"]), @"
    exit: 0
    -- stdout
    LATENCY             COUNT
    (512ns, 1.024us]        4 |@@@@@@@@@@                                          |
    (1.024us, 2.048us]      0 |                                                    |
    (2.048us, 4.096us]     20 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    (4.096us, 8.192us]      0 |                                                    |
    (8.192us, 16.38us]      0 |                                                    |
    (16.38us, 32.77us]      0 |                                                    |
    (32.77us, 65.54us]      0 |                                                    |
    (65.54us, 131.1us]      0 |                                                    |
    (131.1us, 262.1us]      0 |                                                    |
    (262.1us, 524.3us]      0 |                                                    |
    (524.3us, 1.049ms]      0 |                                                    |
    (1.049ms, 2.097ms]      8 |@@@@@@@@@@@@@@@@@@@@                                |
    count 32, average 377us, total 12.06ms
    p50 in (2.048us, 4.096us], p90 in (1.049ms, 2.097ms], p99 in (1.049ms, 2.097ms], greatest in (1.049ms, 2.097ms]

    35 measured, 36 starts, 2 not matched, 5 dropped, 3 rows (4 in the kernel)
      3 of them came while the rows were read, which do not have them yet
      5 dropped, which are in no row: the kernel's table was full; `--size` makes it larger, and coarser keys need fewer rows
      2 starts or ends not matched: the kernel's tables of what is to be matched were full; a filter of starts and ends helps
      1 starts without a measured end: still under way, begun again, held back by the filter of ends, or not matched or dropped
    -- stderr
    note: measuring from busy to opened for 100ms
    ");
}

#[test]
fn latency() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["latency", "read", "read_return"]), @"
    exit: 0
    -- stdout
    LATENCY             COUNT
    (512ns, 1.024us]        4 |@@@@@@@@@@                                          |
    (1.024us, 2.048us]      0 |                                                    |
    (2.048us, 4.096us]     20 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    (4.096us, 8.192us]      0 |                                                    |
    (8.192us, 16.38us]      0 |                                                    |
    (16.38us, 32.77us]      0 |                                                    |
    (32.77us, 65.54us]      0 |                                                    |
    (65.54us, 131.1us]      0 |                                                    |
    (131.1us, 262.1us]      0 |                                                    |
    (262.1us, 524.3us]      0 |                                                    |
    (524.3us, 1.049ms]      0 |                                                    |
    (1.049ms, 2.097ms]      8 |@@@@@@@@@@@@@@@@@@@@                                |
    count 32, average 377us, total 12.06ms
    p50 in (2.048us, 4.096us], p90 in (1.049ms, 2.097ms], p99 in (1.049ms, 2.097ms], greatest in (1.049ms, 2.097ms]

    32 measured, 32 starts, 0 not matched, 0 dropped, 3 rows
    -- stderr
    note: measuring from read to read_return for 100ms
    ");
    assert_snapshot!(run(&fake, &["latency", "read", "read_return", "--by", "comm", "--bucket", "100us", "--unit", "us", "--sort", "latency_ns"]), @"
    exit: 0
    -- stdout
    comm=<...>
    LATENCY (us)  COUNT
    [300, 400)        8 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    count 8, average 1500, total 12000
    p50 in [300, 400), p90 in [300, 400), p99 in [300, 400), greatest in [300, 400)

    comm=ls
    LATENCY (us)  COUNT
    [100, 200)       20 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    count 20, average 3, total 60
    p50 in [100, 200), p90 in [100, 200), p99 in [100, 200), greatest in [100, 200)

    comm=cat
    LATENCY (us)  COUNT
    [0, 100)          4 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    count 4, average 1, total 4
    p50 in [0, 100), p90 in [0, 100), p99 in [0, 100), greatest in [0, 100)

    32 measured, 32 starts, 0 not matched, 0 dropped, 3 rows
    -- stderr
    note: measuring from read to read_return for 100ms
    ");
    assert_snapshot!(run(&fake, &["latency", "read", "read_return", "--by", "cpu", "--top", "1", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {
      "name": "read-2",
      "time": "2026-01-31T12:00:04Z",
      "since": "2026-01-31T12:00:00Z",
      "delta": false,
      "last": true,
      "hits": 32,
      "dropped": 0,
      "kernel_rows": 3,
      "starts": 32,
      "match_dropped": 0,
      "not_shown": {
        "rows": 2,
        "count": 12
      },
      "rows": [
        {
          "keys": {
            "latency_ns": {
              "first": 2049,
              "last": 4096
            },
            "cpu": 1
          },
          "count": 20,
          "sums": {
            "latency_ns": 60000
          }
        }
      ],
      "distributions": [
        {
          "keys": {
            "cpu": 1
          },
          "count": 20,
          "sums": {
            "latency_ns": 60000
          },
          "percentiles": {
            "p50": {
              "first": 2049,
              "last": 4096
            },
            "p90": {
              "first": 2049,
              "last": 4096
            },
            "p99": {
              "first": 2049,
              "last": 4096
            },
            "max": {
              "first": 2049,
              "last": 4096
            }
          }
        }
      ]
    }
    -- stderr
    note: measuring from read to read_return for 100ms
    "#);
}

#[test]
fn stacks() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["stacks", "open", "--by", "comm", "--sum", "bytes"]), @"
    exit: 0
    -- stdout
    20 (62.5%)  comm=cat  bytes=80 (average 4)
        vfs_open+0x0/0x40
        do_filp_open+0xc1/0x120
        do_syscall_64+0x3b/0x90

    8 (25.0%)  comm=ls  bytes=800 (average 100)
        vfs_open+0x0/0x40
        0xffffffffc0001000

    4 (12.5%)  comm=cat  bytes=-40 (average -10)
        vfs_open+0x0/0x40
        do_filp_open+0x9a/0x120
        do_syscall_64+0x3b/0x90

    32 hits, 0 dropped, 3 rows
    -- stderr
    note: counting open for 100ms
    ");
    assert_snapshot!(run(&fake, &["stacks", "open", "-o", "folded"]), @"
    exit: 0
    -- stdout
    0xffffffffc0001000;vfs_open 8
    do_syscall_64;do_filp_open;vfs_open 24
    -- stderr
    note: counting open for 100ms
    note: 32 hits, 0 dropped, 3 rows
    ");
    assert_snapshot!(run(&fake, &["stacks", "open", "--by", "filename", "--sum", "bytes", "-o", "folded"]), @r"
    exit: 0
    -- stdout
    /tmp/\xff;do_syscall_64;do_filp_open;vfs_open 80
    a:b c;0xffffffffc0001000;vfs_open 800
    -- stderr
    note: counting open for 100ms
    note: 32 hits, 0 dropped, 3 rows
    note: left out: 1 with a sum below 1
    ");
    assert_snapshot!(run(&fake, &["stacks", "open", "--top", "1", "-o", "yaml"]), @"
    exit: 0
    -- stdout
    name: open-3
    time: 2026-01-31T12:00:04Z
    since: 2026-01-31T12:00:00Z
    delta: false
    last: true
    hits: 32
    dropped: 0
    kernel_rows: 3
    not_shown:
      rows: 2
      count: 12
    rows:
    - keys:
        stack:
        - vfs_open+0x0/0x40
        - do_filp_open+0xc1/0x120
        - do_syscall_64+0x3b/0x90
      count: 20
      sums: {}
    -- stderr
    note: counting open for 100ms
    ");
}

#[test]
fn readings_in_between() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "comm", "--interval", "1s"]), @"
    exit: 0
    -- stdout
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
    -- stderr
    note: counting open for 100ms
    ");
    assert_snapshot!(run(&fake, &["hist", "open", "--interval", "1s", "--deltas", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"name":"open-1","time":"2026-01-31T12:00:02Z","since":"2026-01-31T12:00:01Z","delta":true,"last":false,"hits":16,"dropped":0,"kernel_rows":1,"not_shown":{"rows":0,"count":0},"rows":[{"keys":{},"count":16,"sums":{}}]}
    {"name":"open-1","time":"2026-01-31T12:00:04Z","since":"2026-01-31T12:00:00Z","delta":false,"last":true,"hits":32,"dropped":0,"kernel_rows":1,"not_shown":{"rows":0,"count":0},"rows":[{"keys":{},"count":32,"sums":{}}]}
    -- stderr
    note: counting open for 100ms
    "#);
}

#[test]
fn what_can_not_be_counted() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["hist", "absent"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: there is no probe `absent`
    ");
    assert_snapshot!(fake.run(&["hist", "open", "--filter", "a +3"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | a +3
      |   ^^
    hint: `+5` works
    ");
    assert_snapshot!(fake.run(&["hist", "open", "--by", "dfd.log"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: invalid value 'dfd.log' for '--by <KEY>': `.log` is not known: behind a field stands `.log2`, `.buckets=N`, `.sym`, `.sym-offset` or `.exact`

    For more information, try '--help'.
    ");
    assert_snapshot!(fake.run(&["hist", "open", "--sum", "dfd", "--sort", "bytes"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: there is no column `bytes` to sort by
    hint: there are `count`, `key`, `dfd`
    ");
    assert_snapshot!(fake.run(&["stacks", "open", "--interval", "1s", "-o", "folded"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `-o folded` is one reading, and `--interval` asks for many
    hint: leave out `--interval`
    ");
    assert_snapshot!(fake.run(&["list", "-o", "folded"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `-o folded` is for call stacks, and this command has none
    hint: `kprobectl help stacks` shows what has
    ");
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "comm", "-o", "folded"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `-o folded` is for call stacks, and nothing is counted by them
    hint: `--by stack` counts by them
    ");
    assert_snapshot!(fake.run(&["latency", "a", "b", "--by", "stack"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: invalid value 'stack' for '--by <KEY>': a latency has no call stack: it is of two places

    For more information, try '--help'.
    ");
    assert_snapshot!(run(&fake, &["hist", "unread"]), @"
    exit: 1
    -- stdout
    -- stderr
    note: counting unread for 100ms
    error: what was counted could not be read at the end
    hint: the daemon's log says why: `journalctl -u kprobed`
    ");
    assert_snapshot!(fake.run(&["hist", "broken", "--by", "comm", "--interval", "1s"]), @"
    exit: 4
    -- stdout
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
    -- stderr
    note: counting broken until Ctrl-C
    error: shutting down
    hint: the daemon is starting or stopping: try again
    ");
}

#[test]
fn aggregations() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["aggregations"]), @"
    exit: 0
    -- stdout
    NAME   KIND       PROBES                               BY                     ENDS
    opens  histogram  kprobes/open                         flags,dfd.log2         2026-01-31T13:00:00Z
    reads  latency    kprobes/read -> kprobes/read_return  comm,buckets of 100us  with its command
    -- stderr
    ");
    assert_snapshot!(fake.run(&["aggregations", "list", "-o", "wide"]), @"
    exit: 0
    -- stdout
    NAME   KIND       PROBES                               BY                     ENDS                  SUMS  FILTER   CREATED
    opens  histogram  kprobes/open                         flags,dfd.log2         2026-01-31T13:00:00Z  dfd   -        2026-01-31T12:00:00Z
    reads  latency    kprobes/read -> kprobes/read_return  comm,buckets of 100us  with its command      -     ret > 0  2026-01-31T12:00:00Z
    -- stderr
    ");
    assert_snapshot!(fake.run(&["aggregations", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    [
      {
        "name": "opens",
        "kind": "histogram",
        "probes": [
          "kprobes/open"
        ],
        "by": [
          "flags",
          "dfd.log2"
        ],
        "sums": [
          "dfd"
        ],
        "filters": [
          ""
        ],
        "create_time": "2026-01-31T12:00:00Z",
        "expire_time": "2026-01-31T13:00:00Z",
        "bound_to_stream": false
      },
      {
        "name": "reads",
        "kind": "latency",
        "probes": [
          "kprobes/read",
          "kprobes/read_return"
        ],
        "by": [
          "comm"
        ],
        "sums": [],
        "match": "",
        "bucket_ns": 100000,
        "filters": [
          "",
          "ret > 0"
        ],
        "create_time": "2026-01-31T12:00:00Z",
        "expire_time": null,
        "bound_to_stream": true
      }
    ]
    -- stderr
    "#);
    assert_snapshot!(fake.run(&["aggregations", "read", "opens", "--top", "1"]), @"
    exit: 0
    -- stdout
    flags=0x3
    DFD     COUNT
    (1, 2]      5 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
    count 5, average dfd 4, total dfd 20
    p50 in (1, 2], p90 in (1, 2], p99 in (1, 2], greatest in (1, 2]

    8 hits, 0 dropped, 3 rows
      3 of them are in 2 rows that `--top` does not show
    -- stderr
    ");
    assert_snapshot!(fake.run(&["aggregations", "read", "absent"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: there is no aggregation `absent`
    ");
    assert_snapshot!(fake.run(&["aggregations", "read", "opens", "--duration", "1s"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: the following required arguments were not provided:
      --interval <DURATION>

    Usage: kprobectl aggregations read --interval <DURATION> --duration <DURATION> --server <TARGET> <NAME>

    For more information, try '--help'.
    ");
    assert_snapshot!(fake.run(&["aggregations", "delete", "opens", "absent", "reads"]), @"
    exit: 1
    -- stdout
    opens hits=32 dropped=0
    reads hits=32 dropped=0
    -- stderr
    error: there is no aggregation `absent`
    ");
    assert_eq!(fake.counted(), ["deleted opens", "deleted absent", "deleted reads"]);
}

#[test]
fn aggregations_are_followed_and_stay() {
    let fake = Fake::start(Ending::Open);
    let arguments = ["aggregations", "read", "reads", "--interval", "1s", "--deltas", "--duration", "300ms"];
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

#[test]
fn keeping() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["hist", "open", "--by", "comm", "--keep", "mine", "--ttl", "1h"]), @"
    exit: 0
    -- stdout
    mine
    -- stderr
    ");
    let log = fake.counted();
    assert!(log.len() == 1 && log[0].starts_with("made mine for Some(3600) s: "), "{log:?}");
    assert_snapshot!(fake.run(&["latency", "a", "b", "--keep", "opens"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: there is an aggregation `opens` already
    ");
    assert_snapshot!(fake.run(&["stacks", "open", "--keep", "mine", "--duration", "1s"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: the argument '--keep <NAME>' cannot be used with '--duration <DURATION>'

    Usage: kprobectl stacks --keep <NAME> --server <TARGET> <PROBE>

    For more information, try '--help'.
    ");
}

/// Starts to count, waits until it does, and sends a signal.
fn interrupted(fake: &Fake, arguments: &[&str]) -> (Option<i32>, String) {
    let mut child = fake.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    let note = notes.next().unwrap().unwrap();
    assert!(note.contains("counting open"), "{note}");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
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
    let (code, stdout) = interrupted(&fake, &["hist", "open", "--duration", "1h"]);
    assert_eq!(code, Some(4), "there was more to come");
    assert!(stdout.contains("32 hits, 0 dropped"), "{stdout}");
}

#[test]
fn a_killed_command_ends_its_stream() {
    let fake = Fake::start(Ending::Open);
    let mut child = fake.command(&["hist", "open"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    notes.next().unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(counted(&fake, "the stream ended"), ["made open-0", "the stream ended"]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let fake = Fake::start(Ending::Open);
    let mut command = fake.command(&["hist", "open", "--interval", "1s"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{stderr}");
    assert!(!stderr.contains("error"), "{stderr}");
    assert_eq!(counted(&fake, "the stream ended").last().unwrap(), "the stream ended");
}
