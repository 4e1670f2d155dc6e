//! Exponential backoff between attempts to reach a receiver, with jitter.

use std::time::Duration;

/// The first wait, before jitter.
const FIRST: Duration = Duration::from_millis(250);

/// The longest.
const LONGEST: Duration = Duration::from_secs(30);

/// Waits that double with each failure in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// How long to wait after one more failure. `random` is any number: many daemons do not come
    /// back at the same moment.
    pub(super) fn next(&mut self, random: u64) -> Duration {
        let full = FIRST.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let percent = u32::try_from(random % 51).unwrap_or(0);
        full.saturating_sub(full / 100 * percent)
    }

    /// Starts again with the first wait.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_an_end() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..9).map(|_| backoff.next(0).as_millis()).collect();
        assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(backoff.next(50), LONGEST / 2);
        backoff.reset();
        assert_eq!(backoff.next(51), FIRST);
    }
}
