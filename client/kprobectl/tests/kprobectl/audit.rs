//! Tests of `kprobectl audit`.

use std::fs;

use insta::assert_snapshot;
use kprobed_audit::{Action, Entry, ExportedEntry, Head, Record};

use super::command::kprobectl;
use super::fake::{Ending, Fake, audit, shown};

#[test]
fn entries_are_lines() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["audit"]), @r"
    exit: 0
    -- stdout
    2026-01-31T12:00:01Z  1  changed  user:alice  CreateProbe  kprobes/open
    2026-01-31T12:00:02Z  2  refused  uid:1000  DeleteProbe  kprobes/open\x1b[2J  (41 times)  it has no role
    2026-01-31T12:00:03Z  3  read     user:bob  StreamEvents  kprobes/open  events
    2026-01-31T12:00:04Z  4  failed   user:alice  CreateProbe  kprobes/open  the kernel answered EINVAL
    -- stderr
    ");
    assert_snapshot!(fake.run(&["audit", "-o", "wide", "-n", "1"]), @r"
    exit: 0
    -- stdout
    2026-01-31T12:00:04Z  4  failed   user:alice  CreateProbe  kprobes/open  the kernel answered EINVAL  rule: role `ops`, line 12  request: r-1  definition: p:kprobes/open do_sys_openat2
    -- stderr
    ");
}

#[test]
fn entries_are_selected_by_the_daemon() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["audit", "--action", "read", "--action", "failed", "-n", "1"]), @r"
    exit: 0
    -- stdout
    2026-01-31T12:00:04Z  4  failed   user:alice  CreateProbe  kprobes/open  the kernel answered EINVAL
    -- stderr
    ");
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

/// Lines of a file that an exporter has written, among events: entries with their numbers.
fn exported(host: &str, principal: &str, length: u64) -> Vec<String> {
    let mut head = Head::default();
    let mut lines = Vec::new();
    for sequence in 1..=length {
        let entry = Entry::new(Action::Changed, principal);
        let record = Record { sequence, time_unix_nano: 5, entry }.to_text().unwrap();
        let before = head.digest;
        head = head.then(&record);
        let entry = ExportedEntry { sequence, before, digest: head.digest, record };
        lines.push(entry.to_line(host).unwrap());
    }
    lines
}

/// The line that ends a chunk.
fn end(host: &str, head: &str) -> String {
    format!(r#"{{"type":"progress","host":"{host}","cursor":"b:1:2","read":0,"audit_head":"{head}"}}"#)
}

fn head(lines: &[String]) -> String {
    let line: serde_json::Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    format!("{}:{}", line["sequence"], line["digest"].as_str().unwrap())
}

#[test]
fn exported_entries_are_verified_without_a_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    let verify = |lines: &[String], more: &[&str]| {
        fs::write(&path, [lines, &[String::new()]].concat().join("\n")).unwrap();
        let file = path.display().to_string();
        let arguments = [&["--server", "unix:/nonexistent", "audit", "verify", "-f", &file], more].concat();
        shown(&kprobectl(&arguments).output().unwrap()).replace(&file, "FILE")
    };
    let event = r#"{"type":"event","host":"a","probe":"x/audit","fields":{}}"#.to_owned();
    let log = exported("a", "uid:1", 4);
    let last = head(&log);
    let whole =
        [std::slice::from_ref(&event), &log[..2], &[event.clone(), end("a", &head(&log[..2]))], &log[1..]]
            .concat();
    let said = verify(&whole, &[]);
    let good = format!("a: all 4 entries are as they were written; the head is {last}");
    assert!(said.starts_with("exit: 0") && said.contains(&good), "{said}");
    let said = verify(&whole, &["--head", &head(&log[..3]), "-o", "json"]);
    assert!(said.starts_with("exit: 0") && said.contains(r#""repeated": "1""#), "{said}");
    // An entry is missing, the text of one was changed, another log has the same numbers.
    let said = verify(&[&log[..1], &log[3..]].concat(), &[]);
    assert!(said.starts_with("exit: 1") && said.contains("entries 2 to 3 are not there"), "{said}");
    let changed = [&log[..1], &[log[1].replace("uid:1", "uid:2")], &log[2..]].concat();
    let said = verify(&changed, &[]);
    assert!(said.starts_with("exit: 1") && said.contains("`FILE`, line 2: entry 2 has the digest"), "{said}");
    let other = exported("a", "uid:2", 4);
    let rewritten = [&other[..], &[end("a", &head(&log[..2]))]].concat();
    let said = verify(&rewritten, &[]);
    assert!(said.starts_with("exit: 1") && said.contains("the log was rewritten"), "{said}");
    let said = verify(&other, &["--head", &last]);
    assert!(said.starts_with("exit: 1") && said.contains("the log was rewritten"), "{said}");
    // The end was cut off, which the head of a chunk and a noted one show.
    let said = verify(&[&log[..2], &[end("a", &last)]].concat(), &[]);
    assert!(said.starts_with("exit: 0") && said.contains(&format!("later head {last}")), "{said}");
    let said = verify(&log[..2], &["--head", &last]);
    assert!(said.starts_with("exit: 1") && said.contains("entry 4 was noted, and is not there"), "{said}");
    // Several hosts.
    let both = [&log[..], &exported("b", "uid:3", 2)].concat();
    let said = verify(&both, &[]);
    assert!(said.starts_with("exit: 0") && said.contains("b: all 2 entries"), "{said}");
    let said = verify(&both, &["--head", &last]);
    assert!(said.starts_with("exit: 2") && said.contains("is of one host"), "{said}");
    // Nothing, only heads, and half an entry, which at the end of a file is being written.
    let said = verify(&[], &[]);
    assert!(said.starts_with("exit: 1") && said.contains("no entries and no heads"), "{said}");
    let said = verify(&[end("a", &last)], &[]);
    assert!(said.starts_with("exit: 1") && said.contains("set `audit = true`"), "{said}");
    let torn = log[3][..90].to_owned();
    let said = verify(&[&log[..3], std::slice::from_ref(&torn)].concat(), &[]);
    assert!(said.starts_with("exit: 1") && said.contains("`FILE`, line 4: it is not an entry"), "{said}");
    fs::write(&path, format!("{}\n{torn}", log[0])).unwrap();
    let said = shown(&kprobectl(&["audit", "verify", "-f", &path.display().to_string()]).output().unwrap());
    assert!(said.starts_with("exit: 0") && said.contains("a: all 1 entries"), "{said}");
}
