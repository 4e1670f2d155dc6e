//! Tests of `kprobectl hist`: tables and bars.

use insta::assert_snapshot;

use super::{Ending, Fake, shown};

#[test]
fn hist_counts_by_value() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(shown(&fake, &["hist", "open"]), @"
    COUNT   SHARE
       32  100.0%

    32 hits, 0 dropped, 1 row
    ");
    assert_snapshot!(shown(&fake, &["hist", "open", "--by", "filename,comm", "--sum", "dfd"]), @r"
    FILENAME     COMM  COUNT  SHARE  SUM(DFD)  AVERAGE(DFD)
    /tmp/\xff    cat      20  62.5%        80             4
    a;b c        ls        8  25.0%       800           100
    /etc/passwd  cat       4  12.5%       -40           -10

    32 hits, 0 dropped, 3 rows
    ");
    assert_snapshot!(shown(&fake, &["hist", "open", "--by", "thread", "--sort", "key", "--top", "1"]), @"
    THREAD   COUNT  SHARE
    <...>-7      8  25.0%

    32 hits, 0 dropped, 3 rows
      24 of them are in 2 rows that `--top` hides
    ");
    assert_snapshot!(shown(&fake, &["hist", "open", "--by", "flags", "--by", "ip.sym", "--sum", "dfd", "--sort", "dfd"]), @"
     FLAGS  IP                  COUNT  SHARE  SUM(DFD)  AVERAGE(DFD)
    0x1000  0xffffffffc0001000      8  25.0%       800           100
       0x3  vfs_write              20  62.5%        80             4
     -0x64  vfs_read                4  12.5%       -40           -10

    32 hits, 0 dropped, 3 rows
    ");
    assert_eq!(shown(&fake, &["hist", "idle", "--by", "comm"]), "0 hits, 0 dropped, 0 rows\n");
}

#[test]
fn hist_draws_ranges() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(shown(&fake, &["hist", "open", "--by", "dfd.log2"]), @"
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
    ");
    assert_snapshot!(shown(&fake, &["hist", "open", "--by", "comm,bytes.buckets=4096", "--sum", "bytes"]), @"
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
    ");
}

#[test]
fn what_is_in_no_row_is_told() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(shown(&fake, &["hist", "busy", "--by", "cpu", "--top", "2"]), @"
    CPU  COUNT  SHARE
      1     20  62.5%
      7      8  25.0%

    35 hits, 5 dropped, 3 rows (4 in the kernel)
      3 of them happened while the rows were read, and are in no row yet
      4 of them are in 1 row that `--top` hides
      700 more by kprobed's own threads are left out; `--include-self` counts them
      5 dropped, and in no row: the kernel's table was full; use a larger `--size` or coarser keys
    ");
}
