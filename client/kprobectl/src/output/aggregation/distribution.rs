//! Distribution of counts over the buckets of a key, with percentiles.
//!
//! A percentile is given as its bucket: nothing is interpolated.

use kprobed_client::api::AggregationRow;

use super::bucket::{Bucket, Scale};
use super::order::value;

/// Counts along a key, in the order of its ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Distribution {
    buckets: Vec<(Bucket, u64)>,
}

impl Distribution {
    /// Of rows that differ in no other key.
    pub(super) fn of(rows: &[&AggregationRow], axis: usize) -> Self {
        let bucket = |row: &&AggregationRow| Some((Bucket::of(value(row.keys.get(axis)))?, row.count));
        let mut buckets: Vec<_> = rows.iter().filter_map(bucket).collect();
        buckets.sort_unstable();
        Self { buckets }
    }

    /// The largest count of a range.
    pub(super) fn highest(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| *count).max().unwrap_or(0)
    }

    /// All ranges from the first to the last, the empty ones too. None: empty ranges that are left out.
    pub(super) fn lines(&self, scale: Scale) -> Vec<Option<(Bucket, u64)>> {
        let mut lines = Vec::with_capacity(self.buckets.len());
        let mut before: Option<Bucket> = None;
        for (bucket, count) in &self.buckets {
            match before.map(|before| before.between(*bucket, scale)) {
                None => {}
                Some(Some(empty)) => lines.extend(empty.into_iter().map(|bucket| Some((bucket, 0)))),
                Some(None) => lines.push(None),
            }
            lines.push(Some((*bucket, *count)));
            before = Some(*bucket);
        }
        lines
    }

    /// The range of the smallest value that is not below this many percent of all, itself among
    /// them (the nearest rank). `None` when nothing was counted.
    pub(super) fn percentile(&self, percent: u128) -> Option<Bucket> {
        let total: u128 = self.buckets.iter().map(|(_, count)| u128::from(*count)).sum();
        let rank = (total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (bucket, count) in &self.buckets {
            seen += u128::from(*count);
            if seen >= rank {
                return Some(*bucket);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn log2(value: u64) -> Bucket {
        match value {
            0 | 1 => Bucket { first: 0, last: 1 },
            _ => {
                let last = i128::from(value.next_power_of_two());
                Bucket { first: last / 2 + 1, last }
            }
        }
    }

    fn distribution(values: &[u64]) -> Distribution {
        let mut buckets: Vec<(Bucket, u64)> = Vec::new();
        for value in values {
            match buckets.iter_mut().find(|(bucket, _)| *bucket == log2(*value)) {
                Some((_, count)) => *count += 1,
                None => buckets.push((log2(*value), 1)),
            }
        }
        buckets.sort_unstable();
        Distribution { buckets }
    }

    proptest! {
        #[test]
        fn percentiles_lie_where_they_are_said_to_lie(mut values in prop::collection::vec(0_u64..1 << 40, 1..300)) {
            let found = distribution(&values);
            values.sort_unstable();
            let exact = |percent: usize| values[(values.len() * percent).div_ceil(100) - 1];
            for percent in [50_usize, 90, 99, 100] {
                prop_assert_eq!(found.percentile(percent as u128), Some(log2(exact(percent))));
            }
        }

        #[test]
        fn lines_hold_every_count(values in prop::collection::vec(0_u64..1 << 62, 1..100)) {
            let lines = distribution(&values).lines(Scale::Log2);
            let counted = lines.iter().flatten().map(|(_, count)| *count);
            prop_assert_eq!(counted.sum::<u64>(), values.len() as u64);
            // No range is left out between powers of two.
            let ranges: Vec<_> = lines.iter().flatten().map(|(bucket, _)| *bucket).collect();
            prop_assert_eq!(ranges.len(), lines.len());
            prop_assert!(ranges.windows(2).all(|pair| pair[0].last + 1 == pair[1].first));
        }
    }

    #[test]
    fn nothing_has_no_percentiles() {
        assert_eq!(distribution(&[]).percentile(50), None);
        assert_eq!(distribution(&[]).highest(), 0);
    }
}
