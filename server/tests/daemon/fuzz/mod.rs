//! Fuzz test on a stable compiler: the corpus, and mutations of it. These follow from `KPROBED_SEED`, and are
//! the same in every run without it.
//!
//! The properties are in `server/fuzz/src`, which is compiled into this test.

#[expect(unreachable_pub, reason = "it is a library of its own too")]
#[path = "../../../fuzz/src/lib.rs"]
mod targets;

pub(super) mod mutate;

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use self::mutate::{Mutator, seed};
use self::targets::{Check, TARGETS};

/// Mutations of each target: as many as fit into the time of a test that always runs.
const MUTATIONS: usize = 1500;

/// Another number of mutations, for a longer search. The first ones are the same.
const MUTATIONS_VARIABLE: &str = "KPROBED_FUZZ_MUTATIONS";

fn mutations() -> usize {
    match std::env::var(MUTATIONS_VARIABLE) {
        Ok(number) => {
            number.parse().unwrap_or_else(|_| panic!("{MUTATIONS_VARIABLE}={number}: not a number"))
        }
        Err(_) => MUTATIONS,
    }
}

fn fuzz_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// The corpus of a target, in the order of the names of its files.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let directory = fuzz_directory().join("corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap()))
        .collect()
}

/// Runs a check, and on failure reports the input and stores it where the fuzzer stores its own.
fn run(target: &str, check: Check, input: &[u8], what: &str) {
    let outcome = catch_unwind(AssertUnwindSafe(|| check(input)));
    if let Err(panic) = outcome {
        let directory = fuzz_directory().join("artifacts").join(target);
        let path = directory.join("crash-of-the-replay");
        fs::create_dir_all(&directory).and_then(|()| fs::write(&path, input)).unwrap();
        eprintln!("{target}: {what}; the input is in {}", path.display());
        std::panic::resume_unwind(panic);
    }
}

fn replay(target: &str) {
    let (_, check) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let corpus = corpus(target);
    assert!(!corpus.is_empty(), "{target} has no corpus");
    for (name, input) in &corpus {
        run(target, *check, input, name);
    }
    let inputs: Vec<&[u8]> = corpus.iter().map(|(_, input)| input.as_slice()).collect();
    let mut mutator = Mutator::new(target);
    for round in 0..mutations() {
        let input = mutator.next(&inputs);
        run(target, *check, &input, &format!("mutation {round}, KPROBED_SEED={}", seed()));
    }
}

macro_rules! replays {
    ($($target:ident)*) => {
        $(
            #[test]
            fn $target() {
                replay(stringify!($target));
            }
        )*

        const REPLAYED: &[&str] = &[$(stringify!($target)),*];
    };
}

replays! {
    batch blacklist btf definition error_log file filter format hist kallsyms kprobe_events lines prototype records
    registered schema spool traceable
}

/// A target is declared in four places.
#[test]
fn every_target_is_fuzzed_and_replayed() {
    let targets: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(targets, REPLAYED.iter().map(|name| (*name).to_owned()).collect());
    let names = |directory: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(fuzz_directory().join(directory)).unwrap();
        entries.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(targets, names("corpus"));
    assert_eq!(targets, names("fuzz_targets"));
    let manifest: toml::Table =
        fs::read_to_string(fuzz_directory().join("Cargo.toml")).unwrap().parse().unwrap();
    let binaries = manifest["bin"].as_array().unwrap();
    assert_eq!(targets, binaries.iter().map(|bin| bin["name"].as_str().unwrap().to_owned()).collect());
}
