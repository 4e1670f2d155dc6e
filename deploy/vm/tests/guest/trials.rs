//! What earlier runs have noted of trials: a file in the cache, by which later ones are scheduled.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use kprobed_vm::cache::Cache;

/// What is noted of a trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Noted {
    pub(crate) wall: Duration,
    /// Whether it has used a shared guest.
    pub(crate) is_shared: bool,
    /// The machine with which it has passed, if that is what it is about: see [`machine`].
    pub(crate) passed_with: String,
}

/// By the name of the trial.
pub(crate) type Notes = BTreeMap<String, Noted>;

/// A line for each trial: name, seconds, `shared` or `own`, and the machine.
const FILE: &str = "trials.tsv";

/// What earlier runs have noted; nothing if there was none.
pub(crate) fn noted() -> Notes {
    let file = Cache::from_environment().map(|cache| cache.root().join(FILE));
    parse(&file.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default())
}

/// Adds to what earlier runs have noted.
pub(crate) fn note(new: Notes) -> io::Result<()> {
    let Some(cache) = Cache::from_environment() else { return Ok(()) };
    let mut all = noted();
    all.extend(new);
    fs::create_dir_all(cache.root())?;
    fs::write(cache.root().join(FILE), text(&all))
}

fn parse(text: &str) -> Notes {
    let seconds = |text: &str| Duration::try_from_secs_f64(text.parse().ok()?).ok();
    let noted = |line: &str| {
        let [name, wall, whose, passed_with] = line.split('\t').collect::<Vec<_>>()[..] else {
            return None;
        };
        let noted =
            Noted { wall: seconds(wall)?, is_shared: whose == "shared", passed_with: passed_with.to_owned() };
        Some((name.to_owned(), noted))
    };
    text.lines().filter_map(noted).collect()
}

fn text(notes: &Notes) -> String {
    let line = |(name, noted): (&String, &Noted)| {
        let wall = noted.wall.as_secs_f64();
        let whose = if noted.is_shared { "shared" } else { "own" };
        format!("{name}\t{wall:.1}\t{whose}\t{}\n", noted.passed_with)
    };
    notes.iter().map(line).collect()
}

/// What the tests of the machine depend on: the sources of this crate, its dependencies, what runs trials and gives
/// them guests, QEMU, and the kernel. Empty, which no trial has passed with, if one of them is not here yet.
pub(crate) fn machine(series: &str) -> String {
    let of_machine = || {
        let kernel = Cache::from_environment()?.kernels().find(series)?;
        let qemu = Command::new("qemu-system-x86_64").arg("--version").stdin(Stdio::null()).output().ok()?;
        let crate_ = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut hasher = DefaultHasher::new();
        (kernel.release, qemu.stdout).hash(&mut hasher);
        let of_guests =
            ["machine.rs", "report.rs", "schedule.rs", "fixture.rs", "daemon.rs", "daemon/clean.rs"];
        let of_guests = of_guests.map(|file| format!("tests/guest/{file}"));
        let of_crate = ["src", "Cargo.toml", "../../Cargo.lock"].map(str::to_owned);
        for part in of_crate.into_iter().chain(of_guests) {
            for file in files(crate_.join(part)).ok()? {
                (fs::read(&file).ok()?, file).hash(&mut hasher);
            }
        }
        Some(format!("{:016x}", hasher.finish()))
    };
    of_machine().unwrap_or_default()
}

/// The files below a path, which may be one, in their order.
fn files(path: PathBuf) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path]);
    }
    let mut inner: Vec<_> = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    inner.sort();
    let mut found = Vec::new();
    for path in inner {
        found.extend(files(path)?);
    }
    Ok(found)
}
