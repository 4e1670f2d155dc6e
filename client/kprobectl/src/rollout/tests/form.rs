//! Tests of the state file: its form, and damage.

use kprobed_document::document_of;
use proptest::prelude::*;

use super::super::*;
use super::world::{Daemon, Simulated};
use super::{documents, state, whole};

#[test]
fn another_version_and_damage_are_named() {
    let good = String::from_utf8(state(2, "1,100%").encode().unwrap()).unwrap();
    let problem = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        State::decode(good.replacen(from, to, 1).as_bytes()).unwrap_err()
    };
    let form = "it is not the state of a roll-out: ";
    for (from, to, wanted) in [
        ("\"format\": 1", "\"format\": 2", "it has the form 2, and this command reads the form 1"),
        ("\"format\": 1", "\"form\": 1", form),
        ("\"tolerated\"", "\"tolerates\"", form),
        ("loss<=0.1%", "loss<0.1%", form),
        ("probe: kprobes/a", "prob: kprobes/a", form),
        ("\"h1\"", "\"h0\"", "it is damaged: the host `h0` is there twice"),
        ("\"/h1\"", "\"h1\"", "it is damaged: the host `h1` has no address: "),
        ("\"wave\": 1", "\"wave\": 9", "it is damaged: `wave` is 9, and there are 2"),
        ("\"wave\": 1", "\"wave\": 0", "it is damaged: `wave` is 0, and there are 2"),
        ("\"changes\": {}", "\"changes\": {\"k/x\": null}", "it is damaged: the host `h0` has `k/x`"),
    ] {
        let found = problem(from, to);
        assert!(found.starts_with(wanted), "{from} -> {to}: {found}");
    }
}

/// What a person reads in the file of a roll-out that stands in the middle of a change.
#[test]
fn a_state_can_be_read() {
    let world = Simulated::new(1);
    world.daemons.borrow_mut()[0].hides_answers = true;
    let end = whole(&world, state(1, "100%"));
    let read: serde_json::Value = serde_json::from_slice(&end.encode().unwrap()).unwrap();
    let host = &read["hosts"][0];
    assert_eq!((&host["step"], &host["note"]), (&"intended".into(), &"no answer within 1s".into()));
    assert_eq!(host["changes"], serde_json::json!({"kprobes/a": null, "kprobes/b": "e1"}));
    let before = kprobed_document::write(&[document_of(&Daemon::new().probes["kprobes/b"])]).unwrap();
    assert_eq!(host["before"], serde_json::Value::String(before));
    assert_eq!(host["armed"], serde_json::json!({"kprobes/same": {"uid": 2, "etag": "e2"}}));
    let all = kprobed_document::write(&documents()).unwrap();
    assert_eq!(read["setting"]["documents"], serde_json::Value::String(all));
}

proptest! {
    #[test]
    fn no_bytes_are_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        State::decode(&bytes).ok();
    }

    #[test]
    fn a_damaged_state_is_refused_or_read_and_never_driven_blindly(
        at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(),
    ) {
        let world = Simulated::new(2);
        let end = whole(&world, state(2, "1,100%"));
        let mut bytes = end.encode().unwrap();
        let place = at.index(bytes.len());
        bytes[place] = byte;
        if let Ok(state) = State::decode(&bytes) {
            // What is taken can be written and read again.
            prop_assert_eq!(State::decode(&state.encode().unwrap()).unwrap(), state);
        }
        bytes.truncate(cut.index(bytes.len() - 2));
        prop_assert!(State::decode(&bytes).is_err());
    }
}
