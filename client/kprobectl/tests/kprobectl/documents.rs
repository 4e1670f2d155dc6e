//! Tests of `apply`, `diff` and `-o yaml`: printed documents can be applied, and problems have
//! places.

use insta::assert_snapshot;

use super::fake::{Ending, Fake, Kept};

/// The document of a probe that the daemon has, as it prints it.
const OPEN: &str = "\
probe: kprobes/open
definition: p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string
enabled: true
filter: dfd == -100
labels:
  team: storage
  tier: \"2\"
owner: storage
description: slow opens
";

/// With a short name for the file.
fn run(fake: &Fake, arguments: &[&str], text: &str) -> String {
    let path = fake.file(text);
    let arguments: Vec<_> =
        arguments.iter().map(|one| if *one == "FILE" { path.as_str() } else { one }).collect();
    fake.run(&arguments).replace(&path, "FILE")
}

#[test]
fn what_is_printed_changes_nothing_when_it_is_applied() {
    let fake = Fake::start(Ending::Open);
    assert_eq!(fake.run(&["get", "open", "-o", "yaml"]), format!("exit: 0\n-- stdout\n{OPEN}-- stderr\n"));
    let all = fake.run(&["list", "-o", "yaml"]);
    let all = all.trim_start_matches("exit: 0\n-- stdout\n").split("-- stderr").next().unwrap();
    assert!(all.starts_with("---\nprobe: kprobes/open\n") && all.matches("---").count() == 2, "{all}");
    assert_snapshot!(run(&fake, &["apply", "-f", "FILE"], all), @"
    exit: 0
    -- stdout
    kprobes/open unchanged
    kprobes/waiting unchanged
    -- stderr
    ");
    assert_eq!(fake.changed_at_once(), [0; 0], "the daemon was asked to change nothing");
    assert_snapshot!(run(&fake, &["diff", "-f", "FILE"], all), @"
    exit: 0
    -- stdout
    -- stderr
    ");
}

#[test]
fn a_difference_is_shown_and_made() {
    let fake = Fake::start(Ending::Open);
    let wanted = OPEN.replace("-100", "-1").replace("  tier: \"2\"\n", "");
    assert_snapshot!(run(&fake, &["diff", "-f", "FILE"], &wanted), @r#"
    exit: 1
    -- stdout
    --- live/kprobes/open
    +++ FILE
    @@ -1,9 +1,8 @@
     probe: kprobes/open
     definition: p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string
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
    assert_snapshot!(run(&fake, &["diff", "-f", "FILE", "-o", "json"], &wanted), @r#"
    exit: 1
    -- stdout
    {"name":"kprobes/open","action":"configured","file":"FILE","diff":"--- live/kprobes/open\n+++ FILE\n@@ -1,9 +1,8 @@\n probe: kprobes/open\n definition: p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string\n enabled: true\n-filter: dfd == -100\n+filter: dfd == -1\n labels:\n   team: storage\n-  tier: \"2\"\n owner: storage\n description: slow opens\n"}
    -- stderr
    "#);
    assert_snapshot!(run(&fake, &["apply", "-f", "FILE", "--dry-run"], &wanted), @"
    exit: 0
    -- stdout
    kprobes/open configured
    -- stderr
    note: this would be done, in the tracing directory:
      echo 1 > instances/kprobed/events/kprobes/open/enable
    note: nothing was changed
    ");
    assert_snapshot!(run(&fake, &["apply", "-f", "FILE", "-o", "json"], &wanted), @r#"
    exit: 0
    -- stdout
    {"name":"kprobes/open","action":"configured"}
    -- stderr
    "#);
}

#[test]
fn a_definition_without_a_name_takes_that_of_its_document() {
    let kept = Kept::new("6.12.1");
    let fake = Fake::keeping(kept.clone());
    let short = "probe: mine/open\ndefinition: p do_sys_openat2\n";
    assert_snapshot!(run(&fake, &["diff", "-f", "FILE"], short), @"
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
    assert_snapshot!(run(&fake, &["apply", "-f", "FILE"], short), @"
    exit: 0
    -- stdout
    mine/open created
    -- stderr
    ");
    assert_eq!(kept.shown(), ["mine/open | p do_sys_openat2 |  | true"]);
    assert_snapshot!(run(&fake, &["apply", "-f", "FILE"], short), @"
    exit: 0
    -- stdout
    mine/open unchanged
    -- stderr
    ");
    assert_snapshot!(run(&fake, &["diff", "-f", "FILE"], short), @"
    exit: 0
    -- stdout
    -- stderr
    ");
}

#[test]
fn mistakes_change_nothing_and_have_places() {
    let fake = Fake::start(Ending::Open);
    let wrong = format!("{OPEN}fliter: x\nlease: two hours\n---\np:open do_sys_openat2\n");
    assert_snapshot!(run(&fake, &["apply", "-f", "FILE"], &wrong), @"
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
    let twice = format!("{OPEN}---\n{OPEN}");
    assert_snapshot!(run(&fake, &["diff", "-f", "FILE"], &twice), @"
    exit: 2
    -- stdout
    -- stderr
    error: FILE:11:8: `kprobes/open` stands in line 1 already
      | probe: kprobes/open
      |        ^^^^^^^^^^^^
    hint: write one document for each probe
    ");
    let refused = "probe: kprobes/new\ndefinition: p:new do_sys_openat2+3\n";
    assert_snapshot!(run(&fake, &["apply", "-f", "FILE"], refused), @"
    exit: 1
    -- stdout
    -- stderr
    FILE:2:13:
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | p:new do_sys_openat2+3
      |       ^^^^^^^^^^^^^^^^
    hint: `+5` works
    note: nothing was changed
    ");
    assert_snapshot!(run(&fake, &["delete", "-f", "FILE"], "# nothing\n"), @"
    exit: 2
    -- stdout
    -- stderr
    error: there is no document of a probe in what was given
    hint: `kprobectl get NAME -o yaml` prints one; a directory is searched for *.yaml, *.yml and *.json
    ");
    assert_snapshot!(fake.run(&["diff", "-f", "/nothing/there.yaml"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: cannot read `/nothing/there.yaml`: No such file or directory (os error 2)
    ");
}
