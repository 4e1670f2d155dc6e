//! Tests of commands that check and explain definitions.

use std::io::Write as _;
use std::process::Stdio;

use insta::assert_snapshot;

use super::fake::{Ending, Fake};

const DEFINITION: &str = "p:open do_sys_openat2";

#[test]
fn check_a_file() {
    let fake = Fake::start(Ending::Open);
    let path = fake.file("p:open do_sys_openat2\n-:x\np:open do_sys_openat2+3\n");
    assert_snapshot!(fake.run(&["check", "-f", &path]), @"
    exit: 1
    -- stdout
    1: accepted kprobes/open at do_sys_openat2+0x0
    2: accepted
    warning: this line deletes: there is nothing to check [NOTHING_TO_CHECK]
      | -:x
      |    ^
    3: refused BAD_INSN_BNDRY EILSEQ kprobes/open at do_sys_openat2+0x3
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | p:open do_sys_openat2+3
      |        ^^^^^^^^^^^^^^^^
    hint: `+5` works
    -- stderr
    ");
    let lines = fake.run(&["check", "-f", &path, "-o", "json"]);
    let lines: Vec<_> = lines.lines().filter(|line| line.starts_with('{')).collect();
    assert_snapshot!(lines.join("\n"), @r#"
    {"line":"1","offset":"0","definition":"p:open do_sys_openat2","check":{"verdict":"VERDICT_ACCEPTED","errno":0,"errno_name":"","rule":"","diagnostics":[],"kernel_definition":"p:kprobes/open do_sys_openat2","name":"kprobes/open","location":"do_sys_openat2+0x0","listing":[],"dialect":"DIALECT_UNSPECIFIED","arming":"ARMING_UNSPECIFIED","kernel_reason":"","canonical":"p:kprobes/open do_sys_openat2","by":"REFUSED_BY_UNSPECIFIED","explanation":"","lines":[],"notes":[]}}
    {"line":"2","offset":"0","definition":"-:x","check":{"verdict":"VERDICT_ACCEPTED","errno":0,"errno_name":"","rule":"","diagnostics":[{"severity":"SEVERITY_WARNING","code":"NOTHING_TO_CHECK","message":"this line deletes: there is nothing to check","hint":"","span_start":7,"span_end":21,"by":"REFUSED_BY_UNSPECIFIED"}],"kernel_definition":"","name":"","location":"","listing":[],"dialect":"DIALECT_UNSPECIFIED","arming":"ARMING_UNSPECIFIED","kernel_reason":"","canonical":"","by":"REFUSED_BY_UNSPECIFIED","explanation":"","lines":[],"notes":[]}}
    {"line":"3","offset":"0","definition":"p:open do_sys_openat2+3","check":{"verdict":"VERDICT_REFUSED","errno":84,"errno_name":"EILSEQ","rule":"BAD_INSN_BNDRY","diagnostics":[{"severity":"SEVERITY_ERROR","code":"BAD_INSN_BNDRY","message":"probe point is not an instruction boundary","hint":"`+5` works","span_start":7,"span_end":23,"by":"REFUSED_BY_KERNEL"}],"kernel_definition":"p:kprobes/open do_sys_openat2","name":"kprobes/open","location":"do_sys_openat2+0x3","listing":[],"nearest_before":0,"nearest_after":5,"dialect":"DIALECT_UNSPECIFIED","arming":"ARMING_UNSPECIFIED","kernel_reason":"BAD_INSN_BNDRY","canonical":"p:kprobes/open do_sys_openat2","by":"REFUSED_BY_KERNEL","explanation":"","lines":[],"notes":[]}}
    "#);
    assert_snapshot!(fake.run(&["check", "-f", "/nonexistent/probes.txt"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: cannot read `/nonexistent/probes.txt`: No such file or directory (os error 2)
    ");
}

#[test]
fn check_a_text_that_stands_for_several_probes() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["check", "open*"]), @"
    exit: 0
    -- stdout
    1: accepted kprobes/open at do_sys_openat2+0x0
    2: accepted kprobes/open at do_sys_openat2+0x0
    -- stderr
    note: `open*` is 2 probes, from `p:open do_sys_openat2` to `p:waiting do_sys_openat2`
    note: `open*` leaves out 2 functions
    ");
    assert_snapshot!(fake.run(&["check", "open*", "--explain"]), @"
    exit: 2
    -- stdout
    -- stderr
    note: `open*` is 2 probes, from `p:open do_sys_openat2` to `p:waiting do_sys_openat2`
    note: `open*` leaves out 2 functions
    error: `open*` stands for 2 probes
    hint: `--explain` is for one: write one of its lines
    ");
}

#[test]
fn check_many_from_standard_input() {
    let fake = Fake::start(Ending::Open);
    let mut child = fake
        .command(&["check", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // More than a message of gRPC may hold by default.
    let text = format!("p:open do_sys_openat2 {}\n", "x".repeat(78)).repeat(50_000);
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), lines.lines().count()), (Some(0), 50_000));
    assert_eq!(lines.lines().next_back(), Some("50000: accepted kprobes/open at do_sys_openat2+0x0"));
}

#[test]
fn explain() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["check", "--explain", DEFINITION]), @"
    exit: 0
    -- stdout
    accepted kprobes/open at do_sys_openat2+0x0

    > +0  0f 1f 44 00 00  nopl 0x0(%rax,%rax,1)
      +5  55              push %rbp

    p:functions/f f a=$arg1:s32
    assumed
      all is well
    -- stderr
    ");
    let printed = fake.run(&["check", "--explain", DEFINITION, "-o", "json"]);
    assert!(
        printed.contains(r#""explanation": "p:functions/f f a=$arg1:s32\nassumed\n  all is well\n""#),
        "{printed}"
    );
}

#[test]
fn check() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["check", DEFINITION]), @"
    exit: 0
    -- stdout
    accepted kprobes/open at do_sys_openat2+0x0

    > +0  0f 1f 44 00 00  nopl 0x0(%rax,%rax,1)
      +5  55              push %rbp
    -- stderr
    ");
    assert_snapshot!(fake.run(&["check", "p:open do_sys_openat2+3"]), @"
    exit: 1
    -- stdout
    refused BAD_INSN_BNDRY EILSEQ kprobes/open at do_sys_openat2+0x3
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | p:open do_sys_openat2+3
      |        ^^^^^^^^^^^^^^^^
    hint: `+5` works

    > +0  0f 1f 44 00 00  nopl 0x0(%rax,%rax,1)  +3 is inside of this instruction
    * +5  55              push %rbp              +5 works
    -- stderr
    ");
    assert_snapshot!(fake.run(&["check", "p:open do_sys_openat2+3", "-o", "json"]), @r#"
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
          "message": "probe point is not an instruction boundary",
          "hint": "`+5` works",
          "span_start": 7,
          "span_end": 23,
          "by": "REFUSED_BY_KERNEL"
        }
      ],
      "kernel_definition": "p:kprobes/open do_sys_openat2",
      "name": "kprobes/open",
      "location": "do_sys_openat2+0x3",
      "listing": [
        {
          "offset": 0,
          "code": "Dx9EAAA=",
          "text": "nopl 0x0(%rax,%rax,1)",
          "probeable": true,
          "refusal": ""
        },
        {
          "offset": 5,
          "code": "VQ==",
          "text": "push %rbp",
          "probeable": true,
          "refusal": ""
        }
      ],
      "nearest_before": 0,
      "nearest_after": 5,
      "dialect": "DIALECT_UNSPECIFIED",
      "arming": "ARMING_UNSPECIFIED",
      "kernel_reason": "BAD_INSN_BNDRY",
      "canonical": "p:kprobes/open do_sys_openat2",
      "by": "REFUSED_BY_KERNEL",
      "explanation": "",
      "lines": [],
      "notes": []
    }
    -- stderr
    "#);
    assert_snapshot!(fake.run(&["check", DEFINITION, "-o", "yaml"]), @r#"
    exit: 0
    -- stdout
    verdict: VERDICT_ACCEPTED
    errno: 0
    errno_name: ""
    rule: ""
    diagnostics: []
    kernel_definition: p:kprobes/open do_sys_openat2
    name: kprobes/open
    location: do_sys_openat2+0x0
    listing:
    - offset: 0
      code: Dx9EAAA=
      text: nopl 0x0(%rax,%rax,1)
      probeable: true
      refusal: ""
    - offset: 5
      code: VQ==
      text: push %rbp
      probeable: true
      refusal: ""
    dialect: DIALECT_UNSPECIFIED
    arming: ARMING_UNSPECIFIED
    kernel_reason: ""
    canonical: p:kprobes/open do_sys_openat2
    by: REFUSED_BY_UNSPECIFIED
    explanation: ""
    lines: []
    notes: []
    -- stderr
    "#);
}
