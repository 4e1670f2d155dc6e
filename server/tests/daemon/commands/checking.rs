//! Tests of commands that check and explain definitions, and show functions and their code.

use insta::assert_snapshot;
use kprobed_client::api::{CreateProbeRequest, RefusedBy, Verdict};

use super::Host;
use crate::server::Setup;

const DEFINITION: &str = "p:open do_sys_openat2";

#[tokio::test(flavor = "multi_thread")]
async fn check() {
    let host = Host::new().await;
    assert_snapshot!(host.run(&["check", DEFINITION]), @"
    exit: 0
    -- stdout
    accepted kprobes/open at do_sys_openat2+0x0
    a hit takes 500±250 ns (an estimate: this host was not measured), armed by ftrace

    >  +0  0f 1f 44 00 00  nopl (%rax,%rax)
       +5  41 55           push %r13
       +7  49 89 f5        mov %rsi,%r13
      +10  41 54           push %r12
      +12  55              push %rbp
      +13  89 fd           mov %edi,%ebp
      +15  48 89 d7        mov %rdx,%rdi
      +18  53              push %rbx
      +19  48 83 ec 28     sub $0x28,%rsp
    -- stderr
    ");
    assert_snapshot!(host.run(&["check", "p:open do_sys_openat2+3"]), @"
    exit: 1
    -- stdout
    refused BAD_INSN_BNDRY EILSEQ kprobes/open at do_sys_openat2+0x3
    error: +3 is in the middle of the instruction at +0 of `do_sys_openat2` [BAD_INSN_BNDRY]
      | p:open do_sys_openat2+3
      |        ^^^^^^^^^^^^^^^^
    hint: +0 and +5 work

    >  +0  0f 1f 44 00 00              nopl (%rax,%rax)   +3 is inside of this instruction
    *  +5  41 55                       push %r13          +5 works
       +7  49 89 f5                    mov %rsi,%r13
      +10  41 54                       push %r12
      +12  55                          push %rbp
      +13  89 fd                       mov %edi,%ebp
      +15  48 89 d7                    mov %rdx,%rdi
      +18  53                          push %rbx
      +19  48 83 ec 28                 sub $0x28,%rsp
      +23  65 48 8b 1c 25 28 00 00 00  mov %gs:0x28,%rbx
    -- stderr
    ");
    assert_snapshot!(host.run(&["check", "p:open do_sys_openat2+3", "-o", "json"]), @r#"
    exit: 1
    -- stdout
    {
      "verdict": "VERDICT_REFUSED",
      "errno": 84,
      "errno_name": "EILSEQ",
      "rule": "BAD_INSN_BNDRY",
      "diagnostics": [
        {
          "severity": "SEVERITY_ERROR",
          "code": "BAD_INSN_BNDRY",
          "message": "+3 is in the middle of the instruction at +0 of `do_sys_openat2`",
          "hint": "+0 and +5 work",
          "span_start": 7,
          "span_end": 23,
          "by": "REFUSED_BY_KERNEL"
        }
      ],
      "kernel_definition": "p:kprobes/open do_sys_openat2+3",
      "name": "kprobes/open",
      "location": "do_sys_openat2+0x3",
      "listing": [
        {
          "offset": 0,
          "code": "Dx9EAAA=",
          "text": "nopl (%rax,%rax)",
          "probeable": true,
          "refusal": ""
        },
        {
          "offset": 5,
          "code": "QVU=",
          "text": "push %r13",
          "probeable": true,
          "refusal": ""
        },
        {
          "offset": 7,
          "code": "SYn1",
          "text": "mov %rsi,%r13",
          "probeable": true,
          "refusal": ""
        },
        {
          "offset": 10,
          "code": "QVQ=",
          "text": "push %r12",
          "probeable": true,
          "refusal": ""
        },
        {
          "offset": 12,
          "code": "VQ==",
          "text": "push %rbp",
          "probeable": true,
          "refusal": ""
        },
        {
          "offset": 13,
          "code": "if0=",
          "text": "mov %edi,%ebp",
          "probeable": true,
          "refusal": ""
        },
        {
          "offset": 15,
          "code": "SInX",
          "text": "mov %rdx,%rdi",
          "probeable": true,
          "refusal": ""
        },
        {
          "offset": 18,
          "code": "Uw==",
          "text": "push %rbx",
          "probeable": true,
          "refusal": ""
        },
        {
          "offset": 19,
          "code": "SIPsKA==",
          "text": "sub $0x28,%rsp",
          "probeable": true,
          "refusal": ""
        },
        {
          "offset": 23,
          "code": "ZUiLHCUoAAAA",
          "text": "mov %gs:0x28,%rbx",
          "probeable": true,
          "refusal": ""
        }
      ],
      "nearest_before": 0,
      "nearest_after": 5,
      "dialect": "DIALECT_KERNEL",
      "arming": "ARMING_UNSPECIFIED",
      "kernel_reason": "BAD_INSN_BNDRY",
      "spec": {
        "kind": "PROBE_KIND_ENTRY",
        "group": "",
        "event": "open",
        "place": {
          "symbol": {
            "module": "",
            "symbol": "do_sys_openat2",
            "offset": 3
          }
        },
        "arguments": []
      },
      "canonical": "p:kprobes/open do_sys_openat2+3",
      "by": "REFUSED_BY_KERNEL",
      "explanation": "",
      "lines": [],
      "notes": []
    }
    -- stderr
    "#);
    assert_snapshot!(host.run(&["check", "--explain", "p:open do_sys_openat2 dfd=%di:s32"]), @"
    exit: 0
    -- stdout
    accepted kprobes/open at do_sys_openat2+0x0
    a hit takes 520±260 ns (an estimate: this host was not measured), armed by ftrace

    >  +0  0f 1f 44 00 00  nopl (%rax,%rax)
       +5  41 55           push %r13
       +7  49 89 f5        mov %rsi,%r13
      +10  41 54           push %r12
      +12  55              push %rbp
      +13  89 fd           mov %edi,%ebp
      +15  48 89 d7        mov %rdx,%rdi
      +18  53              push %rbx
      +19  48 83 ec 28     sub $0x28,%rsp

    p:kprobes/open do_sys_openat2 dfd=%di:s32
    records each time do_sys_openat2 is reached
      dfd=%di:s32
          the low 32 bits of the register di, as signed
    fields
      __probe_ip: symbol
      dfd: s32
    assumed
      nothing checks that registers and stack hold what the writer expects at this address
    -- stderr
    ");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_a_file() {
    let host = Host::new().await;
    let path = host.file("p:open do_sys_openat2\n-:x\np:open do_sys_openat2+3\n");
    assert_snapshot!(host.run(&["check", "-f", &path]), @"
    exit: 1
    -- stdout
    1: accepted kprobes/open at do_sys_openat2+0x0
    2: refused NO_SUCH_PROBE ENOENT
    error: there is no probe `*/x` [NO_SUCH_PROBE]
      | -:x
      | ^^^
    3: refused BAD_INSN_BNDRY EILSEQ kprobes/open at do_sys_openat2+0x3
    error: +3 is in the middle of the instruction at +0 of `do_sys_openat2` [BAD_INSN_BNDRY]
      | p:open do_sys_openat2+3
      |        ^^^^^^^^^^^^^^^^
    hint: +0 and +5 work
    -- stderr
    ");
    assert_snapshot!(host.run(&["check", "-f", &path, "-o", "json"]), @r#"
    exit: 1
    -- stdout
    {"line":"1","offset":"0","definition":"p:open do_sys_openat2","check":{"verdict":"VERDICT_ACCEPTED","errno":0,"errno_name":"","rule":"","diagnostics":[],"kernel_definition":"p:kprobes/open do_sys_openat2","name":"kprobes/open","location":"do_sys_openat2+0x0","listing":[],"dialect":"DIALECT_KERNEL","arming":"ARMING_FTRACE","kernel_reason":"","canonical":"p:kprobes/open do_sys_openat2","by":"REFUSED_BY_UNSPECIFIED","explanation":"","lines":[],"notes":[]}}
    {"line":"2","offset":"22","definition":"-:x","check":{"verdict":"VERDICT_REFUSED","errno":2,"errno_name":"ENOENT","rule":"NO_SUCH_PROBE","diagnostics":[{"severity":"SEVERITY_ERROR","code":"NO_SUCH_PROBE","message":"there is no probe `*/x`","hint":"","span_start":0,"span_end":3,"by":"REFUSED_BY_KERNEL"}],"kernel_definition":"","name":"","location":"","listing":[],"dialect":"DIALECT_KERNEL","arming":"ARMING_UNSPECIFIED","kernel_reason":"NO_SUCH_PROBE","canonical":"-:x","by":"REFUSED_BY_KERNEL","explanation":"","lines":[],"notes":[]}}
    {"line":"3","offset":"26","definition":"p:open do_sys_openat2+3","check":{"verdict":"VERDICT_REFUSED","errno":84,"errno_name":"EILSEQ","rule":"BAD_INSN_BNDRY","diagnostics":[{"severity":"SEVERITY_ERROR","code":"BAD_INSN_BNDRY","message":"+3 is in the middle of the instruction at +0 of `do_sys_openat2`","hint":"+0 and +5 work","span_start":7,"span_end":23,"by":"REFUSED_BY_KERNEL"}],"kernel_definition":"p:kprobes/open do_sys_openat2+3","name":"kprobes/open","location":"do_sys_openat2+0x3","listing":[],"nearest_before":0,"nearest_after":5,"dialect":"DIALECT_KERNEL","arming":"ARMING_UNSPECIFIED","kernel_reason":"BAD_INSN_BNDRY","canonical":"p:kprobes/open do_sys_openat2+3","by":"REFUSED_BY_KERNEL","explanation":"","lines":[],"notes":[]}}
    -- stderr
    "#);
    assert_snapshot!(host.run(&["check", "-f", "/nonexistent/probes.txt"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: cannot read `/nonexistent/probes.txt`: No such file or directory (os error 2)
    ");
    // More than a message of gRPC may hold by default.
    let arguments: Vec<_> = (0..12).map(|number| format!("x{number}=%di")).collect();
    let text = format!("p:open do_sys_openat2 {}\n", arguments.join(" ")).repeat(50_000);
    let said = host.fed(&["check", "-f", "-"], text.as_bytes());
    let lines = || said.lines().filter(|line| line.contains(": accepted "));
    assert!(said.starts_with("exit: 0") && lines().count() == 50_000, "{}", &said[..400]);
    assert_eq!(lines().next_back(), Some("50000: accepted kprobes/open at do_sys_openat2+0x0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn check_a_text_that_stands_for_several_probes() {
    let host = Host::new().await;
    assert_snapshot!(host.run(&["check", "vfs_read*"]), @"
    exit: 0
    -- stdout
    1: accepted kprobes/p_vfs_read_0 at vfs_read+0x0
    2: accepted kprobes/p_vfs_readv_0 at vfs_readv+0x0
    -- stderr
    note: `vfs_read*` is 2 probes, from `p vfs_read` to `p vfs_readv`
    note: `vfs_read*` leaves out one function that a probe cannot be in, or that shares its name
    ");
    assert_snapshot!(host.run(&["check", "vfs_read*", "--explain"]), @"
    exit: 2
    -- stdout
    -- stderr
    note: `vfs_read*` is 2 probes, from `p vfs_read` to `p vfs_readv`
    note: `vfs_read*` leaves out one function that a probe cannot be in, or that shares its name
    error: `vfs_read*` stands for 2 probes
    hint: `--explain` is for one: write one of its lines
    ");
    // In a file, its probes have the number of its line.
    let file = host.file("p:open do_sys_openat2\nvfs_read*\n");
    assert_snapshot!(host.run(&["check", "-f", &file]), @"
    exit: 0
    -- stdout
    1: accepted kprobes/open at do_sys_openat2+0x0
    2: accepted kprobes/p_vfs_read_0 at vfs_read+0x0
    2: accepted kprobes/p_vfs_readv_0 at vfs_readv+0x0
    -- stderr
    note: `vfs_read*` is 2 probes, from `p vfs_read` to `p vfs_readv`
    note: `vfs_read*` leaves out one function that a probe cannot be in, or that shares its name
    ");
}

#[tokio::test(flavor = "multi_thread")]
async fn code() {
    let host = Host::new().await;
    assert!(host.run(&["add", "p:direct noop_direct_IO"]).starts_with("exit: 0"));
    assert_snapshot!(host.run(&["describe", "noop_direct_IO", "--code"]), @"
    exit: 0
    -- stdout
    OFFSET  CODE                              INSTRUCTION
        +0  f3 0f 1e fa                       endbr64
        +4  0f 1f 44 00 00                    nopl (%rax,%rax)
        +9  48 c7 c0 ea ff ff ff              mov $0xffffffffffffffea,%rax
       +16  c3                                ret
       +17  cc                                int3
       +18  cc                                int3
       +19  cc                                int3
       +20  cc                                int3
       +21  66 66 2e 0f 1f 84 00 00 00 00 00  nopw (%rax,%rax)
    -- stderr
    note: no room for PROBE: `-o wide` shows all columns
    ");
    assert_snapshot!(host.run(&["describe", "noop_direct_IO+6", "--code", "--return", "-o", "wide"]), @"
    exit: 0
    -- stdout
    OFFSET  CODE                              INSTRUCTION                   PROBE                          WHY
        +0  f3 0f 1e fa                       endbr64                       ftrace (entry) kprobes/direct  -
       >+4  0f 1f 44 00 00                    nopl (%rax,%rax)              ftrace (entry)                 -
        +9  48 c7 c0 ea ff ff ff              mov $0xffffffffffffffea,%rax  BAD_RETPROBE                   a return probe must be at the entry of a function, not at +9 of `noop_direct_IO`
       +16  c3                                ret                           BAD_RETPROBE                   a return probe must be at the entry of a function, not at +16 of `noop_direct_IO`
       +17  cc                                int3                          BAD_RETPROBE                   a return probe must be at the entry of a function, not at +17 of `noop_direct_IO`
       +18  cc                                int3                          BAD_RETPROBE                   a return probe must be at the entry of a function, not at +18 of `noop_direct_IO`
       +19  cc                                int3                          BAD_RETPROBE                   a return probe must be at the entry of a function, not at +19 of `noop_direct_IO`
       +20  cc                                int3                          BAD_RETPROBE                   a return probe must be at the entry of a function, not at +20 of `noop_direct_IO`
       +21  66 66 2e 0f 1f 84 00 00 00 00 00  nopw (%rax,%rax)              BAD_RETPROBE                   a return probe must be at the entry of a function, not at +21 of `noop_direct_IO`
    -- stderr
    ");
    assert_snapshot!(host.run(&["describe", "noop_direct_IO", "--code", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"offset":0,"code":"8w8e+g==","text":"endbr64","boundary":true,"entry":true,"probeable":true,"rule":"","refusal":"","arming":"ARMING_FTRACE","probed":false,"probes":["kprobes/direct"]}
    {"offset":4,"code":"Dx9EAAA=","text":"nopl (%rax,%rax)","boundary":true,"entry":true,"probeable":true,"rule":"","refusal":"","arming":"ARMING_FTRACE","probed":false,"probes":[]}
    {"offset":9,"code":"SMfA6v///w==","text":"mov $0xffffffffffffffea,%rax","boundary":true,"entry":false,"probeable":true,"rule":"","refusal":"","arming":"ARMING_BREAKPOINT","probed":false,"probes":[]}
    {"offset":16,"code":"ww==","text":"ret","boundary":true,"entry":false,"probeable":true,"rule":"","refusal":"","arming":"ARMING_BREAKPOINT","probed":false,"probes":[]}
    {"offset":17,"code":"zA==","text":"int3","boundary":true,"entry":false,"probeable":false,"rule":"TRAP_INSTRUCTION","refusal":"+17 of `noop_direct_IO` is an instruction that traps by itself","arming":"ARMING_UNSPECIFIED","probed":false,"probes":[]}
    {"offset":18,"code":"zA==","text":"int3","boundary":true,"entry":false,"probeable":false,"rule":"TRAP_INSTRUCTION","refusal":"+18 of `noop_direct_IO` is an instruction that traps by itself","arming":"ARMING_UNSPECIFIED","probed":false,"probes":[]}
    {"offset":19,"code":"zA==","text":"int3","boundary":true,"entry":false,"probeable":false,"rule":"TRAP_INSTRUCTION","refusal":"+19 of `noop_direct_IO` is an instruction that traps by itself","arming":"ARMING_UNSPECIFIED","probed":false,"probes":[]}
    {"offset":20,"code":"zA==","text":"int3","boundary":true,"entry":false,"probeable":false,"rule":"TRAP_INSTRUCTION","refusal":"+20 of `noop_direct_IO` is an instruction that traps by itself","arming":"ARMING_UNSPECIFIED","probed":false,"probes":[]}
    {"offset":21,"code":"ZmYuDx+EAAAAAAA=","text":"nopw (%rax,%rax)","boundary":true,"entry":false,"probeable":true,"rule":"","refusal":"","arming":"ARMING_BREAKPOINT","probed":false,"probes":[]}
    -- stderr
    "#);
    assert_snapshot!(host.run(&["describe", "absent", "--code", "-o", "json"]), @r#"
    exit: 1
    -- stdout
    -- stderr
    {"exit":1,"code":"NOT_FOUND","reason":"NO_SUCH_FUNCTION","message":"the kernel has no function `absent`","hints":["a function of a module that is not loaded is named `MODULE:FUNCTION`; a static function may have been inlined"]}
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn functions() {
    let host = Host::new().await;
    assert_snapshot!(host.run(&["functions", "vfs_read*"]), @"
    exit: 0
    -- stdout
    FUNCTION      MODULE  SIZE  TRACEABLE  BLACKLISTED  PLACE
    vfs_read      -        880  yes        no           vfs_read
    vfs_readlink  -        288  yes        no           vfs_readlink
    vfs_readv     -        752  yes        no           vfs_readv
    -- stderr
    ");
    assert_snapshot!(host.run(&["functions", "vfs_read", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"name":"vfs_read","module":"","size_bytes":"880","traceable":true,"blacklisted":false,"same_name":1,"place":"vfs_read"}
    {"name":"vfs_readlink","module":"","size_bytes":"288","traceable":true,"blacklisted":false,"same_name":1,"place":"vfs_readlink"}
    {"name":"vfs_readv","module":"","size_bytes":"752","traceable":true,"blacklisted":false,"same_name":1,"place":"vfs_readv"}
    -- stderr
    "#);
    assert_snapshot!(host.run(&["functions", "vfs_raed"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: no function matches `vfs_raed`
    hint: did you mean `vfs_read`?
    hint: did you mean `vcs_read`?
    hint: did you mean `vfs_readv`?
    ");
}

/// Without a name, the daemon gives one that is free.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_and_an_explanation_have_the_name_that_the_probe_gets() {
    let foreign = &["p:kprobes/p_vfs_read_0 do_sys_openat2"];
    let host = Host::with(Setup { foreign, ..Setup::default() }).await;
    let client = host.client().await;
    for (line, expected) in [
        ("p vfs_read", "kprobes/p_vfs_read_0_2"),
        ("p vfs_read", "kprobes/p_vfs_read_0_3"),
        ("p:named vfs_read", "kprobes/named"),
    ] {
        let shown = client.check_probe(line).await.unwrap();
        let explained = client.explain_probe(line).await.unwrap().explanation;
        let request = CreateProbeRequest { definition: line.to_owned(), enabled: true, ..Default::default() };
        let added = client.create_probe(request).await.unwrap();
        assert!(explained.starts_with(&format!("p:{expected} vfs_read\n")), "{explained}");
        assert_eq!((shown.name.as_str(), added.name.as_str()), (expected, expected));
        assert_eq!(shown.kernel_definition, added.kernel_definition);
    }
}

/// Hosts of a fleet are compared by it, and some have the probe already.
#[tokio::test(flavor = "multi_thread")]
async fn a_definition_whose_name_is_taken_has_its_meaning() {
    let host = Host::new().await;
    let client = host.client().await;
    let definition = "p:open do_sys_openat2 how=%dx".to_owned();
    let free = client.check_probe(&definition).await.unwrap();
    assert!(free.meaning.is_some(), "{free:?}");
    let request = CreateProbeRequest { definition: definition.clone(), ..Default::default() };
    client.create_probe(request).await.unwrap();
    let taken = client.check_probe(&definition).await.unwrap();
    assert_eq!((taken.rule.as_str(), taken.meaning), ("SAME_PROBE", free.meaning));
    let place = client.check_probe("p:open do_sys_openat2+3").await.unwrap();
    assert_eq!(place.meaning, None, "it is refused for more than its name");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_of_nothing_is_refused() {
    let host = Host::with(Setup { foreign: &["p:theirs/one vfs_read"], ..Setup::default() }).await;
    let (client, neighbour) = (host.client().await, host.server.neighbour());
    let definition = "p:mine/one vfs_read".to_owned();
    client.create_probe(CreateProbeRequest { definition, ..Default::default() }).await.unwrap();
    let verdict = async |line: &str| {
        let verdict = client.check_probe(line).await.unwrap();
        (verdict.errno, verdict.by(), verdict.rule)
    };
    for line in ["-:keep/nosuch", "-:nosuch", "-:mine/two", "-:theirs/two"] {
        assert_eq!(neighbour.add("kprobe_events", line).unwrap_err().errno(), 2, "{line}");
        let expected = (2, RefusedBy::Kernel, "NO_SUCH_PROBE".to_owned());
        assert_eq!(verdict(line).await, expected, "{line}");
    }
    let of_another = (2, RefusedBy::Kprobed, "FOREIGN_PROBE".to_owned());
    assert_eq!(verdict("-:theirs/one").await, of_another);
    for line in ["-:mine/one", "-:mine/", "-:one"] {
        assert_eq!(client.check_probe(line).await.unwrap().verdict(), Verdict::Accepted, "{line}");
    }
    assert_eq!(client.list_probes("").await.unwrap().len(), 1, "a check deletes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_do_not_exist_are_corrected() {
    let host = Host::new().await;
    for (definition, hint) in [("p _do_fork", "`kernel_clone`"), ("p vfs_raed", "`vfs_read`")] {
        let said = host.run(&["add", definition]);
        let is_corrected = said.lines().any(|line| line.starts_with("hint: ") && line.contains(hint));
        assert!(said.starts_with("exit: 1\n") && is_corrected, "{said}");
    }
}
