//! Tests of completion, asked as the script for fish asks, and of the events that `functions` lists.

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use super::command::{kprobectl, kprobectl_in};
use super::fake::{Ending, Fake};

impl Fake {
    /// What a shell is offered for the last word of a line. It waits for the daemon a moment only, which can be too
    /// short on a busy machine: then it is asked again.
    fn completes(&self, line: &[&str]) -> Vec<String> {
        let words = [&["--", "kprobectl"], line].concat();
        let offered = || {
            let output = self.command(&words).env("KPROBECTL_COMPLETE", "fish").output().unwrap();
            assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
            let offered = String::from_utf8(output.stdout).unwrap();
            offered.lines().filter_map(|line| line.split('\t').next().map(str::to_owned)).collect()
        };
        (0..10).map(|_again| offered()).find(|offered: &Vec<_>| !offered.is_empty()).unwrap_or_default()
    }
}

#[test]
fn names_come_from_the_daemon() {
    let fake = Fake::start(Ending::Open);
    assert_eq!(fake.completes(&["describe", "twin"]), ["twin_a", "twin_b"]);
    assert_eq!(fake.completes(&["trace", "sch"]), ["sched/sched_switch", "sched/sched_wakeup"]);
    let probes = fake.completes(&["get", "kprobes/"]);
    assert!(!probes.is_empty() && probes.iter().all(|name| name.starts_with("kprobes/")), "{probes:?}");
    let fields = fake.completes(&["observe", &probes[0], "--filter", "1 < 2 && "]);
    assert!(!fields.is_empty() && fields.iter().all(|text| text.starts_with("1 < 2 && ")), "{fields:?}");
    let options = fake.completes(&["trace", "--fil"]);
    assert_eq!(options, ["--filter"]);
    assert_eq!(fake.completes(&["compl"]), ["completion"]);
}

#[test]
fn hosts_and_contexts_come_from_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let hosts = "{web1: {address: 'web1:1'}, web2: {address: 'web2:1'}, db: {address: 'db:1'}}";
    let text = format!(
        "current_context: test\ncontexts:\n  test:\n    hosts: {hosts}\n    groups: {{whole: ['web*']}}\n  other:\n    \
         hosts: {{far: {{address: 'far:1'}}}}\n"
    );
    std::fs::write(directory.path().join("config.yaml"), text).unwrap();
    let completes = |line: &[&str]| {
        let words = [&["--", "kprobectl"], line].concat();
        let output =
            kprobectl_in(directory.path(), &words).env("KPROBECTL_COMPLETE", "fish").output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completes(&["list", "--hosts", "w"]), ["web1", "web2", "whole"]);
    assert_eq!(completes(&["list", "--hosts", "db,web"]), ["db,web1", "db,web2"]);
    assert_eq!(completes(&["rollout", "plan", "--context", "other", "--hosts", ""]), ["all", "far"]);
    assert_eq!(completes(&["rollout", "plan", "--context=other", "--hosts", "f"]), ["far"]);
    assert_eq!(completes(&["--context", ""]), ["other", "test"]);
}

#[test]
fn a_daemon_that_is_away_or_silent_costs_little_and_says_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let silent = directory.path().join("silent.sock");
    let _listens = UnixListener::bind(&silent).unwrap();
    for server in [directory.path().join("absent.sock"), silent] {
        let words = ["--", "kprobectl", "get", "kprobes/"];
        let begun = Instant::now();
        let mut command = kprobectl(&words);
        let output =
            command.env("KPROBECTL_COMPLETE", "fish").env("KPROBED_SERVER", &server).output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty() && output.stdout.is_empty(),
            "{output:?}"
        );
        // A busy machine starts a process late; without a limit of its own it would be five seconds.
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }
    // No shell is called so.
    let output = kprobectl(&["--", "kprobectl", "get"]).env("KPROBECTL_COMPLETE", "nosuch").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_script_asks_this_command() {
    for shell in ["bash", "zsh", "fish"] {
        let output = kprobectl(&["completion", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("KPROBECTL_COMPLETE"), "{script}");
    }
}

#[test]
fn events_of_the_host_are_listed() {
    let fake = Fake::start(Ending::Open);
    let listed = fake.run(&["functions", "--events", "switch"]);
    assert!(listed.contains("EVENT\nsched/sched_switch\nsched/sched_wakeup\n"), "{listed}");
    let names = fake.run(&["functions", "--events", "sched/*", "-o", "name"]);
    assert!(names.contains("-- stdout\nsched/sched_switch\nsched/sched_wakeup\n"), "{names}");
    let wide = fake.run(&["functions", "--events", "sched/*", "-o", "wide"]);
    assert!(wide.contains("EVENT               FIELDS\nsched/sched_switch  dfd filename\n"), "{wide}");
}

#[test]
fn a_stack_is_that_of_one_event() {
    let fake = Fake::start(Ending::Open);
    let refused = fake.run(&["trace", "do_sys_openat2(filename:ustring) -> fd", "--stack"]);
    assert!(refused.contains("exit: 2") && refused.contains("`FUNCTION%return`"), "{refused}");
    let alone = fake.run(&["observe", "--stack"]);
    assert!(alone.contains("exit: 2") && alone.contains("--probe"), "{alone}");
}
