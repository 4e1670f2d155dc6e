//! Tests of `hits --cost`.

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
