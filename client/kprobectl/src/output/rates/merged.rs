//! Hits over time by the name of a probe, over all boots and definitions.

use std::collections::BTreeMap;

use kprobed_client::HitRates;

/// Hits of one interval, or of several that are shown as one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Interval {
    pub(super) covered_seconds: u64,
    pub(super) hits: u64,
    pub(super) nmissed: u64,
}

impl Interval {
    /// Hits per second, if anything is known.
    pub(super) fn rate(self) -> Option<f64> {
        (self.covered_seconds > 0).then(|| self.hits as f64 / self.covered_seconds as f64)
    }

    fn add(&mut self, other: Self) {
        self.covered_seconds = self.covered_seconds.saturating_add(other.covered_seconds);
        self.hits = self.hits.saturating_add(other.hits);
        self.nmissed = self.nmissed.saturating_add(other.nmissed);
    }
}

/// All of some intervals.
pub(super) fn sum(intervals: &[Interval]) -> Interval {
    intervals.iter().fold(Interval::default(), |mut sum, interval| {
        sum.add(*interval);
        sum
    })
}

/// The intervals of each name from `first` on, which is counted in steps since 1970.
pub(super) fn by_name(rates: &HitRates, first: i64, intervals: usize) -> BTreeMap<&str, Vec<Interval>> {
    let step = i64::from(rates.step_seconds.max(1));
    let mut names = BTreeMap::<&str, Vec<Interval>>::new();
    for series in &rates.series {
        let row = names.entry(series.probe.as_str()).or_insert_with(|| vec![Interval::default(); intervals]);
        for point in &series.points {
            let number = point.start_time.as_ref().map(|time| time.seconds.div_euclid(step));
            let index = number.and_then(|number| usize::try_from(number.checked_sub(first)?).ok());
            if let Some(interval) = index.and_then(|index| row.get_mut(index)) {
                interval.add(Interval {
                    covered_seconds: point.covered_seconds.into(),
                    hits: point.hits,
                    nmissed: point.nmissed,
                });
            }
        }
    }
    names
}
