//! What cannot be counted.

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
    error: invalid value 'stack' for '--by <KEY>': a latency has no call stack: it lies between two places

    For more information, try '--help'.
    ");
}
