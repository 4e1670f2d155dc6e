//! Random numbers that can be repeated from a seed.
//!
//! Owns which seeds a run takes: in CI always the same, so that a failure comes from a change;
//! elsewhere new ones, so that each run covers more; and those that `KPROBED_VM_SEED` names, to
//! repeat one.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};

use crate::fixture::Fixture;
use crate::report;

/// A small generator of random numbers (xorshift64).
pub(crate) struct Random(u64);

/// The seeds of CI: for each theme as many of them as it has rounds. Chosen for nothing that they
/// show.
const FIXED: [u64; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// Whether this run must give what the last one gave.
pub(crate) fn is_repeatable() -> bool {
    env::var_os("CI").is_some_and(|ci| !ci.is_empty())
        || env::var("KPROBED_VM_EFFORT").is_ok_and(|effort| effort == "ci")
}

/// The seeds of a theme that has `rounds` of draws. They are printed, and so is the command that
/// repeats them if the trial fails.
pub(crate) fn seeds(fixture: &Fixture, theme: &str, rounds: usize) -> Result<Vec<u64>> {
    let seeds = match env::var("KPROBED_VM_SEED") {
        Ok(named) => named
            .split(',')
            .map(|seed| seed.trim().parse())
            .collect::<Result<Vec<u64>, _>>()
            .with_context(|| format!("KPROBED_VM_SEED={named}"))?,
        Err(_) if is_repeatable() => FIXED.into_iter().cycle().take(rounds).collect(),
        Err(_) => {
            let now: u64 = SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos().into();
            (0..rounds as u64).map(|round| now.wrapping_add(round)).collect()
        }
    };
    let list: Vec<_> = seeds.iter().map(u64::to_string).collect();
    report::drawn(fixture, theme, list.join(","));
    Ok(seeds)
}

impl Random {
    /// The draws of a theme that has one round of them.
    pub(crate) fn of_theme(fixture: &Fixture, theme: &str) -> Result<Self> {
        let seed = seeds(fixture, theme, 1)?.first().copied().context("KPROBED_VM_SEED names no seed")?;
        Ok(Self::seeded(seed))
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
