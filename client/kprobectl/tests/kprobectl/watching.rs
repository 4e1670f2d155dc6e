//! Tests of `list --watch`, and of the library's watch.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use insta::assert_snapshot;
use kprobed_client::WatchItem;
use kprobed_client::api::{WatchEvent, WatchProbesRequest};

use crate::fake::{Ending, Fake, client, interrupt};

#[test]
fn a_watch_prints_what_becomes_of_probes() {
    let fake = Fake::start(Ending::Open);
    // The fake ends the stream, and refuses to go on: so the command ends.
    assert_snapshot!(fake.run(&["list", "--watch"]), @"
    exit: 1
    -- stdout
    -  present  kprobes/open  armed
    -  present  kprobes/waiting  held-back  module `btrfs` is not loaded
    -  changed  kprobes/open  drifted  its event is switched off in the daemon's instance
    -  deleted  kprobes/waiting  held-back  module `btrfs` is not loaded
    -- stderr
    note: these are all; changes follow
    note: the daemon ended the stream; connecting again
    error: resumed behind a.3
    ");
    assert_snapshot!(fake.run(&["list", "--watch", "-o", "wide"]), @"
    exit: 1
    -- stdout
    -  present  kprobes/open  armed  entry  do_sys_openat2+0x0  dfd == -100  team=storage,tier=2
    -  present  kprobes/waiting  held-back  return  do_sys_openat2+0x0  -  -  module `btrfs` is not loaded
    -  changed  kprobes/open  drifted  entry  do_sys_openat2+0x0  dfd == -100  team=storage,tier=2  its event is switched off in the daemon's instance
    -  deleted  kprobes/waiting  held-back  return  do_sys_openat2+0x0  -  -  module `btrfs` is not loaded
    -- stderr
    note: these are all; changes follow
    note: the daemon ended the stream; connecting again
    error: resumed behind a.3
    ");
    assert_snapshot!(fake.run(&["list", "--watch", "-o", "yaml"]), @r#"
    exit: 1
    -- stdout
    ---
    # present, armed
    probe: kprobes/open
    definition: p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string
    enabled: true
    filter: dfd == -100
    labels:
      team: storage
      tier: "2"
    owner: storage
    description: slow opens
    ---
    # present, held-back
    probe: kprobes/waiting
    definition: p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string
    enabled: true
    ---
    # changed, drifted
    probe: kprobes/open
    definition: p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string
    enabled: true
    filter: dfd == -100
    labels:
      team: storage
      tier: "2"
    owner: storage
    description: slow opens
    ---
    # deleted, held-back
    probe: kprobes/waiting
    definition: p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string
    enabled: true
    -- stderr
    note: these are all; changes follow
    note: the daemon ended the stream; connecting again
    error: resumed behind a.3
    "#);
    let said = fake.run(&["list", "--watch", "-o", "json"]);
    let (lines, errors) = said.split_once("-- stderr\n").unwrap();
    assert!(errors.contains(r#""message":"resumed behind a.3""#), "{errors}");
    let events: Vec<serde_json::Value> = lines
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    let expected = ["PRESENT", "PRESENT", "SYNCED", "CHANGED", "DELETED"];
    assert_eq!(kinds, expected.map(|name| format!("WATCH_EVENT_{name}")));
    assert_eq!((&events[2]["probe"], &events[2]["resume_token"]), (&serde_json::Value::Null, &"a.1".into()));
    let json = lines.lines().find(|line| line.contains("DRIFTED") || line.contains("drifted")).unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(
        (&json["event"], &json["probe"]["state_reason"], &json["resume_token"]),
        (&"WATCH_EVENT_CHANGED".into(), &"SWITCHED_OFF".into(), &"a.2".into())
    );
}

#[test]
fn an_interrupt_is_how_a_watch_ends() {
    let fake = Fake::start(Ending::Endless);
    for arguments in [&["list", "--watch"][..], &["get", "open", "--watch"]] {
        let mut child =
            fake.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.next().unwrap().unwrap();
        interrupt(&child);
        lines.for_each(drop);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(!said.contains("error"), "{said}");
    }
}

#[test]
fn an_audit_log_that_the_daemon_ends_is_no_success() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["audit", "-f", "-n", "1", "-o", "name"]), @"
    exit: 4
    -- stdout
    4
    -- stderr
    error: the daemon ended the stream
    hint: is the daemon running? `systemctl status kprobed`
    ");
}

#[tokio::test]
async fn a_watch_goes_on_behind_what_was_read() {
    let fake = Fake::start(Ending::Open);
    let mut watch = client(fake.socket()).await.watch_probes(WatchProbesRequest::default()).await.unwrap();
    let (mut events, mut interruptions) = (Vec::new(), 0);
    let refused = loop {
        match watch.next().await {
            Ok(WatchItem::Message(message)) => events.push(message.event()),
            Ok(WatchItem::Interrupted(error)) => {
                assert!(error.is_none(), "the fake ends the stream in order: {error:?}");
                interruptions += 1;
            }
            Err(error) => break error,
        }
    };
    assert_eq!(
        events,
        [
            WatchEvent::Present,
            WatchEvent::Present,
            WatchEvent::Synced,
            WatchEvent::Changed,
            WatchEvent::Deleted
        ]
    );
    assert_eq!(interruptions, 1);
    assert_eq!(refused.to_string(), "resumed behind a.3");
}
