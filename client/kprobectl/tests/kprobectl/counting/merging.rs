//! Tests of counting on many hosts: counts add up, and hosts without counts are reported.

use std::fmt::Write as _;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use super::super::command::kprobectl_in;
use super::super::fake::{Ending, Fake, interrupt, shown};
use super::super::merging::context;
use insta::assert_snapshot;
use serde_json::Value;
use tempfile::TempDir;

/// Fakes that all count the same, and a dead host.
pub(super) fn fleet(fakes: &[Fake]) -> TempDir {
    let dead = fakes[0].directory().join("dead");
    drop(UnixListener::bind(&dead).unwrap());
    let mut hosts = vec![("dead", dead.display().to_string())];
    hosts.extend(["web0", "web1", "web2"].into_iter().zip(fakes.iter().map(Fake::address)));
    context(&hosts)
}

pub(super) fn run(directory: &TempDir, arguments: &[&str]) -> std::process::Output {
    kprobectl_in(directory.path(), arguments).output().unwrap()
}

#[test]
fn counts_of_hosts_add_up() {
    let fakes: Vec<_> = (0..3).map(|_| Fake::start(Ending::Open)).collect();
    let directory = fleet(&fakes);
    let counted = run(
        &directory,
        &["hist", "open", "--by", "comm", "--sum", "dfd", "--hosts", "web[0-2]", "--for", "100ms"],
    );
    // Three times what one of them says.
    assert_snapshot!(shown(&counted), @"
    exit: 0
    -- stdout
    COMM   COUNT  SHARE  SUM(DFD)  AVERAGE(DFD)
    ls        60  62.5%       240             4
    <...>     24  25.0%      2400           100
    cat       12  12.5%      -120           -10

    96 hits, 0 dropped, 3 rows (9 in the kernel)
    -- stderr
    note: counting open for 100ms
    note: 3 of 3 hosts count
    hosts: 3 targeted = 3 answered + 0 refused + 0 failed + 0 timed out + 0 unreachable + 0 not tried
    ");
    for fake in &fakes {
        assert!(fake.counted().contains(&"deleted open-0".to_owned()), "{:?}", fake.counted());
    }
}

/// What a command shows that is interrupted while one host has answered, and another one says nothing. Absent if the
/// interrupt came before the command had read the answer, which the fake cannot see.
fn interrupted_after_an_answer() -> Option<(Fake, String)> {
    let fakes = [Fake::start(Ending::Open)];
    let directory = fleet(&fakes);
    // It takes connections, and says nothing.
    let hung = UnixListener::bind(directory.path().join("hung")).unwrap();
    let config = directory.path().join("config.yaml");
    let mut text = std::fs::read_to_string(&config).unwrap();
    writeln!(text, "      hung: {{address: '{}'}}", directory.path().join("hung").display()).unwrap();
    std::fs::write(&config, text).unwrap();
    let mut command = kprobectl_in(directory.path(), &["hist", "open", "--hosts", "all", "--timeout", "60s"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _connection = hung.accept().unwrap();
    assert_eq!(super::counted(&fakes[0], "made open-0"), ["made open-0"]);
    interrupt(&child);
    let ended = shown(&child.wait_with_output().unwrap());
    let ([fake], is_late) = (fakes, !ended.contains("hung,web0 (2 hosts): failed: interrupted before"));
    is_late.then_some((fake, ended))
}

#[test]
fn an_interrupt_while_hosts_are_asked_shows_what_was_counted_and_accounts_for_the_rest() {
    let (fake, ended) = (0..20).find_map(|_| interrupted_after_an_answer()).expect("never after an answer");
    assert!(ended.starts_with("exit: 4") && ended.contains("32 hits, 0 dropped"), "{ended}");
    assert!(ended.contains("hung (1 host): failed: interrupted before it answered"), "{ended}");
    let ledger = "hosts: 3 targeted = 1 answered + 0 refused + 1 failed + 0 timed out + 1 unreachable";
    assert!(ended.contains(ledger), "{ended}");
    assert!(fake.counted().contains(&"deleted open-0".to_owned()), "{:?}", fake.counted());
}

#[test]
fn latencies_and_stacks_add_up_and_a_dead_host_is_told() {
    let fakes: Vec<_> = (0..2).map(|_| Fake::start(Ending::Open)).collect();
    let directory = fleet(&fakes);
    let output =
        run(&directory, &["latency", "read", "done", "--hosts", "all", "--for", "100ms", "-o", "json"]);
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8(output.stdout).unwrap();
    let objects: Vec<Value> =
        serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>().unwrap();
    let [dead, one, other, whole, ledger] = objects.as_slice() else { panic!("{text}") };
    assert_eq!((&dead["host"], &dead["outcome"]), (&"dead".into(), &"unreachable".into()));
    // 64-bit numbers are text.
    let number = |value: &Value| value.as_str().unwrap().parse::<u64>().unwrap();
    let hits = |answer: &Value| number(&answer["hits"]);
    assert_eq!(hits(whole), hits(&one["answer"]) + hits(&other["answer"]));
    for (row, part) in whole["rows"].as_array().unwrap().iter().zip(one["answer"]["rows"].as_array().unwrap())
    {
        assert_eq!(row["keys"], part["keys"]);
        assert_eq!(number(&row["count"]), 2 * number(&part["count"]));
        let sum = |row: &Value| row["sums"][0].as_object().unwrap().values().next().map(number);
        assert_eq!(sum(row), sum(part).map(|sum| 2 * sum));
    }
    assert_eq!(whole["rows"].as_array().map(Vec::len), Some(3));
    assert_eq!((&ledger["ledger"]["answered"], &ledger["ledger"]["closes"]), (&2.into(), &true.into()));
    let folded = run(&directory, &["stacks", "open", "--hosts", "web[0-1]", "--for", "100ms", "--folded"]);
    assert_eq!(
        String::from_utf8(folded.stdout).unwrap(),
        "0xffffffffc0001000;vfs_open 16\ndo_syscall_64;do_filp_open;vfs_open 48\n"
    );
}

#[test]
fn counts_by_host_are_those_of_each_and_hosts_that_counted_the_same_are_shown_together() {
    let fakes: Vec<_> = (0..2).map(|_| Fake::start(Ending::Open)).collect();
    let directory = fleet(&fakes);
    let counted = run(
        &directory,
        &["hist", "open", "--by", "host,comm", "--hosts", "all", "--for", "100ms", "--tolerate", "1"],
    );
    assert_snapshot!(shown(&counted), @"
    exit: 0
    -- stdout
    web[0-1] (2 hosts, kernel 6.12.1):
    COMM   COUNT  SHARE
    ls        20  62.5%
    <...>      8  25.0%
    cat        4  12.5%

    32 hits, 0 dropped, 3 rows
    -- stderr
    note: counting open for 100ms
    note: 2 of 3 hosts count
    dead (1 host): unreachable: Connection refused (os error 111)
    hosts: 3 targeted = 2 answered + 0 refused + 0 failed + 0 timed out + 1 unreachable + 0 not tried
    ");
    let latency = ["latency", "read", "done", "--by", "host,thread", "--hosts", "web[0-1]"];
    let output = run(&directory, &[&latency[..], &["--for", "100ms", "-o", "json"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // No sum, so that threads of different hosts are not taken for one.
    let [one, other, ledger] = objects.as_slice() else { panic!("{text}") };
    assert_eq!((&one["host"], &other["host"]), (&"web0".into(), &"web1".into()));
    assert!(one["answer"]["hits"] != "0" && one["answer"] == other["answer"], "{text}");
    assert_eq!((&ledger["ledger"]["answered"], &ledger["ledger"]["closes"]), (&2.into(), &true.into()));
    let stacks = ["stacks", "open", "--by", "host", "--hosts", "web[0-1]", "--for", "100ms"];
    let folded = run(&directory, &[&stacks[..], &["--folded"]].concat());
    let of = |host: &str| {
        format!("{host};0xffffffffc0001000;vfs_open 8\n{host};do_syscall_64;do_filp_open;vfs_open 24\n")
    };
    assert_eq!(String::from_utf8(folded.stdout).unwrap(), of("web0") + &of("web1"));
    let alone = fakes[0].run(&["hist", "open", "--by", "host"]);
    assert!(alone.starts_with("exit: 2") && alone.contains("tells several hosts apart"), "{alone}");
}

#[test]
fn what_hosts_say_when_they_define_probes_is_shown() {
    let fakes: Vec<_> = (0..2).map(|_| Fake::start(Ending::Open)).collect();
    let directory = fleet(&fakes);
    // The fake warns of the probe that it makes for this.
    let hist = ["hist", "p do_waiting", "--hosts", "web[0-1]", "--for", "100ms"];
    let folded =
        ["stacks", "p do_waiting", "--by", "host", "--folded", "--hosts", "web[0-1]", "--for", "100ms"];
    let warning = "some calls are inlined and will not be seen";
    for arguments in [&hist[..], &folded] {
        let told = String::from_utf8(run(&directory, arguments).stderr).unwrap();
        assert_eq!(told.matches(warning).count(), 1, "{told}");
        assert!(told.contains("web[0-1] (2 hosts, kernel 6.12.1)\n"), "{told}");
    }
    let told = run(&directory, &[&hist[..], &["-o", "json"]].concat());
    let text = String::from_utf8(told.stdout).unwrap();
    let objects: Vec<Value> =
        serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>().unwrap();
    let said =
        objects.iter().filter(|one| one["messages"].as_str().is_some_and(|said| said.contains(warning)));
    assert_eq!(said.count(), 2, "{text}");
    assert!(!String::from_utf8_lossy(&told.stderr).contains(warning));
}

#[test]
fn what_cannot_be_added_up_is_refused() {
    let fakes = [Fake::start(Ending::Open)];
    let directory = fleet(&fakes);
    for (arguments, message) in [
        (&["hist", "open", "--by", "thread"][..], "the same ids"),
        (&["latency", "a", "b", "--by", "thread"], "the same ids"),
        (&["hist", "open", "--interval", "1s"], "readings of one host"),
        (&["stacks", "open", "--keep", "x"], "an aggregation on one host"),
    ] {
        let output = run(&directory, &[arguments, &["--hosts", "web0"]].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(message), "{output:?}");
    }
    let refused = run(&directory, &["hist", "absent", "--hosts", "web0", "--for", "100ms"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("1 refused"), "{refused:?}");
    assert_eq!(fakes[0].counted(), Vec::<String>::new());
}
