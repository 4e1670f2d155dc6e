//! Tests of the soak: what it writes, and the daemon's CPU share.

use super::super::*;
use super::world::Simulated;
use super::{go_on, state, whole};

#[test]
fn a_long_soak_writes_no_more_than_a_short_one() {
    let soaked = |soak_ms| {
        let world = Simulated::new(3);
        let mut state = state(3, "1,100%");
        state.setting.soak_ms = soak_ms;
        assert_eq!(whole(&world, state).phase, Phase::Done);
        let readings: u64 = world.daemons.borrow().iter().map(|daemon| daemon.readings).sum();
        (world.saves.get(), readings)
    };
    let (short, few) = soaked(1_000);
    let (long, many) = soaked(3_600_000);
    assert_eq!(short, long);
    assert!(many > 30 * few, "{many} readings, and {few}");
}

#[test]
fn a_daemon_that_uses_too_much_puts_everything_back() {
    // The last one has used up, at the second reading, what it may use in all of the soak.
    for (used_percent, figure) in
        [(25, "25.00% of one core"), (26, "26.00% of one core"), (400, "80.00% of one core so far")]
    {
        let world = Simulated::new(3);
        let before = world.shown();
        world.daemons.borrow_mut()[2].used_percent = used_percent;
        let end = whole(&world, state(3, "1,100%"));
        assert_eq!(end.hosts[2].figures["cpu"], figure);
        if used_percent == 25 {
            assert_eq!(end.phase, Phase::Done, "{}", end.reason);
            let told = world.told.borrow();
            let passed = told.iter().rfind(|one| one.event == "passed").unwrap();
            assert!(passed.message.starts_with("cpu 25.00% of one core, errors 0"), "{}", passed.message);
        } else {
            let reason = format!("a gate is not passed: h2: cpu<=25%: {figure}");
            assert_eq!((end.phase, end.wave, end.reason), (Phase::Undone, 1, reason));
            assert_eq!(world.shown(), before);
        }
    }
}

#[test]
fn a_daemon_that_is_started_anew_or_hides_its_use_lets_it_wait() {
    let world = Simulated::new(2);
    // Its own wave's look, and two readings.
    world.daemons.borrow_mut()[1].restarts_after = Some(3);
    let end = whole(&world, state(2, "100%"));
    let reason = "data is missing: h1: the daemon was started anew: its ledger began at zero";
    assert_eq!((end.phase, end.reason.as_str()), (Phase::Paused, reason));
    assert_eq!(go_on(&world).unwrap().phase, Phase::Done);

    let world = Simulated::new(2);
    world.daemons.borrow_mut()[0].hides_use = true;
    let end = whole(&world, state(2, "100%"));
    let reason = "data is missing: h0: cpu: the host does not know it";
    assert_eq!((end.phase, end.reason.as_str()), (Phase::Paused, reason));
    let world = Simulated::new(2);
    world.daemons.borrow_mut()[0].hides_use = true;
    let mut open = state(2, "100%");
    open.setting.gates = Gates::with(&["cpu=off".parse().unwrap()]);
    assert_eq!(whole(&world, open).phase, Phase::Done);
}
