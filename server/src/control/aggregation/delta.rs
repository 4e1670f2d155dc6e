//! Difference of two snapshots of an aggregation.
//!
//! Owns the subtraction, row by row. Never reads the kernel's tables.

use std::collections::BTreeMap;

use super::{Row, Snapshot, SumValue};

impl Snapshot {
    /// What was counted since an earlier snapshot of the same aggregation: rows that have grown, by
    /// how much.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let earlier: BTreeMap<_, _> = before.rows.iter().map(|row| (&row.keys, row)).collect();
        let grown = |row: &Row| match earlier.get(&row.keys) {
            None => Some(row.clone()),
            Some(then) if then.count == row.count => None,
            Some(then) => Some(Row {
                keys: row.keys.clone(),
                count: row.count.wrapping_sub(then.count),
                sums: row.sums.iter().zip(&then.sums).map(|(now, then)| now.minus(*then)).collect(),
            }),
        };
        Self {
            name: self.name.clone(),
            time: self.time,
            since: before.time,
            delta: true,
            rows: self.rows.iter().filter_map(grown).collect(),
            hits: self.hits.saturating_sub(before.hits),
            dropped: self.dropped.saturating_sub(before.dropped),
            kernel_rows: self.kernel_rows,
            starts: self.starts.saturating_sub(before.starts),
            match_dropped: self.match_dropped.saturating_sub(before.match_dropped),
            own: self.own.map(|own| own.saturating_sub(before.own.unwrap_or_default())),
        }
    }
}

impl SumValue {
    fn minus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Signed(now), Self::Signed(then)) => Self::Signed(now.wrapping_sub(then)),
            (Self::Unsigned(now), Self::Unsigned(then)) => Self::Unsigned(now.wrapping_sub(then)),
            (now, _) => now,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::super::KeyValue;
    use super::*;

    #[test]
    fn only_growth_is_told() {
        let row = |key, count, sum| Row {
            keys: vec![KeyValue::Unsigned(key)],
            count,
            sums: vec![SumValue::Signed(sum)],
        };
        let before = Snapshot {
            name: "a".to_owned(),
            time: SystemTime::UNIX_EPOCH,
            since: SystemTime::UNIX_EPOCH,
            delta: false,
            rows: vec![row(1, 5, 50), row(2, 1, 1)],
            hits: 6,
            dropped: 0,
            kernel_rows: 2,
            starts: 0,
            match_dropped: 0,
            own: Some(4),
        };
        let now = Snapshot {
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(1),
            rows: vec![row(1, 7, 40), row(2, 1, 1), row(3, 4, 4)],
            hits: 12,
            dropped: 3,
            kernel_rows: 3,
            own: Some(9),
            ..before.clone()
        };
        let delta = now.since(&before);
        assert_eq!(delta.rows, [row(1, 2, -10), row(3, 4, 4)]);
        assert_eq!((delta.hits, delta.dropped, delta.kernel_rows, delta.delta), (6, 3, 3, true));
        assert_eq!((delta.since, delta.own), (before.time, Some(5)));
    }
}
