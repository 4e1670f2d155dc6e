//! Bucket: whether spending keeps to a budget, however it is spread.
//!
//! Owns the level of one budget. The bucket holds what may be spent in a second and fills up at
//! that rate, so that a short burst passes, and a rate above the budget empties it: the faster the
//! higher it is. Plain arithmetic: never reads a clock.

use std::time::Duration;

/// The part of a budget that is left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bucket {
    limit_ns_per_s: f64,
    level_ns: f64,
}

impl Bucket {
    /// A full one, of a budget in nanoseconds a second.
    pub(super) const fn full(limit_ns_per_s: u64) -> Self {
        let limit = limit_ns_per_s as f64;
        Self { limit_ns_per_s: limit, level_ns: limit }
    }

    /// So much was spent in that time, evenly.
    pub(super) fn spend(&mut self, spent_ns: f64, elapsed: Duration) {
        let filled = self.level_ns + self.limit_ns_per_s * elapsed.as_secs_f64() - spent_ns;
        self.level_ns = filled.min(self.limit_ns_per_s);
    }

    /// Whether more was spent than the budget.
    pub(super) const fn is_empty(&self) -> bool {
        self.level_ns < 0.0
    }

    /// Whether nothing of it is spent.
    pub(super) fn is_full(&self) -> bool {
        self.level_ns >= self.limit_ns_per_s
    }

    /// Whether more than a quarter of it is spent.
    pub(super) fn is_low(&self) -> bool {
        self.level_ns < 0.75 * self.limit_ns_per_s
    }

    /// Fills it up.
    pub(super) const fn refill(&mut self) {
        self.level_ns = self.limit_ns_per_s;
    }

    /// How long it lasts at that rate. Absent if the rate is within the budget.
    pub(super) fn lasts(&self, ns_per_s: f64) -> Option<Duration> {
        let loss = ns_per_s - self.limit_ns_per_s;
        (loss > 0.0).then(|| Duration::try_from_secs_f64(self.level_ns.max(0.0) / loss).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u64 = 50_000_000;

    #[test]
    fn a_burst_passes_and_a_rate_does_not() {
        let mut bucket = Bucket::full(LIMIT);
        let tick = Duration::from_millis(50);
        // 40 ms of processor time at once, once.
        bucket.spend(40e6, tick);
        assert!(!bucket.is_empty() && bucket.is_low());
        bucket.spend(0.0, Duration::from_secs(1));
        assert!(!bucket.is_low(), "it fills up");
        // A whole processor.
        let mut ticks = 0;
        while !bucket.is_empty() {
            bucket.spend(50e6, tick);
            ticks += 1;
        }
        assert_eq!(ticks, 2, "within 100 ms");
        bucket.refill();
        assert_eq!(bucket, Bucket::full(LIMIT));
        assert_eq!(bucket.lasts(100e6), Some(Duration::from_secs(1)));
        assert_eq!(bucket.lasts(50e6), None);
    }

    proptest! {
        /// A steady rate within the budget never empties it, and one above it always does, after
        /// the time that is predicted.
        #[test]
        fn only_rates_above_the_budget_empty_it(rate in 0.0..500e6_f64, tick_ms in 1_u64..2000) {
            let mut bucket = Bucket::full(LIMIT);
            let tick = Duration::from_millis(tick_ms);
            let lasts = bucket.lasts(rate);
            let (mut ticks, most) = (0_u32, 200_000 / u32::try_from(tick_ms).unwrap() + 2);
            while !bucket.is_empty() && ticks < most {
                bucket.spend(rate * tick.as_secs_f64(), tick);
                ticks += 1;
            }
            match lasts {
                None => prop_assert!(!bucket.is_empty()),
                Some(lasts) if lasts < Duration::from_secs(190) => {
                    prop_assert!(bucket.is_empty());
                    prop_assert!(tick * ticks + Duration::from_micros(1) >= lasts && tick * (ticks - 1) <= lasts + Duration::from_micros(1));
                }
                Some(_) => {}
            }
        }
    }
}
