//! Tests of `kprobectl latency`.

use insta::assert_snapshot;

use super::{Ending, Fake, shown};

/// The account below what is shown: what was counted, and where the rest is.
fn account(shown: &str) -> &str {
    shown.rsplit("\n\n").next().unwrap()
}

#[test]
fn latency() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(shown(&fake, &["latency", "read", "read_return"]), @"
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
    ");
    assert_snapshot!(shown(&fake, &["latency", "read", "read_return", "--by", "comm", "--bucket", "100us", "--unit", "us", "--sort", "latency_ns"]), @"
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
    ");
    assert_snapshot!(shown(&fake, &["latency", "read", "read_return", "--by", "cpu", "--top", "1", "-o", "json"]), @r#"
    {
      "name": "read-2",
      "time": "2026-01-31T12:00:04Z",
      "since": "2026-01-31T12:00:00Z",
      "delta": false,
      "rows": [
        {
          "keys": [
            {
              "unsigned_bucket": {
                "first": "2049",
                "last": "4096"
              }
            },
            {
              "unsigned": "1"
            }
          ],
          "count": "20",
          "sums": [
            {
              "unsigned": "60000"
            }
          ]
        }
      ],
      "hits": "32",
      "dropped": "0",
      "kernel_rows": 3,
      "starts": "32",
      "match_dropped": "0",
      "key_names": [
        "latency_ns",
        "cpu"
      ],
      "sum_names": [
        "latency_ns"
      ],
      "not_shown": {
        "rows": "2",
        "count": "12"
      },
      "last": true
    }
    "#);
}

#[test]
fn what_is_in_no_row_is_told() {
    let fake = Fake::start(Ending::Open);
    let shown = shown(&fake, &["latency", "busy", "opened"]);
    assert_snapshot!(account(&shown), @"
    35 measured, 36 starts, 2 not matched, 5 dropped, 3 rows (4 in the kernel)
      3 of them happened while the rows were read, and are in no row yet
      700 more by kprobed's own threads are left out; `--include-self` counts them
      5 dropped, and in no row: the kernel's table was full; use a larger `--size` or coarser keys
      2 starts or ends not matched: the kernel's table of starts was full; use `--start-filter` and `--end-filter`
      1 start without a measured end: still open, replaced by a second start, excluded by `--end-filter`, not matched or dropped
    ");
}
