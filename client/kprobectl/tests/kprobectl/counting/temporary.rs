//! Tests of counting what is no probe yet: temporary probes, counted and taken away.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use super::super::fake::{Ending, Fake, Kept, interrupt, shown};
use super::merging;

/// The fake has no probe of a name with `nothing` in it, and calls all that it makes `kprobes/open`.
const FUNCTION: &str = "nothing_of_that_name";

fn created(definition: &str) -> String {
    format!("create {definition}, enabled: false, held by: h-1")
}

const DELETED: &str = "delete kprobes/open";

#[test]
fn a_function_or_a_definition_is_counted_and_leaves_nothing() {
    // What a name stands for is the daemon's to say.
    for (command, argument, definition) in [
        ("hist", FUNCTION, FUNCTION),
        ("stacks", FUNCTION, FUNCTION),
        ("hist", "p do_sys_openat2 dfd", "p do_sys_openat2 dfd"),
    ] {
        let fake = Fake::start(Ending::Open);
        let told = super::run(&fake, &[command, argument]);
        assert!(told.starts_with("exit: 0") && told.contains("32 hits, 0 dropped"), "{told}");
        assert!(told.contains("note: counting kprobes/open for 100ms"), "{told}");
        assert_eq!(fake.log_of_holds(), ["hold", &created(definition), DELETED, "hold ended"], "{argument}");
        let log = super::counted(&fake, "the stream ended");
        assert_eq!(log, ["made kprobes/open-0", "deleted kprobes/open-0", "the stream ended"], "{argument}");
    }
}

#[test]
fn the_latency_of_a_function_is_that_from_its_entry_to_its_return() {
    let fake = Fake::start(Ending::Open);
    let told = super::run(&fake, &["latency", "vfs_read"]);
    assert!(told.starts_with("exit: 0") && told.contains("32 measured, 32 starts"), "{told}");
    let log = fake.log_of_holds();
    let expected = ["hold", &created("p vfs_read"), &created("r vfs_read"), DELETED, DELETED, "hold ended"];
    assert_eq!(log, expected);
    // A probe that exists is counted as it is, and the other end is defined.
    let fake = Fake::start(Ending::Open);
    let told = super::run(&fake, &["latency", "open", "r do_sys_openat2"]);
    assert!(told.contains("measuring from open to kprobes/open"), "{told}");
    assert_eq!(fake.log_of_holds(), ["hold", &created("r do_sys_openat2"), DELETED, "hold ended"]);
    let refused = fake.run(&["latency", "p:a vfs_read"]);
    assert!(
        refused.starts_with("exit: 2") && refused.contains("write `kprobectl latency FUNCTION`"),
        "{refused}"
    );
}

