//! Tests of `hits --step`.

use insta::assert_snapshot;

use super::fake::{Ending, Fake};

const RANGE: [&str; 5] = ["hits", "--since", "2026-01-31T12:00:00Z", "--until", "2026-01-31T12:06:00Z"];

fn run(fake: &Fake, more: &[&str]) -> String {
    fake.run(&[&RANGE, more].concat())
}

#[test]
fn hits_over_time_are_bars() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["--step", "1m"]), @"
    exit: 0
    -- stdout
    from 2026-01-31T12:00:00Z, 1m a column
    PROBE         HITS  HITS/s  HIGHEST
    kprobes/open   100    0.59     2.00  @_ : :
    `@` is the highest of its row, `_` not hit, and a blank not known
    -- stderr
    ");
    // What cannot be had is said.
    assert_snapshot!(run(&fake, &["--step", "90s"]), @"
    exit: 0
    -- stdout
    from 2026-01-31T12:00:00Z, 2m a column
    PROBE         HITS  HITS/s  HIGHEST
    kprobes/open   100    0.59     0.67  @**
    `@` is the highest of its row, `_` not hit, and a blank not known
    -- stderr
    note: the step is 120 seconds: some of that time is kept by the minute only
    ");
    assert_snapshot!(run(&fake, &["--step", "1m", "-l", "team=nobody"]), @"
    exit: 0
    -- stdout
    -- stderr
    note: no hits were sampled in that time
    ");
}

#[test]
fn bars_fit_the_terminal() {
    let fake = Fake::start(Ending::Open);
    let run = |columns| fake.run_in(columns, &[&RANGE[..], &["--step", "1m"]].concat());
    assert_snapshot!(run(80), @"
    exit: 0
    -- stdout
    from 2026-01-31T12:00:00Z, 1m a column
    PROBE         HITS  HITS/s  HIGHEST
    kprobes/open   100    0.59     2.00  @_ : :
    `@` is the highest of its row, `_` not hit, and a blank not known
    -- stderr
    ");
    assert_eq!(run(200), run(80), "there are no more intervals");
    assert_snapshot!(run(40), @"
    exit: 0
    -- stdout
    from 2026-01-31T12:00:00Z, 1m a column
    PROBE         HITS  HITS/s  HIGHEST
    kprobes/open   100    0.59     2.00
    @_ : :
    `@` is the highest of its row, `_` not ~
    -- stderr
    ");
}

#[test]
fn hits_over_time_are_values_for_programs() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["--step", "1m", "-o", "csv"]), @"
    exit: 0
    -- stdout
    probe,probe_uid,boot_id,kernel_release,start,step_seconds,covered_seconds,hits,nmissed,hits_per_second
    kprobes/open,1,b0,6.1.0,2026-01-31T12:00:00Z,60,30,60,0,2
    kprobes/open,1,b0,6.1.0,2026-01-31T12:01:00Z,60,60,0,0,0
    kprobes/open,1,b0,6.1.0,2026-01-31T12:02:00Z,60,0,0,0,
    kprobes/open,1,b0,6.1.0,2026-01-31T12:03:00Z,60,60,30,0,0.5
    kprobes/open,1,b1,6.12.0,2026-01-31T12:05:00Z,60,20,10,0,0.5
    -- stderr
    ");
    let json = run(&fake, &["--step", "1m", "-o", "json"]);
    let json = json.split_once("-- stdout\n").unwrap().1.split_once("-- stderr").unwrap().0;
    let series: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(series.len(), 2, "one for each boot");
    assert!(series.iter().all(|series| series["step_seconds"] == 60), "{series:?}");
    let points = &series[0]["points"];
    assert_eq!(
        (&points[0]["start_time"], &points[0]["hits"]),
        (&"2026-01-31T12:00:00Z".into(), &"60".into()),
        "64-bit numbers are text"
    );
    assert_eq!((&points[0]["hits_per_second"], &points[1]["hits_per_second"]), (&2.0.into(), &0.0.into()));
    // Nothing is known, which is not the same as no hits.
    assert_eq!(
        (&points[2]["covered_seconds"], &points[2]["hits_per_second"]),
        (&0.into(), &serde_json::Value::Null)
    );
    assert_eq!(series[1]["kernel_release"], "6.12.0");
    // The other forms of the command have values too.
    assert_snapshot!(fake.run(&["hits", "-o", "csv"]), @"
    exit: 0
    -- stdout
    probe,hits,own,nmissed,probe_uid,boot_id,time
    kprobes/open,5,2,1,1,b0,2026-01-31T12:00:00Z
    -- stderr
    ");
    // The step is a minute if none is given.
    assert_eq!(run(&fake, &["-o", "csv"]), run(&fake, &["--step", "1m", "-o", "csv"]));
}

#[test]
fn what_cannot_be_asked_for() {
    let fake = Fake::start(Ending::Open);
    for arguments in [
        &["hits", "--step", "5m"][..],
        &["hits", "--since", "1h", "--step", "500ms"],
        &["hits", "--since", "1h", "--step", "0s"],
        &["hits", "--until", "12:00"],
    ] {
        assert!(fake.run(arguments).starts_with("exit: 2"), "{arguments:?}");
    }
}
