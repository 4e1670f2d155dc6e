//! Tests of labels: on new and existing probes, and in selectors.

use std::collections::HashMap;

use insta::assert_snapshot;
use kprobed_client::Error;
use kprobed_client::api::{ListHitsRequest, ListProbesRequest, UpdateProbeRequest};

use super::fake::{Ending, Fake, client};

#[test]
fn probes_are_made_with_labels() {
    let fake = Fake::start(Ending::Open);
    let made = |arguments: &[&str]| {
        let output =
            fake.command(&[&["add", "p:open do_sys_openat2", "-o", "json"], arguments].concat()).output();
        let probe: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        probe["labels"].to_string()
    };
    assert_eq!(made(&["--label", "team=net", "--label", "tier="]), r#"{"team":"net","tier":""}"#);
    assert_eq!(made(&["--label", "b=1,a=x=y"]), r#"{"a":"x=y","b":"1"}"#);
    assert_eq!(made(&[]), "{}");
    let file = fake.file("p:open do_sys_openat2\n");
    let from_file = fake.run(&["add", "-f", &file, "--label", "team=net", "-o", "yaml"]);
    assert!(from_file.contains("labels:\n  team: net\n"), "{from_file}");
    assert_snapshot!(fake.run(&["add", "p:open do_sys_openat2", "--label", "team"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: invalid value 'team' for '--label <KEY=VALUE>': `team` is not KEY=VALUE

    For more information, try '--help'.
    ");
    assert_snapshot!(fake.run(&["add", "p:open do_sys_openat2", "--label", "team=a", "--label", "team=b"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: the label `team` is given twice
    ");
}

#[test]
fn labels_are_set_and_removed() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["label", "open", "kprobes/waiting", "gone", "reviewed=", "tier-"]), @"
    exit: 1
    -- stdout
    kprobes/open reviewed=,team=storage
    kprobes/waiting reviewed=
    -- stderr
    error: there is no probe `gone`
    ");
    // What is there with another value stays, unless that is wanted.
    assert_snapshot!(fake.run(&["label", "open", "team=net"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: `kprobes/open` has the label `team=storage`
    hint: `--overwrite` replaces its value
    ");
    assert_snapshot!(fake.run(&["label", "open", "team=storage"]), @"
    exit: 0
    -- stdout
    kprobes/open team=storage,tier=2
    -- stderr
    ");
    assert_snapshot!(fake.run(&["label", "--overwrite", "open", "team=net", "--dry-run"]), @"
    exit: 0
    -- stdout
    kprobes/open team=net,tier=2
    -- stderr
    note: nothing was changed
    ");
    assert_snapshot!(fake.run(&["label", "-l", "team=storage", "tier-"]), @"
    exit: 0
    -- stdout
    kprobes/open team=storage
    -- stderr
    ");
    assert_snapshot!(fake.run(&["label", "open"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: no label is given
    hint: write KEY=VALUE to set a label, KEY- to remove one
    ");
    assert_snapshot!(fake.run(&["label", "team=net"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `kprobectl label` needs names of probes, or `--selector`
    ");
    assert_snapshot!(fake.run(&["label", "open", "-l", "team", "team=net"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `open` names one probe, and `--selector` selects by labels
    hint: leave one of them out; a glob such as `kprobes/*` goes with `--selector`
    ");
}

#[test]
fn probes_are_found_by_labels() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["list", "-l", "team=storage"]), @"
    exit: 0
    -- stdout
    NAME          KIND   STATE  LOCATION            FILTER
    kprobes/open  entry  armed  do_sys_openat2+0x0  dfd == -100
    -- stderr
    ");
    assert_snapshot!(fake.run(&["list", "-l", "team=nobody"]), @"
    exit: 0
    -- stdout
    NAME  KIND  STATE  LOCATION
    -- stderr
    note: no probe matches
    ");
    assert_snapshot!(fake.run(&["list", "-l", "team storage"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | team storage
      |      ^^^^^^^
    hint: `+5` works
    ");
    assert_snapshot!(fake.run(&["disable", "-l", "team=storage"]), @"
    exit: 0
    -- stdout
    kprobes/open disabled
    -- stderr
    ");
    assert_snapshot!(fake.run(&["disable", "kprobes/open", "kprobes/*", "kprobes/open*"]), @"
    exit: 0
    -- stdout
    kprobes/open disabled
    kprobes/waiting disabled
    -- stderr
    note: `kprobes/waiting` is disabled: module `btrfs` is not loaded
    ");
    assert_snapshot!(fake.run(&["enable", "-l", "team=nobody"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: no probe matches `team=nobody`
    hint: `kprobectl list` shows all probes
    ");
    assert_snapshot!(fake.run(&["delete", "-l", "team=storage", "--dry-run"]), @"
    exit: 0
    -- stdout
    kprobes/open hits=7 nmissed=1
    -- stderr
    note: this would be done, in the tracing directory:
      echo '-:kprobes/open' >> kprobe_events
    note: nothing was changed
    ");
    assert_snapshot!(fake.run(&["delete", "nothing*", "-l", "team=storage"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: no probe matches `nothing*` with labels `team=storage`
    hint: `kprobectl list` shows all probes
    ");
    assert_snapshot!(fake.run(&["delete", "-l", " "]), @"
    exit: 2
    -- stdout
    -- stderr
    error: invalid value ' ' for '--selector <SELECTOR>': an empty selector would select all probes

    For more information, try '--help'.
    ");
    for words in
        [&["delete", "open", "-l", "a"], &["enable", "open", "-l", "a"], &["delete", "--all", "-l", "a"]]
    {
        let refused = fake.run(words);
        assert!(refused.starts_with("exit: 2"), "{refused}");
    }
    assert!(fake.run(&["hits", "-l", "team=storage"]).contains("kprobes/open"));
    assert!(!fake.run(&["hits", "-l", "team=nobody"]).contains("kprobes/open"));
}

#[tokio::test]
async fn the_library_selects_and_changes() {
    let fake = Fake::start(Ending::Open);
    let client = client(fake.socket()).await;
    let selected = |selector: &str| {
        let label_selector = selector.to_owned();
        client.select_probes(ListProbesRequest {
            label_selector,
            page_token: "2".to_owned(),
            ..Default::default()
        })
    };
    let names = |probes: Vec<kprobed_client::api::Probe>| {
        probes.into_iter().map(|probe| probe.name).collect::<Vec<_>>()
    };
    assert_eq!(names(selected("team=storage").await.unwrap()), ["kprobes/open"]);
    assert_eq!(
        names(selected("").await.unwrap()),
        ["kprobes/open", "kprobes/waiting"],
        "from the first page"
    );
    assert!(matches!(selected("a b").await, Err(Error::Rpc(_))));
    let profiles = |selector: &str| {
        let label_selector = selector.to_owned();
        client.select_hits(ListHitsRequest { label_selector, ..Default::default() })
    };
    assert_eq!(profiles("team=storage").await.unwrap().len(), 1);
    assert_eq!(profiles("team=nobody").await.unwrap().len(), 0);

    let set = HashMap::from([("team".to_owned(), "net".to_owned())]);
    let changed = client.change_labels("open", set.clone(), vec!["tier".to_owned()]).await.unwrap();
    assert_eq!(changed.labels, set);
    let stale = UpdateProbeRequest {
        name: "open".to_owned(),
        etag: "e0".to_owned(),
        set_labels: set,
        ..Default::default()
    };
    assert!(
        matches!(client.update_probe(stale).await, Err(Error::Rpc(error)) if error.code == tonic::Code::Aborted)
    );
}
