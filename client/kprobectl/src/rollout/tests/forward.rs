//! Tests of waves that pass, gates that fail, missing data, and undo.

use std::time::Duration;

use kprobed_client::api::ProbeState;
use kprobed_document::{Document, KernelChange, Lease, document_of};
use proptest::prelude::*;

use super::super::*;
use super::world::{Daemon, Simulated};
use super::{documents, go_on, run, state, whole};

#[test]
fn all_waves_pass_and_nothing_else_is_touched() {
    let world = Simulated::new(5);
    let end = whole(&world, state(5, "1,40%,100%"));
    assert_eq!(end.phase, Phase::Done);
    let waves =
        "started accepted intended changed passed intended changed passed intended changed passed done";
    assert_eq!(world.events(), waves);
    for daemon in &*world.daemons.borrow() {
        let mut wanted = documents();
        wanted.push(document_of(&Daemon::new().probes["kprobes/other"]));
        let mut is = daemon.shown();
        wanted.sort_by(|a, b| a.name.cmp(&b.name));
        is.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(is, wanted);
        assert_eq!(daemon.effects.len(), 2, "one was made, one changed, and one was as it should be");
    }
    // Once more: there is nothing to do, and all hosts are watched.
    world.told.borrow_mut().clear();
    let mut again = state(5, "100%");
    again.id = "s".to_owned();
    let again = whole(&world, again);
    assert_eq!((again.phase, world.daemons.borrow()[0].effects.len()), (Phase::Done, 2));
}

#[test]
fn a_gate_that_fails_puts_all_hosts_back() {
    for (changes_its_mind, wave) in [(true, 2), (false, 2), (false, 1)] {
        let world = Simulated::new(4);
        let before = world.shown();
        let index = if wave == 1 { 0 } else { 2 };
        if changes_its_mind {
            world.daemons.borrow_mut()[index].changes_its_mind = true;
        } else {
            world.daemons.borrow_mut()[index].good_readings = Some(2);
        }
        let end = whole(&world, state(4, "1,100%"));
        assert_eq!((end.phase, end.wave), (Phase::Undone, wave), "{}", end.reason);
        assert_eq!(world.shown(), before);
        assert_eq!(world.daemons.borrow()[0].effects.len(), 4, "changed, and put back");
        let reason =
            if changes_its_mind { "the change is refused: h2: not here" } else { "a gate is not passed: h" };
        assert!(end.reason.starts_with(reason), "{}", end.reason);
    }
    let world = Simulated::new(2);
    world.daemons.borrow_mut()[1].good_readings = Some(2);
    let mut pausing = state(2, "100%");
    pausing.setting.on_failure = OnFailure::Pause;
    let end = whole(&world, pausing);
    assert_eq!(end.phase, Phase::Paused);
    assert_eq!(world.daemons.borrow()[0].effects.len(), 2, "everything stays as it is");
}

#[test]
fn missing_data_pauses_and_resume_goes_on() {
    let world = Simulated::new(3);
    world.daemons.borrow_mut()[1].loses_counters = true;
    let end = whole(&world, state(3, "100%"));
    assert_eq!(end.phase, Phase::Paused);
    let reason = "data is missing: h1: loss of `kprobes/a`: the host does not know it";
    assert!(end.reason.starts_with(reason), "{}", end.reason);
    assert_eq!(go_on(&world).unwrap().phase, Phase::Paused, "still");
    world.daemons.borrow_mut()[1].loses_counters = false;
    assert_eq!(go_on(&world).unwrap().phase, Phase::Done);

    let world = Simulated::new(3);
    world.daemons.borrow_mut()[2].is_dead = true;
    let end = whole(&world, state(3, "1,100%"));
    assert_eq!((end.phase, end.reason.as_str()), (Phase::Paused, "no answer: h2: connection refused"));
    world.daemons.borrow_mut()[2].is_dead = false;
    assert_eq!(go_on(&world).unwrap().phase, Phase::Done);

    let world = Simulated::new(3);
    world.daemons.borrow_mut()[2].is_dead = true;
    let mut tolerant = state(3, "1,100%");
    tolerant.setting.tolerated = 1;
    let end = whole(&world, tolerant);
    assert_eq!((end.phase, end.hosts[2].step), (Phase::Done, Step::LeftOut));
}

#[test]
fn an_undo_finds_all_hosts() {
    let world = Simulated::new(3);
    let before = world.shown();
    let mut end = whole(&world, state(3, "1,100%"));
    assert_eq!(end.phase, Phase::Done);
    world.daemons.borrow_mut()[1].is_dead = true;
    take_back(&world, &mut end, "wished".to_owned()).unwrap();
    run(drive(&world, &mut end)).unwrap();
    assert_eq!(end.phase, Phase::Undoing, "a host is missing");
    assert_eq!(
        end.hosts.iter().map(|host| host.step == Step::Undone).collect::<Vec<_>>(),
        [true, false, true]
    );
    world.daemons.borrow_mut()[1].is_dead = false;
    assert_eq!(go_on(&world).unwrap().phase, Phase::Undone);
    assert_eq!(world.shown(), before);
}

#[test]
fn what_someone_else_has_changed_is_left_alone() {
    let world = Simulated::new(2);
    let mut end = whole(&world, state(2, "100%"));
    {
        let mut daemons = world.daemons.borrow_mut();
        let probe = daemons[0].probes.get_mut("kprobes/b").unwrap();
        (probe.etag, probe.filter) = ("theirs".to_owned(), "new == 7".to_owned());
    }
    take_back(&world, &mut end, String::new()).unwrap();
    run(drive(&world, &mut end)).unwrap();
    assert_eq!(end.phase, Phase::Undoing);
    assert!(
        end.hosts[0].note.contains("`kprobes/b` was changed by someone else since"),
        "{}",
        end.hosts[0].note
    );
    assert_eq!(world.daemons.borrow()[0].probes["kprobes/b"].filter, "new == 7");
    assert_eq!(world.daemons.borrow()[1].shown(), Daemon::new().shown());
}

