//! Tests of `kprobectl aggregations`, also after `--keep`.

use insta::assert_snapshot;

use super::{Ending, Fake};

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
    {"name":"opens","spec":{"histogram":{"probe":"kprobes/open","keys":[{"field":{"field":"flags","scale":"KEY_SCALE_UNSPECIFIED","bucket_size":"0"}},{"field":{"field":"dfd","scale":"KEY_SCALE_LOG2","bucket_size":"0"}}],"sums":["dfd"],"filter":"","size":0,"include_self":false}},"create_time":"2026-01-31T12:00:00Z","expire_time":"2026-01-31T13:00:00Z","bound_to_stream":false,"keys":[{"name":"flags","hexadecimal":true,"unproven":false},{"name":"dfd","hexadecimal":false,"unproven":false}],"sums":[{"name":"dfd","hexadecimal":false,"unproven":false}],"creator":"","warnings":[]}
    {"name":"reads","spec":{"latency":{"start_probe":"kprobes/read","end_probe":"kprobes/read_return","match_field":"","start_filter":"","end_filter":"ret > 0","bucket_ns":"100000","keys":["CONTEXT_KEY_COMM"],"size":0,"include_self":false}},"create_time":"2026-01-31T12:00:00Z","bound_to_stream":true,"keys":[{"name":"latency_ns","hexadecimal":false,"unproven":false},{"name":"comm","hexadecimal":false,"unproven":false}],"sums":[{"name":"latency_ns","hexadecimal":false,"unproven":false}],"creator":"","warnings":[]}
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
      3 of them are in 2 rows that `--top` hides
    -- stderr
    ");
    assert_snapshot!(fake.run(&["aggregations", "read", "absent"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: there is no aggregation `absent`
    ");
    assert_snapshot!(fake.run(&["aggregations", "read", "opens", "--for", "1s"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: the following required arguments were not provided:
      --interval <DURATION>

    Usage: kprobectl aggregations read --interval <DURATION> --for <DURATION> <NAME>

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
fn keeping() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["hist", "open", "--by", "comm", "--keep", "mine", "--lease", "1h"]), @"
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
    assert_snapshot!(fake.run(&["stacks", "open", "--keep", "mine", "--for", "1s"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: the argument '--keep <NAME>' cannot be used with '--for <DURATION>'

    Usage: kprobectl stacks --keep <NAME> <PROBE>

    For more information, try '--help'.
    ");
}
