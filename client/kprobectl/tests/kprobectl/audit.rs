//! Tests of `kprobectl audit`.

use insta::assert_snapshot;

use super::fake::{Ending, Fake, audit};

#[test]
fn entries_are_lines() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["audit"]), @r"
    exit: 0
    -- stdout
    ENTRY  TIME                  ACTION   PRINCIPAL   CALL          PROBE                TIMES
        1  2026-01-31T12:00:01Z  changed  user:alice  CreateProbe   kprobes/open             -
        2  2026-01-31T12:00:02Z  refused  uid:1000    DeleteProbe   kprobes/open\x1b[2J     41
            it has no role
        3  2026-01-31T12:00:03Z  read     user:bob    StreamEvents  kprobes/open             -
            events
        4  2026-01-31T12:00:04Z  failed   user:alice  CreateProbe   kprobes/open             -
            the kernel answered EINVAL
    -- stderr
    ");
    assert_snapshot!(fake.run(&["audit", "-o", "wide", "-n", "1"]), @"
    exit: 0
    -- stdout
    ENTRY  TIME                  ACTION  PRINCIPAL   CALL         PROBE         TIMES  REASON                      RULE                 REQUEST  OPERATION  DEFINITION                     FILTER
        4  2026-01-31T12:00:04Z  failed  user:alice  CreateProbe  kprobes/open      -  the kernel answered EINVAL  role `ops`, line 12  r-1      -          p:kprobes/open do_sys_openat2  -
    -- stderr
    ");
}

#[test]
fn entries_have_the_forms_of_a_list() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["audit", "-o", "csv", "-n", "2"]), @r#"
    exit: 0
    -- stdout
    entry,time,action,principal,call,probe,times,reason,rule,request,operation,definition,filter
    3,2026-01-31T12:00:03Z,read,user:bob,StreamEvents,kprobes/open,,events,,,,,
    4,2026-01-31T12:00:04Z,failed,user:alice,CreateProbe,kprobes/open,,the kernel answered EINVAL,"role `ops`, line 12",r-1,,p:kprobes/open do_sys_openat2,
    -- stderr
    "#);
    assert_snapshot!(fake.run(&["audit", "-o", "name"]), @"
    exit: 0
    -- stdout
    1
    2
    3
    4
    -- stderr
    ");
    assert_snapshot!(fake.run(&["audit", "verify", "-o", "csv"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `-o name` and `-o csv` print a list, and this command has none
    hint: use `-o json`
    ");
}

#[test]
fn entries_are_selected_by_the_daemon() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["audit", "--action", "read", "--action", "failed", "-n", "1"]), @"
    exit: 0
    -- stdout
    ENTRY  TIME                  ACTION  PRINCIPAL   CALL         PROBE         REASON
        4  2026-01-31T12:00:04Z  failed  user:alice  CreateProbe  kprobes/open  the kernel answered
                                                                                EINVAL
    -- stderr
    ");
    // Further back than the last entries of the log.
    let oldest = fake.run(&["audit", "--action", "changed", "-n", "1"]);
    assert!(oldest.contains("1  2026-01-31T12:00:01Z  changed") && oldest.starts_with("exit: 0"), "{oldest}");
    let json = fake.run(&["audit", "--action", "read", "-o", "json"]);
    let line = json.lines().find(|line| line.starts_with('{')).unwrap();
    assert!(line.contains(r#""action":"AUDIT_ACTION_READ""#) && line.contains(r#""sequence":"3""#), "{line}");
    assert!(line.contains(r#"\"principal\":\"user:bob\""#), "the record as it was digested: {line}");
}

#[test]
fn a_log_as_it_was_written_is_verified() {
    let fake = Fake::start(Ending::Open);
    let head = audit::head();
    let said = fake.run(&["audit", "verify"]);
    assert!(said.starts_with("exit: 0"), "{said}");
    assert!(said.contains(&format!("all 4 entries are as they were written; the head is {head}")), "{said}");
    let said = fake.run(&["audit", "verify", "--head", &head, "-o", "json"]);
    assert!(said.starts_with("exit: 0") && said.contains(r#""holds": true"#), "{said}");
    // A later head than the log has, and another digest.
    let later = format!("5:{}", head.split_once(':').unwrap().1);
    let said = fake.run(&["audit", "verify", "--head", &later]);
    assert!(said.starts_with("exit: 1") && said.contains("its end was cut off"), "{said}");
    let other = format!("3:{}", head.split_once(':').unwrap().1);
    let said = fake.run(&["audit", "verify", "--head", &other]);
    assert!(said.starts_with("exit: 1") && said.contains("the log was rewritten"), "{said}");
    let said = fake.run(&["audit", "verify", "--head", "7"]);
    assert!(said.starts_with("exit: 2") && said.contains("write SEQUENCE:DIGEST"), "{said}");
}

#[test]
fn a_changed_entry_is_found() {
    let fake = Fake::start(Ending::Broken);
    let said = fake.run(&["audit", "verify"]);
    assert!(said.starts_with("exit: 1") && said.contains("entry 2 has the digest"), "{said}");
    assert!(said.contains("verified: 1 entries, up to 1:"), "{said}");
}
