//! Tests of `apply`, `diff` and `-o yaml`: printed documents can be applied, and problems have places.

use insta::assert_snapshot;

use super::Host;

/// Runs a command on a file with this text.
fn run(host: &Host, arguments: &[&str], text: &str) -> String {
    host.run(&[arguments, &["-f", &host.file(text)]].concat())
}

/// The document of the probe with a filter, as it is printed.
fn opened(host: &Host) -> String {
    let said = host.run(&["get", "open", "-o", "yaml"]);
    said.split_once("-- stdout\n").unwrap().1.replace("-- stderr\n", "")
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
}
