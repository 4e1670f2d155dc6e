//! Tests of `functions` and `describe --code`.

use insta::assert_snapshot;

use super::fake::{Ending, Fake};

#[test]
fn disasm() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["describe", "vfs_read", "--code"]), @"
    exit: 0
    -- stdout
    OFFSET  CODE            INSTRUCTION            PROBE
        +0  0f 1f 44 00 00  nopl 0x0(%rax,%rax,1)  ftrace (entry) kprobes/read
        +5  0f 0b           ud2                    BUG_TRAP
        +7  e8 00 00 00 00  call rw_verify_area    breakpoint (probed)
    -- stderr
    ");
    assert_snapshot!(fake.run(&["describe", "vfs_read+6", "--code", "--return", "-o", "wide"]), @"
    exit: 0
    -- stdout
    OFFSET  CODE            INSTRUCTION            PROBE                        WHY
        +0  0f 1f 44 00 00  nopl 0x0(%rax,%rax,1)  ftrace (entry) kprobes/read  -
       >+5  0f 0b           ud2                    BAD_RETPROBE                 this is why
        +7  e8 00 00 00 00  call rw_verify_area    BAD_RETPROBE (probed)        this is why
    -- stderr
    ");
    assert_snapshot!(fake.run(&["describe", "vfs_read", "--code", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"offset":0,"code":"Dx9EAAA=","text":"nopl 0x0(%rax,%rax,1)","boundary":true,"entry":true,"probeable":true,"rule":"","refusal":"","arming":"ARMING_FTRACE","probed":true,"probes":["kprobes/read"]}
    {"offset":5,"code":"Dws=","text":"ud2","boundary":true,"entry":false,"probeable":false,"rule":"BUG_TRAP","refusal":"this is why","arming":"ARMING_UNSPECIFIED","probed":false,"probes":[]}
    {"offset":7,"code":"6AAAAAA=","text":"call rw_verify_area","boundary":true,"entry":false,"probeable":true,"rule":"","refusal":"","arming":"ARMING_BREAKPOINT","probed":true,"probes":[]}
    -- stderr
    "#);
}

#[test]
fn a_name_of_several_functions_is_refused() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["describe", "twin", "--code"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: 2 functions are named `twin`
    hint: write `_stext+128`: 32 bytes
    hint: only its address names it: 32 bytes
    ");
    assert_snapshot!(fake.run(&["describe", "absent", "--code", "-o", "json"]), @r#"
    exit: 1
    -- stdout
    -- stderr
    {"exit":1,"code":"INVALID_ARGUMENT","reason":"BAD_INSN_BNDRY","message":"probe point is not an instruction boundary","hints":["`+5` works"]}
    "#);
}

#[test]
fn symbols() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["functions", "vfs_*"]), @"
    exit: 0
    -- stdout
    FUNCTION   MODULE  SIZE  TRACEABLE  BLACKLISTED  PLACE
    vfs_read   -         32  yes        no           vfs_read
    vfs_readf  -          0  no         yes          -
    -- stderr
    ");
    assert_snapshot!(fake.run(&["functions", "--module", "ext4", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"name":"vfs_read","module":"","size_bytes":"32","traceable":true,"blacklisted":false,"same_name":1,"place":"vfs_read"}
    {"name":"vfs_readf","module":"ext4","size_bytes":"0","traceable":false,"blacklisted":true,"same_name":2,"place":""}
    -- stderr
    "#);
    assert_snapshot!(fake.run(&["functions", "vfs_raed"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: no function matches `vfs_raed`
    hint: did you mean `vfs_read`?
    hint: did you mean `vfs_readf`?
    ");
}
