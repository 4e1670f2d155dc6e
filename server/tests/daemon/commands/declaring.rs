//! Tests of `apply`, `diff`, `delete -f` and `-o yaml`: documents make probes, printed documents can be applied, and
//! problems have places.

use std::time::Duration;

use insta::assert_snapshot;
use kprobed_client::Client;
use kprobed_client::api::ProbeState;
use tokio::time::timeout;

use super::Host;

/// A probe that records.
const OPEN: &str = "\
probe: kprobes/open
definition: p:kprobes/open do_sys_openat2 dfd=%di:s32
labels: {team: storage}
";

/// One that does not.
const READ: &str = "\
probe: kprobes/read
definition: r:kprobes/read vfs_read
enabled: false
labels: {team: storage}
";

/// Runs a command on a file with this text.
fn run(host: &Host, arguments: &[&str], text: &str) -> String {
    host.run(&[arguments, &["-f", &host.file(text)]].concat())
}

/// The document of the probe with a filter, as it is printed.
fn opened(host: &Host) -> String {
    let said = host.run(&["get", "open", "-o", "yaml"]);
    said.split_once("-- stdout\n").unwrap().1.replace("-- stderr\n", "")
}

/// The output of a command that did this to these probes, and said nothing else.
fn done(action: &str, probes: &[&str]) -> String {
    let lines: Vec<_> = probes.iter().map(|probe| format!("{probe} {action}\n")).collect();
    format!("exit: 0\n-- stdout\n{}-- stderr\n", lines.concat())
}

/// The probes: their names, whether they record, and their revisions.
async fn probes(client: &Client) -> Vec<(String, bool, String)> {
    let probes = client.list_probes("").await.unwrap();
    probes.into_iter().map(|probe| (probe.name, probe.enabled, probe.etag)).collect()
}

