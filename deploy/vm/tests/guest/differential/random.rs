//! Random draws that can be repeated.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use kprobed_vm::progress;

/// A small generator of random numbers (xorshift64).
pub(crate) struct Random(u64);

impl Random {
    /// Draws that are new each time, unless `KPROBED_VM_SEED` names the seed.
    pub(crate) fn new_each_time() -> Result<Self> {
        Self::from_environment(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos().into())
    }

    /// Draws that are the same each time, unless `KPROBED_VM_SEED` names another seed. The seed is printed.
    pub(crate) fn from_environment(default: u64) -> Result<Self> {
        let seed: u64 = match env::var("KPROBED_VM_SEED") {
            Ok(seed) => seed.parse().context("KPROBED_VM_SEED")?,
            Err(_) => default,
        };
        progress::note(format_args!("KPROBED_VM_SEED={seed}"));
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
