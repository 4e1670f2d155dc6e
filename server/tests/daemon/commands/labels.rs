//! Tests of labels: on new and existing probes, and in selectors.

use std::collections::HashMap;

use insta::assert_snapshot;
use kprobed_client::Error;
use kprobed_client::api::{ListHitsRequest, ListProbesRequest, Probe, ProbeState, UpdateProbeRequest};
use serde_json::Value;
use tonic::Code;

use super::Host;
use crate::server::{self, Setup};

#[tokio::test(flavor = "multi_thread")]
async fn probes_are_made_with_labels() {
    let host = Host::new().await;
    let made = |arguments: &[&str]| {
        let output = host.command(&[&["add", "p do_sys_openat2", "-o", "json"], arguments].concat()).output();
        let output = output.unwrap();
        let probe: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", host.shown(&output)));
        probe["labels"].to_string()
    };
    assert_eq!(made(&["--label", "team=net", "--label", "tier="]), r#"{"team":"net","tier":""}"#);
    assert_eq!(made(&["--label", "b=1,a=x.y"]), r#"{"a":"x.y","b":"1"}"#);
    assert_eq!(made(&[]), "{}");
    let file = host.file("p:open do_sys_openat2\n");
    let from_file = host.run(&["add", "-f", &file, "--label", "team=net", "-o", "yaml"]);
    assert!(from_file.contains("labels:\n  team: net\n"), "{from_file}");
    assert_snapshot!(host.run(&["add", "p:a do_sys_openat2", "--label", "team"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: invalid value 'team' for '--label <KEY=VALUE>': `team` is not KEY=VALUE

    For more information, try '--help'.
    ");
    assert_snapshot!(host.run(&["add", "p:a do_sys_openat2", "--label", "team=a", "--label", "team=b"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: the label `team` is given twice
    ");
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_are_set_and_removed() {
    let host = Host::with_probes().await;
    assert_snapshot!(host.run(&["label", "open", "kprobes/read", "gone", "reviewed=", "tier-"]), @"
    exit: 1
    -- stdout
    kprobes/open reviewed=,team=storage
    kprobes/read reviewed=
    -- stderr
    error: there is no probe `gone` [NO_SUCH_PROBE]
    ");
    // What is there with another value stays, unless that is wanted.
    assert_snapshot!(host.run(&["label", "open", "team=net"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: `kprobes/open` has the label `team=storage`
    hint: `--overwrite` replaces its value
    ");
    assert_snapshot!(host.run(&["label", "open", "team=storage"]), @"
    exit: 0
    -- stdout
    kprobes/open reviewed=,team=storage
    -- stderr
    ");
    assert_snapshot!(host.run(&["label", "--overwrite", "open", "team=net", "--dry-run"]), @"
    exit: 0
    -- stdout
    kprobes/open reviewed=,team=net
    -- stderr
    note: nothing was changed
    ");
    assert_snapshot!(host.run(&["label", "-l", "team=storage", "reviewed-"]), @"
    exit: 0
    -- stdout
    kprobes/open team=storage
    -- stderr
    ");
    assert_snapshot!(host.run(&["label", "open"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: no label is given
    hint: write KEY=VALUE to set a label, KEY- to remove one
    ");
    assert_snapshot!(host.run(&["label", "team=net"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `kprobectl label` needs names of probes, or `--selector`
    ");
    assert_snapshot!(host.run(&["label", "open", "-l", "team", "team=net"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `open` names one probe, and `--selector` selects by labels
    hint: leave one of them out; a glob such as `kprobes/*` goes with `--selector`
    ");
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_are_found_by_labels() {
    let host = Host::with_probes().await;
    assert_snapshot!(host.run(&["list", "-l", "team=storage"]), @"
    exit: 0
    -- stdout
    NAME          KIND   STATE  LOCATION            FILTER
    kprobes/open  entry  armed  do_sys_openat2+0x0  dfd == -100
    -- stderr
    ");
    assert_snapshot!(host.run(&["list", "-l", "team=nobody"]), @"
    exit: 0
    -- stdout
    NAME  KIND  STATE  LOCATION
    -- stderr
    note: no probe matches
    ");
    assert_snapshot!(host.run(&["list", "-l", "team storage"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: a key is followed by `=`, `!=`, `in`, `notin`, a comma or the end [BAD_LABEL]
      | team storage
      |      ^
    hint: write `key=value`, `key!=value`, `key`, `!key`, `key in (a,b)` or `key notin (a,b)`, with commas between
    ");
    assert_snapshot!(host.run(&["disable", "-l", "team=storage"]), @"
    exit: 0
    -- stdout
    kprobes/open disabled
    -- stderr
    ");
    assert_snapshot!(host.run(&["disable", "kprobes/open", "kprobes/*", "kprobes/open*"]), @"
    exit: 0
    -- stdout
    kprobes/open disabled
    kprobes/read disabled
    -- stderr
    ");
    assert_snapshot!(host.run(&["enable", "-l", "team=nobody"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: no probe matches `team=nobody`
    hint: `kprobectl list` shows all probes
    ");
    assert_snapshot!(host.run(&["delete", "-l", "team=storage", "--dry-run"]), @"
    exit: 0
    -- stdout
    kprobes/open hits=0 nmissed=0
    -- stderr
    note: this would be done, in the tracing directory:
      echo 0 > instances/i/events/kprobes/open/enable
      echo 0 > instances/i/tracing_on
      echo '-:kprobes/open' >> kprobe_events
      echo 1 > instances/i/tracing_on
    note: nothing was changed
    ");
    assert_snapshot!(host.run(&["delete", "nothing*", "-l", "team=storage"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: no probe matches `nothing*` with labels `team=storage`
    hint: `kprobectl list` shows all probes
    ");
    assert_snapshot!(host.run(&["delete", "-l", " "]), @"
    exit: 2
    -- stdout
    -- stderr
    error: invalid value ' ' for '--selector <SELECTOR>': an empty selector would select all probes

    For more information, try '--help'.
    ");
    for words in
        [&["delete", "open", "-l", "a"], &["enable", "open", "-l", "a"], &["delete", "--all", "-l", "a"]]
    {
        let refused = host.run(words);
        assert!(refused.starts_with("exit: 2"), "{refused}");
    }
    assert!(host.run(&["hits", "-l", "team=storage"]).contains("kprobes/open"));
    let nobody = host.run(&["hits", "-l", "team=nobody"]);
    assert!(!nobody.contains("kprobes/open") && nobody.contains("note: no probe matches"), "{nobody}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_library_selects_and_changes() {
    let host = Host::with_probes().await;
    let client = host.client().await;
    let selected = |selector: &str| {
        let label_selector = selector.to_owned();
        client.select_probes(ListProbesRequest { label_selector, page_size: 1, ..Default::default() })
    };
    let names = |probes: Vec<Probe>| probes.into_iter().map(|probe| probe.name).collect::<Vec<_>>();
    assert_eq!(names(selected("team=storage").await.unwrap()), ["kprobes/open"]);
    assert_eq!(names(selected("").await.unwrap()), ["kprobes/open", "kprobes/read"], "all pages");
    assert!(matches!(selected("a b").await, Err(Error::Rpc(_))));
    let profiles = |selector: &str| {
        let label_selector = selector.to_owned();
        client.select_hits(ListHitsRequest { label_selector, ..Default::default() })
    };
    assert_eq!(profiles("team=storage").await.unwrap().len(), 1);
    assert_eq!(profiles("team=nobody").await.unwrap().len(), 0);

    let set = HashMap::from([("team".to_owned(), "net".to_owned())]);
    let before = client.get_probe("open").await.unwrap().etag;
    let changed = client.change_labels("open", set.clone(), vec!["tier".to_owned()]).await.unwrap();
    assert_eq!((changed.state(), &changed.labels), (ProbeState::Armed, &set));
    assert_eq!(names(selected("team in (net,storage),!tier").await.unwrap()), ["kprobes/open"]);
    assert_eq!(names(selected("team!=net").await.unwrap()), ["kprobes/read"]);
    let bad = HashMap::from([("a b".to_owned(), String::new())]);
    let refused = client.change_labels("open", bad, Vec::new()).await.unwrap_err();
    assert_eq!(refused.rpc().map(|rpc| rpc.reason.as_str()), Some("BAD_LABEL"), "{refused}");
    let stale = UpdateProbeRequest {
        name: "open".to_owned(),
        etag: before,
        set_labels: HashMap::from([("team".to_owned(), "other".to_owned())]),
        ..Default::default()
    };
    let refused = client.update_probe(stale).await.unwrap_err();
    assert_eq!(refused.rpc().map(|rpc| rpc.code), Some(Code::Aborted), "{refused}");
}

/// Labels are nothing of the kernel's.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_the_kernel_does_not_have_is_labelled() {
    let probes = vec![server::probe()];
    let host = Host::with(Setup { probes, foreign: &["p:kprobes/open vfs_read"], ..Setup::default() }).await;
    let client = host.client().await;
    let [team, lost] =
        [("team", "net"), ("state", "lost")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    client.change_labels("open", HashMap::from([team.clone()]), Vec::new()).await.unwrap();
    client.change_labels("open", HashMap::from([lost.clone()]), Vec::new()).await.unwrap();
    let probe = client.get_probe("open").await.unwrap();
    assert_eq!(
        (probe.state(), &probe.labels),
        (ProbeState::Failed, &HashMap::from([team, lost])),
        "{probe:?}"
    );
}
