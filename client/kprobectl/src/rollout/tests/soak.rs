//! Tests of the soak: what it writes, what passes, and what a pause forgives.

use super::super::*;
use super::world::{Daemon, Simulated};
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

/// A large count of many hits is better than a small one of few.
#[test]
fn the_figure_of_a_wave_is_the_worst_share() {
    let world = Simulated::new(3);
    world.daemons.borrow_mut()[1].lost = [4, 100_000];
    world.daemons.borrow_mut()[2].lost = [3, 6_000];
    assert_eq!(whole(&world, state(3, "100%")).phase, Phase::Done);
    let told = world.told.borrow();
    let passed = told.iter().find(|event| event.event == "passed").unwrap();
    let wanted = "errors 0, loss 3 of 6700 of kprobes/a, misses 0 of 700 of kprobes/a";
    assert!(passed.message.starts_with(wanted), "{}", passed.message);
}

#[test]
fn a_daemon_that_is_started_anew_lets_it_wait() {
    let world = Simulated::new(2);
    // Its own wave's look, and two readings.
    world.daemons.borrow_mut()[1].restarts_after = Some(3);
    let end = whole(&world, state(2, "100%"));
    let reason = "data is missing: h1: the daemon was started again: its ledger began at zero";
    assert_eq!((end.phase, end.reason.as_str()), (Phase::Paused, reason));
    assert_eq!(go_on(&world).unwrap().phase, Phase::Done);
}

/// A pause for missing data, and what happens meanwhile.
#[test]
fn a_resume_forgives_nothing_that_went_wrong_since_the_change() {
    for (pushes_out, reason) in [
        (true, "a gate is not passed: h0: budget: `x/y` is tripped: why"),
        (false, "a gate is not passed: h0: health: the check `new` of `kprobectl doctor` fails"),
    ] {
        let harm = |daemon: &mut Daemon| {
            (daemon.pushes_out, daemon.is_ill) = (pushes_out, !pushes_out);
        };
        let world = Simulated::new(2);
        let before = world.shown();
        world.daemons.borrow_mut()[1].loses_counters = true;
        assert_eq!(whole(&world, state(2, "100%")).phase, Phase::Paused);
        world.daemons.borrow_mut()[1].loses_counters = false;
        harm(&mut world.daemons.borrow_mut()[0]);
        let end = go_on(&world).unwrap();
        assert!(end.reason.starts_with(reason), "{:?} {}", end.phase, end.reason);
        assert_eq!((end.phase, world.shown()), (Phase::Undone, before));

        // Nor is the failure that paused it, over and over.
        let world = Simulated::new(2);
        let mut pausing = state(2, "100%");
        pausing.setting.on_failure = OnFailure::Pause;
        world.daemons.borrow_mut()[1].loses_counters = true;
        assert_eq!(whole(&world, pausing).phase, Phase::Paused);
        world.daemons.borrow_mut()[1].loses_counters = false;
        harm(&mut world.daemons.borrow_mut()[0]);
        for _ in 0..2 {
            let end = go_on(&world).unwrap();
            assert!(end.phase == Phase::Paused && end.reason.starts_with(reason), "{}", end.reason);
        }
    }
}
