//! Tests of calls in `trace` and `observe`: an entry joined with its return.

use insta::assert_snapshot;
use serde_json::Value;

use super::fake::{Ending, Fake};

const OPEN: &str = "do_sys_openat2(filename:ustring) -> fd:s32";

#[test]
fn a_call_is_one_line_at_its_return() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["trace", OPEN, "-n", "3"]), @"");
    let log = fake.log_of_holds();
    let made: Vec<_> = log.iter().filter(|change| change.starts_with("create")).collect();
    // The return probe first: it records before the entry probe.
    assert_eq!(
        made,
        [
            "create r4096 do_sys_openat2 fd=$retval:s32, enabled: false, held by: h-1",
            "create p do_sys_openat2 filename:ustring, enabled: false, held by: h-1"
        ]
    );
    assert_eq!(fake.asked().selection.unwrap().probes, ["kprobes/opened", "kprobes/opening"]);
}

#[test]
fn what_lacks_an_end_is_named_and_is_no_loss() {
    let fake = Fake::start(Ending::Ended);
    assert_snapshot!(fake.run(&["trace", OPEN]), @"");
}

#[test]
fn a_filter_sees_both_ends() {
    let fake = Fake::start(Ending::Ended);
    assert_snapshot!(fake.run(&["trace", OPEN, "--filter", "fd < 0 && filename ~ \"/etc/*\"", "--comm", "c*"]), @"");
    // The daemon must not leave out one of the ends.
    assert_eq!(fake.asked().selection.unwrap().filter, "");
    // A value that is missing is neither so nor otherwise.
    let shown = fake.run(&["trace", OPEN, "--filter", "!(fd == 3) || fd == 3", "-q"]);
    assert_eq!(shown.matches("do_sys_openat2").count(), 5, "{shown}");
}

#[test]
fn programs_get_one_object_for_a_call() {
    let fake = Fake::start(Ending::Ended);
    let output = fake.command(&["trace", OPEN, "-o", "json"]).output().unwrap();
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let calls: Vec<_> = lines.iter().filter(|line| line["type"] == "call").collect();
    let whole = calls.iter().find(|call| call["fields"]["fd"] == -2).unwrap();
    assert_snapshot!(serde_json::to_string_pretty(whole).unwrap(), @"");
    let lacking: Vec<_> = calls.iter().filter_map(|call| call["incomplete"].as_str()).collect();
    assert_eq!(lacking, ["no_entry", "gap"]);
    assert!(calls.iter().all(|call| call["duration_ns"].is_null() == call["incomplete"].is_string()));
    assert_eq!(lines.iter().filter(|line| line["type"] == "loss").count(), 1);
}

#[test]
fn observe_has_calls_too() {
    let fake = Fake::start(Ending::Open);
    let shown = fake.run(&["observe", "-p", OPEN, "-n", "2", "-q", "--time", "trace"]);
    assert_snapshot!(shown, @"");
}

#[test]
fn what_cannot_be_said_of_calls_is_refused() {
    let fake = Fake::start(Ending::Open);
    let refused = [
        &["trace", "do_sys_openat2(filename:ustring) ->"][..],
        &["trace", "do_sys_openat2(int dfd) -> fd"],
        &["trace", OPEN, "--filter", "fdd < 0"],
        &["trace", OPEN, "--filter", "common_flags == 1"],
        &["trace", OPEN, "--filter", "fd <"],
        &["trace", OPEN, "--sample", "3"],
        &["trace", OPEN, "--fields", "fd"],
    ]
    .map(|arguments| fake.run(arguments));
    assert_snapshot!(refused.concat(), @"");
}
