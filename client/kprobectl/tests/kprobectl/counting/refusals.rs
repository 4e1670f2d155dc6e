//! Tests of aggregations that cannot be counted.

use insta::assert_snapshot;

use super::{Ending, Fake, run};

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
    error: invalid value 'dfd.log' for '--by <KEY>': `.log` is unknown: write `.log2`, `.buckets=N`, `.sym`, `.sym-offset` or `.exact` after a field

    For more information, try '--help'.
    ");
    assert_snapshot!(fake.run(&["hist", "open", "--sum", "dfd", "--sort", "bytes"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: cannot sort by `bytes`: there is no such column
    hint: the columns are `count`, `key`, `dfd`
    ");
    assert_snapshot!(fake.run(&["stacks", "open", "--interval", "1s", "--folded"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: the argument '--interval <DURATION>' cannot be used with '--folded'

    Usage: kprobectl stacks --interval <DURATION> <PROBE>

    For more information, try '--help'.
    ");
    assert_snapshot!(fake.run(&["stacks", "open", "-o", "csv"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `-o name` and `-o csv` print a list, and this command has none
    hint: use `-o json`
    ");
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "comm", "--folded"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `--folded` prints call stacks, and this does not count by stack
    hint: add `--by stack`
    ");
    let json = fake.run(&["stacks", "open", "--folded", "-o", "json"]);
    assert!(
        json.starts_with("exit: 2") && json.contains("cannot be used with '--output <FORMAT>'"),
        "{json}"
    );
    assert_snapshot!(fake.run(&["latency", "a", "b", "--by", "stack"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: invalid value 'stack' for '--by <KEY>': a latency has no call stack: it lies between two probes

    For more information, try '--help'.
    ");
}
