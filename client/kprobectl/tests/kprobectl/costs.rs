//! Tests of `hits --cost`, and of `check --trial`.

use insta::assert_snapshot;

use super::fake::{Ending, Fake};

#[test]
fn what_probes_take_follows_from_their_hits() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["hits", "--cost"]), @"
    exit: 0
    -- stdout
    PROBE            HIT  HITS/S  SHARE
    kprobes/open       -     0.6      -
    kprobes/waiting    -     0.6      -
    -- stderr
    ");
    let json = fake.run(&["hits", "--cost", "-o", "json"]);
    assert!(json.contains(r#""hits_per_second":0.58"#), "{json}");
    // Of selected probes.
    let selected = fake.run(&["hits", "--cost", "-l", "team=storage"]);
    assert!(selected.contains("kprobes/open") && !selected.contains("kprobes/waiting"), "{selected}");
    for other in ["--include-self", "--since=10m"] {
        assert!(fake.run(&["hits", "--cost", other]).starts_with("exit: 2"), "{other}");
    }
}

#[test]
fn a_trial_follows_an_accepted_definition() {
    let fake = Fake::start(Ending::Open);
    let tried = fake.run(&["check", "--trial", "p:open do_sys_openat2"]);
    let told = "20000 hits a second: 10.000 ms of processor time a second, 1.00 % of one CPU";
    assert!(tried.contains(told), "{tried}");
    let refused = fake.run(&["check", "--trial", "p:x do_sys_openat2+3"]);
    assert!(refused.starts_with("exit: 1") && !refused.contains("hits a second"), "{refused}");
    let all = ["a look at the trial", "a look at the trial", "the trial is over"];
    assert_eq!(fake.log_with("the trial is over"), all, "nothing is left, and what is refused is not made");
    let fake = Fake::start(Ending::Open);
    let json = fake.run(&["check", "--trial", "p:open do_sys_openat2", "-o", "json"]);
    assert!(json.contains(r#""hits":2000"#) && json.contains(r#""tripped":null"#), "{json}");
}
