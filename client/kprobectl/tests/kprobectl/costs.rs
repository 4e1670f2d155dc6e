//! Tests of `cost`, and of `check --trial`.

use insta::assert_snapshot;

use super::fake::{Ending, Fake};

/// The share depends on the time of day, and is not compared.
fn without_share(text: &str) -> String {
    let columns = |line: &str| {
        let cut = |end: &str| Some(format!("{}{end}", line.rsplit_once(&format!("{end}  "))?.0));
        cut(" s").or_else(|| cut("CPU")).unwrap_or_else(|| line.to_owned())
    };
    text.lines().map(columns).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_was_taken_is_added_up() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(without_share(&fake.run(&["cost"])), @"
    exit: 0
    -- stdout
    PROBE                     HIT  HITS       CPU
    kprobes/open        512±26 ns  1000   0.001 s
    kprobes/idle      1500±75 ns?     0   0.000 s
    (kprobed itself)            -     -  12.500 s
    -- stderr
    ");
    assert_snapshot!(without_share(&fake.run(&["cost", "--days", "7"])), @"
    exit: 0
    -- stdout
    PROBE                     HIT     HITS       CPU
    kprobes/open        512±26 ns  3001000   1.537 s
    kprobes/gone                -       10   0.250 s
    kprobes/idle      1500±75 ns?        0   0.000 s
    (kprobed itself)            -        -  12.500 s
    -- stderr
    ");
    assert_snapshot!(without_share(&fake.run(&["cost", "--days", "7", "--by", "creator"])), @"
    exit: 0
    -- stdout
    CREATOR           PROBES     HITS       CPU
    uid:1000               2  3001000   1.537 s
    -                      1       10   0.250 s
    (kprobed itself)       -        -  12.500 s
    -- stderr
    ");
    assert_snapshot!(without_share(&fake.run(&["cost", "--days", "7", "--by", "group"])), @"
    exit: 0
    -- stdout
    GROUP             PROBES     HITS       CPU
    kprobes                3  3001010   1.787 s
    (kprobed itself)       -        -  12.500 s
    -- stderr
    ");
    let wrong = fake.run(&["cost", "--days", "0"]);
    assert!(wrong.starts_with("exit: 2") && wrong.contains("0 is not in 1..=36500"), "{wrong}");
    let json = fake.run(&["cost", "-o", "json"]);
    assert!(json.contains(r#""cpu_seconds": 12.5"#) && json.contains(r#""runs": "1000""#), "{json}");
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
