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
    assert_snapshot!(fake.run(&["stacks", "open", "--interval", "1s", "-o", "folded"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `-o folded` prints one reading, and `--interval` makes many
    hint: leave out `--interval`
    ");
    assert_snapshot!(fake.run(&["list", "-o", "folded"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `-o folded` prints call stacks, and this command has none
    hint: see `kprobectl help stacks`
    ");
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "comm", "-o", "folded"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `-o folded` prints call stacks, and this does not count by stack
    hint: add `--by stack`
    ");
    assert_snapshot!(fake.run(&["latency", "a", "b", "--by", "stack"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: invalid value 'stack' for '--by <KEY>': a latency has no call stack: it lies between two places

    For more information, try '--help'.
    ");
}