#[test]
fn a_command_that_is_killed_leaves_its_probes_to_the_hold() {
    let fake = Fake::start(Ending::Open);
    let mut child = fake.command(&["hist", FUNCTION]).stderr(Stdio::piped()).spawn().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    let note = notes.next().unwrap().unwrap();
    assert!(note.contains("counting"), "{note}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fake.log_of_holds(), ["hold", &created(FUNCTION), "hold ended"]);
    assert_eq!(super::counted(&fake, "the stream ended").last().unwrap(), "the stream ended");
}

#[test]
fn what_is_kept_needs_probes_that_stay() {
    let fake = Fake::start(Ending::Open);
    insta::assert_snapshot!(fake.run(&["hist", FUNCTION, "--keep", "mine"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: `--keep` counts on when the command has ended, and `nothing_of_that_name` is not a probe that stays
    hint: define it first: `kprobectl add --disabled 'NAME=nothing_of_that_name'`
    ");
    insta::assert_snapshot!(fake.run(&["latency", "vfs_read", "--keep", "mine"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: `--keep` counts on when the command has ended, and `p vfs_read` is not a probe that stays
    hint: define it first: `kprobectl add --disabled 'NAME=vfs_read'` and `kprobectl add --disabled 'NAME_END=vfs_read%return'`
    ");
    assert_eq!(fake.counted(), Vec::<String>::new());
}

#[test]
fn several_functions_are_not_one_probe() {
    let kept = Kept::new("6.12.1");
    let fake = Fake::keeping(kept.clone());
    insta::assert_snapshot!(fake.run(&["stacks", "twin_*", "--for", "1s"]), @"
    exit: 1
    -- stdout
    -- stderr
    note: `twin_*` is 2 probes, from `p twin_a` to `p twin_b`
    note: `twin_*` leaves out 2 functions
    error: `twin_*` means 2 probes, and this counts one
    hint: `kprobectl hits --top 20 'twin_*' --for 5s` counts how often each of them is hit
    ");
    assert!(kept.made().is_empty(), "{:?}", kept.made());
}

#[test]
fn hits_of_functions_are_counted_and_not_recorded() {
    let kept = Kept::new("6.12.1");
    let fake = Fake::keeping(kept.clone());
    let told = fake.run(&["hits", "twin_*", "--for", "50ms"]);
    assert!(told.starts_with("exit: 0") && told.contains("PROBE"), "{told}");
    assert!(told.contains("note: counting 2 probes for 50ms"), "{told}");
    assert!(told.contains("note: `twin_*` leaves out 2 functions"), "{told}");
    let row = told.lines().find(|line| line.starts_with("twin_a ")).unwrap_or_else(|| panic!("{told}"));
    assert!(row.contains(" 10 "), "ten hits between two readings: {told}");
    // With a filter that no event passes, as long as the command runs.
    let made = ["a", "b"]
        .map(|twin| format!("create p twin_{twin}, enabled: true, held by: h-1, filter: common_pid < 0"));
    let log = fake.log_of_holds();
    assert_eq!(log, ["hold", &made[0], &made[1], "delete twin_b", "delete twin_a", "hold ended"]);
    assert_eq!(kept.shown(), Vec::<String>::new());
}

#[test]
fn hits_that_were_counted_until_an_interrupt_are_shown() {
    let kept = Kept::new("6.12.1");
    let fake = Fake::keeping(kept.clone());
    let mut command = fake.command(&["hits", "twin_*", "--for", "1h"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(notes.any(|note| note.unwrap().contains("counting 2 probes for 3600s")));
    interrupt(&child);
    let mut stdout = String::new();
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4), "there was more to come: {stdout}");
    let row = stdout.lines().find(|line| line.starts_with("twin_a ")).unwrap_or_else(|| panic!("{stdout}"));
    assert!(row.contains(" 10 "), "{stdout}");
    assert_eq!(kept.shown(), Vec::<String>::new());
}

#[test]
fn hits_of_probes_are_sorted_and_cut() {
    let kept = Kept::new("6.12.1");
    kept.define("kprobes/a", "p:a f", "");
    kept.define("kprobes/b", "p:b g", "");
    let fake = Fake::keeping(kept.clone());
    for arguments in [&["hits", "--top", "1"][..], &["hits", "kprobes/*", "--top", "1", "--for", "10ms"]] {
        let told = fake.run(arguments);
        assert!(told.contains("kprobes/a") && !told.contains("kprobes/b"), "{told}");
        assert!(told.contains("note: 1 more probe has 10 hits together: `--top` hides them"), "{told}");
    }
    assert_eq!(kept.shown().len(), 2, "they stay");
    assert!(fake.run(&["hits", "--for", "1s", "--since", "10m"]).starts_with("exit: 2"));
}

#[test]
fn hosts_define_probes_of_their_own_and_many_hosts_need_a_confirmation() {
    let fakes: Vec<_> = (0..2).map(|_| Fake::start(Ending::Open)).collect();
    let directory = merging::fleet(&fakes);
    let latency = ["latency", "vfs_read", "--hosts", "web[0-1]", "--for", "100ms"];
    let told = shown(&merging::run(&directory, &latency));
    assert!(told.starts_with("exit: 0") && told.contains("64 measured, 64 starts"), "{told}");
    for fake in &fakes {
        let expected =
            ["hold", &created("p vfs_read"), &created("r vfs_read"), DELETED, DELETED, "hold ended"];
        assert_eq!(fake.log_of_holds(), expected);
    }
    let config = directory.path().join("config.yaml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("    hosts:", "    confirm_above: 1\n    hosts:")).unwrap();
    let told = shown(&merging::run(&directory, &latency));
    assert!(told.starts_with("exit: 1") && told.contains("would define one on 2 hosts"), "{told}");
    // What they have already is counted as before.
    let hist = ["hist", "open", "--hosts", "web[0-1]", "--for", "100ms"];
    assert!(shown(&merging::run(&directory, &hist)).starts_with("exit: 0"));
    let confirmed = shown(&merging::run(&directory, &[&latency[..], &["--yes"]].concat()));
    assert!(confirmed.starts_with("exit: 0"), "{confirmed}");
    let hits = ["hits", "vfs_*", "--hosts", "web[0-1]", "--for", "10ms"];
    let told = shown(&merging::run(&directory, &hits));
    assert!(told.starts_with("exit: 2") && told.contains("add `--yes`"), "{told}");
}
