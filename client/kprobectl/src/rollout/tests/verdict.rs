//! Tests of the verdicts before the first change.

use super::super::*;
use super::world::{Daemon, Simulated};
use super::{go_on, state, whole};

/// How often each host was asked for its verdict before its wave.
fn asked(world: &Simulated) -> Vec<usize> {
    world.daemons.borrow().iter().map(|daemon| daemon.verdicts).collect()
}

fn is_untouched(world: &Simulated) -> bool {
    let daemons = world.daemons.borrow();
    daemons.iter().all(|daemon| daemon.effects.is_empty() && daemon.shown() == Daemon::new().shown())
}

#[test]
fn a_host_of_the_last_wave_that_refuses_stops_everything_before_it_begins() {
    let world = Simulated::new(4);
    world.daemons.borrow_mut()[3].refuses = true;
    let end = whole(&world, state(4, "1,50%,100%"));
    assert_eq!((end.phase, end.wave), (Phase::Undone, 1));
    assert_eq!(end.reason, "the change is refused: h3: not here");
    assert_eq!(world.events(), "started accepted gate_failed undoing undone");
    assert!(is_untouched(&world));

    // It waits where that was requested. Another process asks only the one that refused.
    let world = Simulated::new(4);
    world.daemons.borrow_mut()[3].refuses = true;
    let mut pausing = state(4, "1,50%,100%");
    pausing.setting.on_failure = OnFailure::Pause;
    let end = whole(&world, pausing);
    assert_eq!((end.phase, end.hosts[3].step), (Phase::Paused, Step::Waiting));
    assert!(end.hosts[..3].iter().all(|host| host.step == Step::Accepted && host.kernel == "6.1"));
    assert!(is_untouched(&world));
    world.daemons.borrow_mut()[3].refuses = false;
    assert_eq!(go_on(&world).unwrap().phase, Phase::Done);
    assert_eq!(asked(&world), [1, 1, 1, 2]);
}

#[test]
fn a_host_that_does_not_answer_lets_everything_wait_before_it_begins() {
    let world = Simulated::new(3);
    world.daemons.borrow_mut()[2].is_dead = true;
    let end = whole(&world, state(3, "1,100%"));
    assert_eq!((end.phase, end.reason.as_str()), (Phase::Paused, "no answer: h2: connection refused"));
    assert!(is_untouched(&world));
    assert_eq!(go_on(&world).unwrap().phase, Phase::Paused, "still");
    assert!(is_untouched(&world));
    world.daemons.borrow_mut()[2].is_dead = false;
    assert_eq!(go_on(&world).unwrap().phase, Phase::Done);
    assert_eq!(asked(&world), [1, 1, 1]);
}

#[test]
fn so_many_hosts_as_are_tolerated_are_left_out() {
    let world = || {
        let world = Simulated::new(4);
        world.daemons.borrow_mut()[2].refuses = true;
        world.daemons.borrow_mut()[3].is_dead = true;
        world
    };
    let tolerant = |tolerated| {
        let mut state = state(4, "1,100%");
        state.setting.tolerated = tolerated;
        state
    };
    let stopped = world();
    let end = whole(&stopped, tolerant(1));
    assert_eq!((end.phase, end.reason.as_str()), (Phase::Undone, "the change is refused: h2: not here"));
    assert!(is_untouched(&stopped));
    let passed = world();
    let end = whole(&passed, tolerant(2));
    assert_eq!(end.phase, Phase::Done);
    let steps: Vec<_> = end.hosts.iter().map(|host| host.step).collect();
    assert_eq!(steps, [Step::Passed, Step::Passed, Step::LeftOut, Step::LeftOut]);
    let told = passed.told.borrow();
    let out: Vec<_> = told.iter().filter(|one| one.event == "left_out").map(|one| &one.message).collect();
    assert_eq!(out, ["the change is refused: h2: not here", "no answer: h3: connection refused"]);
    // The first wave is of a host that stays: else none would be watched before all others are changed.
    let first = Simulated::new(3);
    first.daemons.borrow_mut()[0].is_dead = true;
    let mut canary = state(3, "1,100%");
    canary.setting.tolerated = 1;
    let end = whole(&first, canary);
    let waves: Vec<_> = end.hosts.iter().map(|host| (host.wave, host.step)).collect();
    assert_eq!(waves, [(1, Step::LeftOut), (1, Step::Passed), (2, Step::Passed)]);
    // What was left out before counts too.
    let late = Simulated::new(3);
    late.daemons.borrow_mut()[1].is_dead = true;
    late.daemons.borrow_mut()[2].good_readings = Some(0);
    let mut one = state(3, "100%");
    one.setting.tolerated = 1;
    let end = whole(&late, one);
    assert_eq!((end.phase, end.hosts[1].step), (Phase::Undone, Step::LeftOut));
}