/// The kernel's list of events.
fn kernel_events(host: &Host) -> String {
    host.server.neighbour().text("kprobe_events").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_make_probes_and_change_nothing_twice() {
    let (host, both) = (Host::new().await, ["kprobes/open", "kprobes/read"]);
    let (client, text) = (host.client().await, format!("{OPEN}---\n{READ}"));
    let differs = run(&host, &["diff"], &text);
    assert!(differs.starts_with("exit: 1\n") && differs.contains("--- nothing\n"), "{differs}");
    assert!(both.iter().all(|name| differs.contains(&format!("+probe: {name}\n"))), "{differs}");
    let planned = run(&host, &["apply", "--dry-run"], &text);
    assert!(planned.starts_with(&done("created", &both)), "{planned}");
    assert!(planned.ends_with("note: nothing was changed\n"), "{planned}");
    assert!(probes(&client).await.is_empty() && kernel_events(&host).is_empty());
    assert_eq!(run(&host, &["apply"], &text), done("created", &both));
    let made = probes(&client).await;
    assert!(made.iter().map(|(_, enabled, _)| *enabled).eq([true, false]), "{made:?}");

    // Twice, and in other words, from a file and from standard input: the revision stays.
    let respelled = opened(&host).replace("p:kprobes/open ", "p:open  ");
    assert!(respelled.contains("p:open  do_sys_openat2"), "{respelled}");
    assert_eq!(run(&host, &["apply"], &text), done("unchanged", &both));
    assert_eq!(run(&host, &["apply"], &respelled), done("unchanged", &both[..1]));
    assert_eq!(host.fed(&["apply", "-f", "-"], respelled.as_bytes()), done("unchanged", &both[..1]));
    assert_eq!(probes(&client).await, made);

    let pruned = run(&host, &["apply", "--prune", "-l", "team=storage"], OPEN);
    assert_eq!(pruned, "exit: 0\n-- stdout\nkprobes/open unchanged\nkprobes/read deleted\n-- stderr\n");
    let deleted = run(&host, &["delete"], OPEN);
    assert!(deleted.starts_with("exit: 0\n"), "{deleted}");
    assert!(probes(&client).await.is_empty() && kernel_events(&host).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_filter_and_another_definition_are_made() {
    let host = Host::new().await;
    assert_eq!(run(&host, &["apply"], OPEN), done("created", &["kprobes/open"]));
    let filtered = format!("{OPEN}filter: dfd == -1\n");
    let differs = run(&host, &["diff"], &filtered);
    let is_change = |line: &&str| {
        let is_head = line.starts_with("--") || line.starts_with("++");
        line.starts_with(['+', '-']) && !is_head
    };
    assert_eq!(differs.lines().filter(is_change).collect::<Vec<_>>(), ["+filter: dfd == -1"], "{differs}");
    assert_eq!(run(&host, &["apply"], &filtered), done("configured", &["kprobes/open"]));
    let filter = host.server.neighbour().text("instances/i/events/kprobes/open/filter").unwrap();
    assert_eq!(filter.trim(), "dfd == -1");
    let wider = OPEN.replace("dfd=%di:s32", "dfd=%di:s32 flags=%dx:u64");
    assert_eq!(run(&host, &["apply", "--atomic"], &wider), done("configured", &["kprobes/open"]));
    assert_eq!(kernel_events(&host), "p:kprobes/open do_sys_openat2 dfd=%di:s32 flags=%dx:u64\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_has_ended_begins_again() {
    let host = Host::new().await;
    let client = host.client().await;
    let leased = format!("{OPEN}lease: 1s\n");
    assert_eq!(run(&host, &["apply"], &leased), done("created", &["kprobes/open"]));
    let expired = async {
        while client.get_probe("kprobes/open").await.unwrap().state() != ProbeState::Expired {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(30), expired).await.expect("its lease ends");
    assert_eq!(kernel_events(&host), "");
    let differs = run(&host, &["diff"], &leased);
    assert!(differs.starts_with("exit: 1\n") && differs.contains("\n-# its lease has ended\n"), "{differs}");
    assert_eq!(run(&host, &["apply"], &leased), done("configured", &["kprobes/open"]));
    let lasting = format!("{OPEN}lease: 1h\n");
    assert_eq!(run(&host, &["apply"], &lasting), done("configured", &["kprobes/open"]));
    assert_eq!(run(&host, &["apply"], &lasting), done("unchanged", &["kprobes/open"]));
    assert_eq!(kernel_events(&host), "p:kprobes/open do_sys_openat2 dfd=%di:s32\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_printed_changes_nothing_when_it_is_applied() {
    let host = Host::with_probes().await;
    let all = host.run(&["list", "-o", "yaml"]);
    let all = all.trim_start_matches("exit: 0\n-- stdout\n").split("-- stderr").next().unwrap();
    assert_snapshot!(all, @r#"
    ---
    probe: kprobes/open
    definition: p:open do_sys_openat2 dfd=%di:s32
    enabled: true
    filter: dfd == -100
    labels:
      team: storage
      tier: "2"
    owner: storage
    description: slow opens
    ---
    probe: kprobes/read
    definition: r:read vfs_read
    enabled: false
    "#);
    let before = host.run(&["list", "-o", "json"]);
    assert_snapshot!(run(&host, &["apply"], all), @"
    exit: 0
    -- stdout
    kprobes/open unchanged
    kprobes/read unchanged
    -- stderr
    ");
    assert_snapshot!(run(&host, &["diff"], all), @"
    exit: 0
    -- stdout
    -- stderr
    ");
    assert_eq!(host.run(&["list", "-o", "json"]), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_difference_is_shown_and_made() {
    let host = Host::with_probes().await;
    let wanted = opened(&host).replace("-100", "-1").replace("  tier: \"2\"\n", "");
    assert_snapshot!(run(&host, &["diff"], &wanted), @r#"
    exit: 1
    -- stdout
    --- live/kprobes/open
    +++ FILE
    @@ -1,9 +1,8 @@
     probe: kprobes/open
     definition: p:open do_sys_openat2 dfd=%di:s32
     enabled: true
    -filter: dfd == -100
    +filter: dfd == -1
     labels:
       team: storage
    -  tier: "2"
     owner: storage
     description: slow opens
    -- stderr
    "#);
    assert_snapshot!(run(&host, &["diff", "-o", "json"], &wanted), @r#"
    exit: 1
    -- stdout
    {"name":"kprobes/open","action":"configured","file":"FILE","diff":"--- live/kprobes/open\n+++ FILE\n@@ -1,9 +1,8 @@\n probe: kprobes/open\n definition: p:open do_sys_openat2 dfd=%di:s32\n enabled: true\n-filter: dfd == -100\n+filter: dfd == -1\n labels:\n   team: storage\n-  tier: \"2\"\n owner: storage\n description: slow opens\n"}
    -- stderr
    "#);
    assert_snapshot!(run(&host, &["apply", "--dry-run"], &wanted), @"
    exit: 0
    -- stdout
    kprobes/open configured
    -- stderr
    note: this would be done, in the tracing directory:
      echo 'dfd == -1' > instances/i/events/kprobes/open/filter
    note: nothing was changed
    ");
    assert_snapshot!(run(&host, &["apply", "-o", "json"], &wanted), @r#"
    exit: 0
    -- stdout
    {"name":"kprobes/open","action":"configured"}
    -- stderr
    "#);
    assert_eq!(opened(&host), wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_without_a_name_takes_that_of_its_document() {
    let host = Host::new().await;
    let short = "probe: mine/open\ndefinition: p do_sys_openat2\n";
    assert_snapshot!(run(&host, &["diff"], short), @"
    exit: 1
    -- stdout
    --- nothing
    +++ FILE
    @@ -0,0 +1,3 @@
    +probe: mine/open
    +definition: p do_sys_openat2
    +enabled: true
    -- stderr
    ");
    assert_snapshot!(run(&host, &["apply"], short), @"
    exit: 0
    -- stdout
    mine/open created
    -- stderr
    ");
    assert_snapshot!(run(&host, &["apply"], short), @"
    exit: 0
    -- stdout
    mine/open unchanged
    -- stderr
    ");
    assert_snapshot!(run(&host, &["diff"], short), @"
    exit: 0
    -- stdout
    -- stderr
    ");
    assert_snapshot!(host.run(&["list"]), @"
    exit: 0
    -- stdout
    NAME       KIND   STATE  LOCATION
    mine/open  entry  armed  do_sys_openat2+0x0
    -- stderr
    ");
}

/// A prototype has no name at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_written_later_is_no_change() {
    let (host, both) = (Host::new().await, ["mine/short", "mine/old"]);
    let short =
        "probe: mine/short\ndefinition: p vfs_read\n---\nprobe: mine/old\ndefinition: vfs_read(x64 file)\n";
    assert_eq!(run(&host, &["apply"], short), done("created", &both));
    assert!(kernel_events(&host).contains("p:mine/short vfs_read\n"), "{}", kernel_events(&host));
    assert_eq!(run(&host, &["apply"], short), done("unchanged", &both));
    let written = short.replace("p vfs_read", "p:mine/short vfs_read");
    assert_eq!(run(&host, &["diff"], &written), done("", &[]));
    let deleted = run(&host, &["delete"], &written);
    assert!(deleted.starts_with("exit: 0\n") && kernel_events(&host).is_empty(), "{deleted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_change_nothing_and_have_places() {
    let host = Host::with_probes().await;
    let open = opened(&host);
    let wrong = format!("{open}fliter: x\nlease: two hours\n---\np:open do_sys_openat2\n");
    assert_snapshot!(run(&host, &["apply"], &wrong), @"
    exit: 2
    -- stdout
    -- stderr
    error: FILE:10:1: `fliter` is not a key of a document
      | fliter: x
      | ^^^^^^
    hint: did you mean `filter`?
    error: FILE:11:8: `lease` is `two hours`, and must be a duration
      | lease: two hours
      |        ^^^^^^^^^
    hint: write a number with a unit, such as `90s`, `2h` or `1d 12h`; leave the key out for a probe that is to stay
    error: FILE:13:1: this is a text, and no document of a probe
      | p:open do_sys_openat2
      | ^^^^^^^^^^^^^^^^^^^^^
    hint: this is a line of definitions: `kprobectl add -f` takes those; a document begins with `probe: GROUP/EVENT`
    ");
    assert_snapshot!(run(&host, &["diff"], &format!("{open}---\n{open}")), @"
    exit: 2
    -- stdout
    -- stderr
    error: FILE:11:8: `kprobes/open` stands in line 1 already
      | probe: kprobes/open
      |        ^^^^^^^^^^^^
    hint: write one document for each probe
    ");
    let refused = "probe: kprobes/new\ndefinition: p:new do_sys_openat2+3\n";
    assert_snapshot!(run(&host, &["apply"], refused), @"
    exit: 1
    -- stdout
    -- stderr
    FILE:2:13:
    error: +3 is in the middle of the instruction at +0 of `do_sys_openat2` [BAD_INSN_BNDRY]
      | p:new do_sys_openat2+3
      |       ^^^^^^^^^^^^^^^^
    hint: +0 and +5 work
    note: nothing was changed
    ");
    assert_snapshot!(run(&host, &["delete"], "# nothing\n"), @"
    exit: 2
    -- stdout
    -- stderr
    error: there is no document of a probe in what was given
    hint: `kprobectl get NAME -o yaml` prints one; a directory is searched for *.yaml, *.yml and *.json
    ");
    assert_snapshot!(host.run(&["diff", "-f", "/nothing/there.yaml"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: cannot read `/nothing/there.yaml`: No such file or directory (os error 2)
    ");
    // A change that is right is not made beside one.
    let client = host.client().await;
    let before = probes(&client).await;
    let changed = open.replace("slow opens", "all opens");
    for (text, exit, said) in [
        ("probe: kprobes/x\nfliter: a\n", 2, "did you mean `filter`?"),
        ("p:x vfs_read\n", 2, "`kprobectl add -f` takes those"),
        (
            "probe: kprobes/x\ndefinition: p:kprobes/x do_sys_openat2+3\n",
            1,
            "is in the middle of the instruction",
        ),
        ("probe: kprobes/x\ndefinition: p:kprobes/y vfs_read\n", 1, "the definition is of `kprobes/y`"),
    ] {
        let refused = run(&host, &["apply"], &format!("{changed}---\n{text}"));
        assert!(refused.starts_with(&format!("exit: {exit}\n")), "{refused}");
        assert!(refused.contains(said) && refused.contains("FILE:"), "{refused}");
        assert!(exit == 2 || refused.contains("nothing was changed"), "{refused}");
        assert_eq!(probes(&client).await, before);
    }
}
