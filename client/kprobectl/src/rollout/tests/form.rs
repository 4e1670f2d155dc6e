//! Tests of the state file: its form, damage, and the lock.

use proptest::prelude::*;

use super::super::state::FormError;
use super::super::*;
use super::world::Simulated;
use super::{state, whole};

#[test]
fn another_version_and_damage_are_named() {
    let good = String::from_utf8(state(2, "1,100%").encode().unwrap()).unwrap();
    let problem = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        State::decode(good.replacen(from, to, 1).as_bytes()).unwrap_err()
    };
    assert_eq!(problem("\"format\": 1", "\"format\": 2"), FormError::Version { found: 2 });
    assert!(matches!(problem("\"format\": 1", "\"form\": 1"), FormError::Form(_)));
    assert!(matches!(problem("\"tolerated\"", "\"tolerates\""), FormError::Form(_)));
    assert!(matches!(problem("loss<=0.1%", "loss<0.1%"), FormError::Form(_)));
    assert!(matches!(problem("\"h1\"", "\"h0\""), FormError::Damaged(_)));
    assert!(matches!(problem("\"/h1\"", "\"h1\""), FormError::Damaged(_)));
    assert!(matches!(problem("probe: kprobes/a", "prob: kprobes/a"), FormError::Damaged(_)));
    assert!(matches!(problem("\"wave\": 0", "\"wave\": 9"), FormError::Damaged(_)));
}

#[test]
fn one_process_drives_a_state() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/rollout.json");
    let file = StateFile::lock(&path).unwrap();
    assert!(matches!(StateFile::lock(&path), Err(StateError::InUse(_))));
    file.write(&state(2, "100%")).unwrap();
    assert!(matches!(StateFile::lock(&path), Err(StateError::InUse(_))));
    assert_eq!(StateFile::read(&path).unwrap(), state(2, "100%"));
    drop(file);
    StateFile::lock(&path).unwrap();
    assert!(matches!(StateFile::read(&directory.path().join("absent")), Err(StateError::Read { .. })));
}

/// Whether they outlive a power cut shows on a real disk only; here, that nothing is left out of
/// the path.
#[test]
fn directories_are_made_as_deep_as_asked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a/b/c/rollout.json");
    for _ in 0..2 {
        StateFile::lock(&path).unwrap().write(&state(2, "100%")).unwrap();
    }
    assert_eq!(StateFile::read(&path).unwrap(), state(2, "100%"));
    std::fs::write(directory.path().join("file"), "").unwrap();
    let below_a_file = StateFile::lock(&directory.path().join("file/rollout.json"));
    assert!(matches!(below_a_file, Err(StateError::Lock { .. })), "{below_a_file:?}");
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
