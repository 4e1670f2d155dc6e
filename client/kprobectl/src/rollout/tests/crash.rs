//! Tests of crashes: the process ends after each of its actions, and another one continues.

use super::super::*;
use super::world::Simulated;
use super::{go_on, run, state, whole};

/// Ends the process after each of its actions in turn, lets another one go on, and compares with a
/// run that was not disturbed.
fn killed_everywhere(prepare: fn(&Simulated), waves: &str) -> usize {
    let undisturbed = Simulated::new(4);
    prepare(&undisturbed);
    let wanted = whole(&undisturbed, state(4, waves));
    let actions = undisturbed.actions.get();
    for at in 1..actions {
        let world = Simulated::new(4);
        prepare(&world);
        let mut first = state(4, waves);
        world.save(&first).unwrap();
        world.left.set(Some(at));
        let killed = run(drive(&world, &mut first));
        if killed.is_ok() {
            continue;
        }
        drop(first);
        world.left.set(None);
        let end = go_on(&world).unwrap();
        assert_eq!(
            (end.phase, end.wave),
            (wanted.phase, wanted.wave),
            "killed after {at} of {actions}: {}",
            end.reason
        );
        assert_eq!(world.shown(), undisturbed.shown(), "killed after {at} of {actions}");
        for (host, (is, was)) in world.daemons.borrow().iter().zip(&*undisturbed.daemons.borrow()).enumerate()
        {
            assert_eq!(is.effects.len(), was.effects.len(), "host {host}, killed after {at} of {actions}");
        }
        // Only the verdict that was on its way is requested again.
        let verdicts =
            |world: &Simulated| world.daemons.borrow().iter().map(|one| one.verdicts).sum::<usize>();
        let asked_again = verdicts(&world) - verdicts(&undisturbed);
        assert!(asked_again <= end.hosts.iter().filter(|host| host.step == Step::Waiting).count() + 1);
    }
    actions
}

#[test]
fn a_process_that_ends_at_any_point_is_followed_by_another_one() {
    assert!(killed_everywhere(|_world| (), "1,50%,100%") > 60);
    assert!(killed_everywhere(|world| world.shows.set(true), "1,50%,100%") > 60);
    let bad = |world: &Simulated| world.daemons.borrow_mut()[2].good_readings = Some(1);
    assert!(killed_everywhere(bad, "1,100%") > 40);
    let changes_its_mind = |world: &Simulated| world.daemons.borrow_mut()[3].changes_its_mind = true;
    assert!(killed_everywhere(changes_its_mind, "1,50%,100%") > 40);
    let hides_answers = |world: &Simulated| world.daemons.borrow_mut()[1].hides_answers = true;
    assert!(killed_everywhere(hides_answers, "1,50%,100%") > 30);
    let refuses = |world: &Simulated| world.daemons.borrow_mut()[3].refuses = true;
    assert!(killed_everywhere(refuses, "1,50%,100%") > 12);
}

#[test]
fn a_request_that_the_host_has_forgotten_is_not_made_twice() {
    let undisturbed = Simulated::new(1);
    whole(&undisturbed, state(1, "100%"));
    for at in 1..undisturbed.actions.get() {
        let world = Simulated::new(1);
        let mut first = state(1, "100%");
        world.save(&first).unwrap();
        world.left.set(Some(at));
        if run(drive(&world, &mut first)).is_ok() {
            continue;
        }
        world.left.set(None);
        world.daemons.borrow_mut()[0].requests.clear();
        let end = go_on(&world).unwrap();
        assert_eq!(end.phase, Phase::Done, "killed after {at}: {}", end.reason);
        assert_eq!(world.daemons.borrow()[0].effects.len(), 2, "killed after {at}");
        assert_eq!(world.shown(), undisturbed.shown());
    }
}
