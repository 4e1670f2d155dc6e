//! Tests of `kprobectl stacks`: trees and folded lines.

use insta::assert_snapshot;

use super::{Ending, Fake, run, shown};

#[test]
fn stacks() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(shown(&fake, &["stacks", "open", "--by", "comm", "--sum", "bytes"]), @"
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
    ");
    assert_snapshot!(run(&fake, &["stacks", "open", "--folded"]), @"
    exit: 0
    -- stdout
    0xffffffffc0001000;vfs_open 8
    do_syscall_64;do_filp_open;vfs_open 24
    -- stderr
    note: counting open for 100ms
    note: 32 hits, 0 dropped, 3 rows
    ");
    assert_snapshot!(run(&fake, &["stacks", "open", "--by", "filename", "--sum", "bytes", "--folded"]), @r"
    exit: 0
    -- stdout
    /tmp/\xff;do_syscall_64;do_filp_open;vfs_open 80
    a:b c;0xffffffffc0001000;vfs_open 800
    -- stderr
    note: counting open for 100ms
    note: 32 hits, 0 dropped, 3 rows
    note: left out 1 stack with a sum below 1
    ");
    assert_snapshot!(shown(&fake, &["stacks", "open", "--top", "1", "-o", "yaml"]), @r#"
    name: open-3
    time: "2026-01-31T12:00:04Z"
    since: "2026-01-31T12:00:00Z"
    delta: false
    rows:
    - keys:
      - stack:
          frames:
          - vfs_open+0x0/0x40
          - do_filp_open+0xc1/0x120
          - do_syscall_64+0x3b/0x90
          incomplete: false
      count: "20"
      sums: []
    hits: "32"
    dropped: "0"
    kernel_rows: 3
    starts: "0"
    match_dropped: "0"
    key_names:
    - stack
    sum_names: []
    not_shown:
      rows: "2"
      count: "12"
    last: true
    "#);
}
