//! Tests of `audit`.

use std::path::Path;

use insta::assert_snapshot;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use super::Host;

/// A host whose log has five changes. What is refused comes into the log by a task that this host has not.
async fn host() -> Host {
    let host = Host::with_probes().await;
    for arguments in
        [&["disable", "open"][..], &["update", "open", "--filter", "dfd == 3"], &["delete", "read"]]
    {
        let said = host.run(arguments);
        assert!(said.starts_with("exit: 0"), "{said}");
    }
    host
}

/// Runs the command; the ids of requests and operations, and digests, are the same each time.
fn run(host: &Host, arguments: &[&str]) -> String {
    without_ids(&host.run(&[&["audit"], arguments].concat()))
}

/// With `ID` in place of an operation (`85b6b744-5`) and of a request (a UUID), and with `DIGEST` in place of one.
fn without_ids(text: &str) -> String {
    let is_hex =
        |word: &str, length| word.len() == length && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut shown = String::new();
    for part in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '-') {
        let word = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let first = word.split('-').next().unwrap_or_default();
        shown.push_str(match () {
            () if is_hex(word, 64) => "DIGEST",
            () if is_hex(first, 8) && word.contains('-') => "ID",
            () => word,
        });
        shown.push_str(&part[word.len()..]);
    }
    shown
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_are_lines() {
    let host = host().await;
    assert_snapshot!(run(&host, &[]), @"
    exit: 0
    -- stdout
    ENTRY  TIME                  ACTION   PRINCIPAL  CALL                           PROBE         REASON
        1  2026-01-31T12:00:00Z  changed  user:root  CreateProbe                    kprobes/open  -
        2  2026-01-31T12:00:00Z  changed  user:root  CreateProbe (disabled)         kprobes/read  -
        3  2026-01-31T12:00:00Z  changed  user:root  ApplyProbes:update (disabled)  kprobes/open  -
        4  2026-01-31T12:00:00Z  changed  user:root  ApplyProbes:update (disabled)  kprobes/open  -
        5  2026-01-31T12:00:00Z  changed  user:root  ApplyProbes:delete             kprobes/read  -
    -- stderr
    ");
    assert_snapshot!(run(&host, &["-o", "csv", "-n", "2"]), @r#"
    exit: 0
    -- stdout
    entry,time,action,principal,call,probe,times,reason,rule,request,operation,definition,filter
    4,2026-01-31T12:00:00Z,changed,user:root,ApplyProbes:update (disabled),kprobes/open,,,"role `one`, line 4",,ID,p:kprobes/open do_sys_openat2 dfd=%di:s32,dfd == 3
    5,2026-01-31T12:00:00Z,changed,user:root,ApplyProbes:delete,kprobes/read,,,"role `one`, line 4",,ID,r:kprobes/read vfs_read,
    -- stderr
    "#);
    assert_snapshot!(run(&host, &["-o", "name"]), @"
    exit: 0
    -- stdout
    1
    2
    3
    4
    5
    -- stderr
    ");
    assert_snapshot!(run(&host, &["verify", "-o", "csv"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `-o name` and `-o csv` print a list, and this command has none
    hint: use `-o json`
    ");
}

/// The probe is off, and the change did not switch it off.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_labels_is_named() {
    let host = host().await;
    let said = host.run(&["label", "open", "team=storage"]);
    assert!(said.starts_with("exit: 0"), "{said}");
    assert_snapshot!(run(&host, &["-n", "1"]), @"
    exit: 0
    -- stdout
    ENTRY  TIME                  ACTION   PRINCIPAL  CALL               PROBE         REASON
        6  2026-01-31T12:00:00Z  changed  user:root  ApplyProbes:label  kprobes/open  -
    -- stderr
    ");
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_are_selected() {
    let host = host().await;
    assert_snapshot!(run(&host, &["--action", "changed", "-n", "1"]), @"
    exit: 0
    -- stdout
    ENTRY  TIME                  ACTION   PRINCIPAL  CALL                PROBE         REASON
        5  2026-01-31T12:00:00Z  changed  user:root  ApplyProbes:delete  kprobes/read  -
    -- stderr
    ");
    // Further back than the last entries of the log.
    assert_snapshot!(run(&host, &["--action", "changed", "--probe", "*/read"]), @"
    exit: 0
    -- stdout
    ENTRY  TIME                  ACTION   PRINCIPAL  CALL                    PROBE         REASON
        2  2026-01-31T12:00:00Z  changed  user:root  CreateProbe (disabled)  kprobes/read  -
        5  2026-01-31T12:00:00Z  changed  user:root  ApplyProbes:delete      kprobes/read  -
    -- stderr
    ");
    assert_snapshot!(run(&host, &["--action", "refused"]), @"
    exit: 0
    -- stdout
    ENTRY  TIME  ACTION  PRINCIPAL  CALL  PROBE  REASON
    -- stderr
    ");
    let json = host.run(&["audit", "--probe", "kprobes/open", "-o", "json"]);
    let line = json.lines().find(|line| line.starts_with('{')).unwrap();
    assert!(line.contains(r#""action":"AUDIT_ACTION_CHANGED""#), "{line}");
    assert!(line.contains(r#"\"action\":\"changed\""#), "the record as it was digested: {line}");
}

/// The head that `audit verify` prints.
fn head(host: &Host) -> String {
    let said = host.run(&["audit", "verify"]);
    assert!(said.starts_with("exit: 0"), "{said}");
    let head = said.split("the head is ").nth(1).unwrap();
    head.split_whitespace().next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_as_it_was_written_is_verified() {
    let host = host().await;
    let head = head(&host);
    assert_snapshot!(run(&host, &["verify"]), @"
    exit: 0
    -- stdout
    all 5 entries are as they were written; the head is 5:DIGEST
    -- stderr
    ");
    let verify = |head: &str| run(&host, &["verify", "--head", head]);
    assert!(host.run(&["audit", "verify", "--head", &head, "-o", "json"]).contains(r#""holds": true"#));
    let (last, digest) = head.split_once(':').unwrap();
    let last: u64 = last.parse().unwrap();
    // A later head than the log has, another digest, and none.
    assert_snapshot!(verify(&format!("{}:{digest}", last + 1)), @"
    exit: 1
    -- stdout
    verified: 5 entries, up to 5:DIGEST
    -- stderr
    error: the log ends with entry 5, and entry 6 was noted: its end was cut off, or a new log was begun
    ");
    assert_snapshot!(verify(&format!("{}:{digest}", last - 1)), @"
    exit: 1
    -- stdout
    verified: 3 entries, up to 4:DIGEST
    -- stderr
    error: entry 4 had the digest DIGEST when it was noted, and has DIGEST now: the log was rewritten
    ");
    assert_snapshot!(verify("7"), @"
    exit: 2
    -- stdout
    -- stderr
    error: invalid value '7' for '--head <HEAD>': `7` is not the head of an audit log: write SEQUENCE:DIGEST

    For more information, try '--help'.
    ");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_entry_is_found() {
    let host = host().await;
    let database = Path::new(&host.server.socket()).with_file_name("kprobed.db");
    let mut connection = SqliteConnectOptions::new().filename(database).connect().await.unwrap();
    sqlx::query("UPDATE audit SET record = replace(record, 'read', 'raed') WHERE sequence = 2")
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    assert_snapshot!(run(&host, &["verify"]), @"
    exit: 1
    -- stdout
    verified: 1 entries, up to 1:DIGEST
    -- stderr
    error: entry 2 has the digest DIGEST, and its text gives DIGEST: it, or one before it, was changed
    ");
}
