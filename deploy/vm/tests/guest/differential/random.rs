//! Random numbers that can be repeated from a seed.
//!
//! Owns from what a run draws: from `KPROBED_VM_SEED` if it is set; in CI from the commit, so that
//! a run can be repeated and the next commit draws others; elsewhere from the time. Each theme, and
//! each of its rounds, draws differently.

use std::env;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::{progress, workspace};

/// A small generator of random numbers (xorshift64).
pub(crate) struct Random(u64);

/// Whether this is CI, where nothing may be left out.
pub(crate) fn is_ci() -> bool {
    env::var_os("CI").is_some_and(|ci| !ci.is_empty())
}

/// Whether another run of the same commit must give what this one gives.
pub(crate) fn is_repeatable() -> bool {
    is_ci() || env::var("KPROBED_VM_EFFORT").is_ok_and(|effort| effort == "ci")
}

/// The first eight digits of the commit; the same ones for each source that has none.
pub(crate) fn commit() -> &'static str {
    static COMMIT: OnceLock<String> = OnceLock::new();
    COMMIT.get_or_init(|| {
        head().unwrap_or_else(|error| {
            progress::note(format_args!("every run draws alike, because no commit is known: {error:#}"));
            "0".repeat(DIGITS)
        })
    })
}

/// Digits of a commit that are used.
const DIGITS: usize = 8;

fn head() -> Result<String> {
    let root = workspace::root().context("the source is not here")?;
    let output = Command::new("git")
        .args(["rev-parse", "HEAD"])
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .context("git")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let hash = String::from_utf8(output.stdout)?;
    hash.get(..DIGITS).map(str::to_owned).context("git prints no commit")
}

/// What all draws of this run follow from.
pub(crate) fn seed_of_run() -> &'static str {
    static SEED: OnceLock<String> = OnceLock::new();
    SEED.get_or_init(|| {
        let seed = env::var("KPROBED_VM_SEED").ok().filter(|seed| !seed.is_empty());
        let seed = seed.or_else(|| is_repeatable().then(|| commit().to_owned())).unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            format!("{:08x}", now.subsec_nanos())
        });
        progress::note(format_args!("draws follow from KPROBED_VM_SEED={seed}"));
        seed
    })
}

/// A number that follows from a text and from what it is for.
pub(crate) fn mix(text: &str, purpose: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (text, purpose).hash(&mut hasher);
    hasher.finish()
}

/// The seeds of a theme that has `rounds` of draws.
pub(crate) fn seeds(theme: &str, rounds: usize) -> impl Iterator<Item = u64> {
    (0..rounds).map(move |round| mix(seed_of_run(), (theme, round)))
}

impl Random {
    /// The draws of a theme that has one round of them.
    pub(crate) fn of_theme(theme: &str) -> Self {
        Self::seeded(mix(seed_of_run(), (theme, 0_usize)))
    }

    /// The draws of a seed.
    pub(crate) fn seeded(seed: u64) -> Self {
        // Neighbouring seeds shall not begin alike.
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number from 0 to below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap_or(0) % bound.max(1)
    }

    /// One of these.
    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
