//! `apply`, `diff`, and `-o yaml`: what is printed can be applied, and mistakes are said with their places.

use insta::assert_snapshot;

use super::fake::{Ending, Fake};

/// The document of a probe that the daemon has, as it prints it.
const OPEN: &str = "\
probe: kprobes/open
definition: p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string
enabled: true
filter: dfd == -100
labels:
  team: storage
  tier: '2'
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
    let wanted = OPEN.replace("-100", "-1").replace("  tier: '2'\n", "");
    assert_snapshot!(run(&fake, &["diff", "-f", "FILE"], &wanted), @"");
    assert_snapshot!(run(&fake, &["diff", "-f", "FILE", "-o", "json"], &wanted), @"");
    assert_snapshot!(run(&fake, &["apply", "-f", "FILE", "--dry-run"], &wanted), @"");
    assert_snapshot!(run(&fake, &["apply", "-f", "FILE", "-o", "json"], &wanted), @"");
}

#[test]
fn mistakes_change_nothing_and_have_places() {
    let fake = Fake::start(Ending::Open);
    let wrong = format!("{OPEN}fliter: x\nlease: two hours\n---\np:open do_sys_openat2\n");
    assert_snapshot!(run(&fake, &["apply", "-f", "FILE"], &wrong), @"");
    let twice = format!("{OPEN}---\n{OPEN}");
    assert_snapshot!(run(&fake, &["diff", "-f", "FILE"], &twice), @"");
    let refused = "probe: kprobes/new\ndefinition: p:new do_sys_openat2+3\n";
    assert_snapshot!(run(&fake, &["apply", "-f", "FILE"], refused), @"");
    assert_snapshot!(run(&fake, &["delete", "-f", "FILE"], "# nothing\n"), @"");
    assert_snapshot!(fake.run(&["diff", "-f", "/nothing/there.yaml"]), @"");
}