#[test]
fn a_change_without_an_answer_is_found_by_the_probes() {
    for is_undone in [false, true] {
        let world = Simulated::new(2);
        let before = world.shown();
        world.daemons.borrow_mut()[1].hides_answers = true;
        let mut end = whole(&world, state(2, "100%"));
        assert_eq!((end.phase, end.reason.as_str()), (Phase::Paused, "no answer: h1: no answer within 1s"));
        world.daemons.borrow_mut()[1].hides_answers = false;
        world.daemons.borrow_mut()[1].requests.clear();
        if is_undone {
            take_back(&world, &mut end, "wished".to_owned()).unwrap();
            run(drive(&world, &mut end)).unwrap();
            assert_eq!((end.phase, world.shown()), (Phase::Undone, before));
        } else {
            assert_eq!(go_on(&world).unwrap().phase, Phase::Done);
            assert_eq!(world.daemons.borrow()[1].effects.len(), 2);
        }
    }
}

/// All changes of a host are made, or none: where only some are there, another client was at work, and what is
/// left of the roll-out is not forgotten.
#[test]
fn a_host_that_was_changed_and_then_changed_by_another_client_stays_recorded() {
    let world = Simulated::new(1);
    world.daemons.borrow_mut()[0].hides_answers = true;
    whole(&world, state(1, "100%"));
    {
        let daemon = &mut world.daemons.borrow_mut()[0];
        daemon.hides_answers = false;
        let probe = daemon.probes.get_mut("kprobes/b").unwrap();
        (probe.etag, probe.filter) = ("theirs".to_owned(), "new == 7".to_owned());
    }
    let end = go_on(&world).unwrap();
    assert_eq!((end.phase, end.hosts[0].step), (Phase::Undoing, Step::Intended), "{}", end.reason);
    assert!(end.hosts[0].note.starts_with("`kprobes/b` was changed by someone else since"), "{}", end.reason);
    // The other client takes its change back: now the undo finds what the roll-out has made.
    {
        let daemon = &mut world.daemons.borrow_mut()[0];
        daemon.probes.get_mut("kprobes/b").unwrap().filter = String::new();
    }
    assert_eq!(go_on(&world).unwrap().phase, Phase::Undone);
    assert_eq!(world.daemons.borrow()[0].shown(), Daemon::new().shown());
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z =0-9]{0,12}", any::<String>().prop_map(|text| text.replace('\0', ""))]
}

fn any_document(definition: &'static str) -> impl Strategy<Value = Document> {
    let labels = proptest::collection::btree_map("[a-z.]{1,8}", text(), 0..4);
    let lease = proptest::option::of((0..1_000_000_u64, 0..1_000_000_000_u32));
    let texts = (text(), text(), text(), text());
    (texts, any::<bool>(), any::<bool>(), labels, lease).prop_map(
        move |((behind, filter, owner, description), enabled, arms, labels, lease)| Document {
            name: "kprobes/b".to_owned(),
            definition: format!("{definition} {behind}"),
            enabled,
            filter,
            labels,
            owner,
            description,
            lease: lease.map(|(seconds, nanos)| Lease::Lasting(Duration::new(seconds, nanos))),
            on_kernel_change: if arms { KernelChange::ArmAnyway } else { KernelChange::Hold },
        },
    )
}

/// It was out of the kernel, and is so again.
#[test]
fn an_undo_deletes_a_probe_whose_lease_had_ended() {
    let lease = Some(Lease::Lasting(Duration::from_mins(1)));
    let document = Document { lease, ..documents().remove(0) };
    let world = Simulated::over(&document);
    {
        let daemon = &mut world.daemons.borrow_mut()[0];
        for probe in daemon.probes.values_mut() {
            probe.set_state(ProbeState::Expired);
        }
        daemon.begun = daemon.probes.clone();
        // It fails the gate after the change.
        daemon.good_readings = Some(1);
    }
    let mut begun = state(1, "100%");
    begun.setting.documents = vec![document];
    let end = whole(&world, begun);
    assert_eq!(end.phase, Phase::Undone, "{}", end.reason);
    let daemon = &world.daemons.borrow()[0];
    assert_eq!((daemon.effects.len(), daemon.shown()), (2, Vec::new()), "it was armed, and is gone");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// What was before goes through the file as a document, and loses nothing.
    #[test]
    fn an_undo_restores_every_part_of_a_probe(
        before in any_document("p:kprobes/b vfs_write"), wanted in any_document("p:kprobes/b vfs_open"),
    ) {
        let world = Simulated::over(&before);
        let mut begun = state(1, "100%");
        begun.setting.documents = vec![wanted.clone()];
        let end = whole(&world, begun);
        prop_assert_eq!(end.phase, Phase::Done, "{}", end.reason);
        prop_assert_eq!(world.daemons.borrow()[0].shown(), vec![wanted]);
        let mut read = State::decode(world.disk.borrow().as_ref().unwrap()).unwrap();
        take_back(&world, &mut read, "wished".to_owned()).unwrap();
        run(drive(&world, &mut read)).unwrap();
        prop_assert_eq!(read.phase, Phase::Undone, "{}", read.reason);
        prop_assert_eq!(world.daemons.borrow()[0].shown(), vec![before]);
    }
}
