//! Buckets of histograms: their bounds, their notation, and the distribution of counts over them, with percentiles.
//!
//! An end in a square bracket is part of the bucket, one in a round bracket is not. A percentile is given as its
//! bucket: nothing is interpolated.

use clap::ValueEnum;
use kprobed_client::api::key_value::Value;
use kprobed_client::api::{AggregationRow, KeyValue};

/// The value of a key, if there is one.
pub(super) fn value(key: Option<&KeyValue>) -> Option<&Value> {
    key.and_then(|key| key.value.as_ref())
}

/// A range, both ends included. Numbers of either sign fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bucket {
    pub(super) first: i128,
    pub(super) last: i128,
}

/// How the buckets of a key follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// Powers of two, each with what is above the one before.
    Log2,
    /// Of this width, 1 or more.
    Linear(u64),
}

/// What the numbers of a key are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    Number,
    Hexadecimal,
    Nanoseconds(LatencyUnit),
}

/// The unit in which latencies are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LatencyUnit {
    /// The unit that fits each number, and follows it
    Auto,
    /// Nanoseconds
    Ns,
    /// Microseconds
    Us,
    /// Milliseconds
    Ms,
    /// Seconds
    S,
}

/// Empty buckets of equal width between two others that are drawn; more are left out.
const MAX_GAP: usize = 16;

impl Bucket {
    /// The range of a key, if it is one.
    pub(super) fn of(value: Option<&Value>) -> Option<Self> {
        match value? {
            Value::UnsignedBucket(bucket) => {
                Some(Self { first: bucket.first.into(), last: bucket.last.into() })
            }
            Value::SignedBucket(bucket) => {
                Some(Self { first: bucket.first.into(), last: bucket.last.into() })
            }
            _ => None,
        }
    }

    /// The empty buckets between this one and a later one. `None`: too many, or not known.
    pub(super) fn between(self, next: Self, scale: Scale) -> Option<Vec<Self>> {
        let most = if scale == Scale::Log2 { 64 } else { MAX_GAP };
        let mut found = Vec::new();
        let mut first = self.last.checked_add(1)?;
        while first < next.first {
            let last = match scale {
                Scale::Log2 => {
                    i128::try_from(u128::try_from(first).ok()?.checked_next_power_of_two()?).ok()?
                }
                Scale::Linear(width) => first.checked_add(i128::from(width).checked_sub(1)?)?,
            };
            // The bucket before 0 may be narrower.
            if last >= next.first || (first < 0 && last >= 0) || found.len() >= most {
                return None;
            }
            found.push(Self { first, last });
            first = last.checked_add(1)?;
        }
        Some(found)
    }

    pub(super) fn label(self, scale: Scale, quantity: Quantity) -> String {
        let number = |number| quantity.exact(number);
        let Self { first, last } = self;
        let unbounded = last == i128::from(u64::MAX);
        match scale {
            Scale::Log2 if last < 0 => format!("(..., {})", number(0)),
            Scale::Log2 if first <= 0 => format!("[{}, {}]", number(first), number(last)),
            Scale::Log2 if unbounded => format!("({}, ...)", number(first - 1)),
            Scale::Log2 => format!("({}, {}]", number(first - 1), number(last)),
            Scale::Linear(_) if unbounded => format!("[{}, ...)", quantity.bound(first)),
            Scale::Linear(_) => {
                format!("[{}, {})", quantity.bound(first), quantity.bound(last.saturating_add(1)))
            }
        }
    }
}

impl Quantity {
    /// A number, shortened where nothing is lost by it.
    fn exact(self, number: i128) -> String {
        const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
        if self != Self::Number {
            return self.plain(number);
        }
        let powers = (number.trailing_zeros() / 10).min(6);
        match UNITS.get(powers as usize) {
            Some(unit) if number != 0 => format!("{}{unit}", number >> (powers * 10)),
            _ => number.to_string(),
        }
    }

    /// A bound of buckets of equal width, with all its digits: the next one may differ in the last.
    fn bound(self, number: i128) -> String {
        match self {
            Self::Nanoseconds(unit) if number != 0 => unit.exact(number),
            _ => self.exact(number),
        }
    }

    /// A number with all its digits; a time with as many as people read.
    pub(super) fn plain(self, number: i128) -> String {
        match self {
            Self::Number => number.to_string(),
            Self::Hexadecimal if number < 0 => format!("-{:#x}", number.unsigned_abs()),
            Self::Hexadecimal => format!("{number:#x}"),
            Self::Nanoseconds(_) if number == 0 => "0".to_owned(),
            Self::Nanoseconds(unit) => unit.text(number as f64),
        }
    }

    /// An average.
    pub(super) fn average(self, sum: i128, count: u64) -> String {
        if count == 0 {
            return "-".to_owned();
        }
        if let Self::Nanoseconds(unit) = self {
            return unit.text(sum as f64 / count as f64);
        }
        // Of a number of 64 bits, a floating point number has 53.
        let (size, count) = (sum.unsigned_abs(), u128::from(count));
        let tenths = (size.saturating_mul(20) + count) / (2 * count);
        let sign = if sum < 0 && tenths > 0 { "-" } else { "" };
        trimmed(format!("{sign}{}.{}", tenths / 10, tenths % 10))
    }
}

impl LatencyUnit {
    /// The unit for a heading: empty if every number has its own.
    pub(super) const fn heading(self) -> &'static str {
        match self {
            Self::Auto => "",
            Self::Ns => "ns",
            Self::Us => "us",
            Self::Ms => "ms",
            Self::S => "s",
        }
    }

    /// Nanoseconds in this unit, to three decimals or four digits.
    fn text(self, ns: f64) -> String {
        let per_unit = match self {
            Self::Auto => return automatic(ns),
            Self::Ns => 1.0,
            Self::Us => 1e3,
            Self::Ms => 1e6,
            Self::S => 1e9,
        };
        trimmed(format!("{:.3}", ns / per_unit))
    }

    /// The same with all its digits.
    fn exact(self, ns: i128) -> String {
        let size = ns.unsigned_abs();
        let (digits, name) = match self {
            Self::Auto if size < 1_000 => (0, "ns"),
            Self::Auto if size < 1_000_000 => (3, "us"),
            Self::Auto if size < 1_000_000_000 => (6, "ms"),
            Self::Auto => (9, "s"),
            Self::Ns => (0, ""),
            Self::Us => (3, ""),
            Self::Ms => (6, ""),
            Self::S => (9, ""),
        };
        let per_unit = 10_u128.pow(digits);
        let (whole, part, width) = (size / per_unit, size % per_unit, digits as usize);
        let sign = if ns < 0 { "-" } else { "" };
        let number = if part == 0 { whole.to_string() } else { trimmed(format!("{whole}.{part:0width$}")) };
        format!("{sign}{number}{name}")
    }
}

fn automatic(ns: f64) -> String {
    // What would be rounded up to 1000 of a unit belongs to the next one.
    let (unit, name) = match ns {
        ns if ns < 999.95 => (1.0, "ns"),
        ns if ns < 999.95e3 => (1e3, "us"),
        ns if ns < 999.95e6 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    let number = ns / unit;
    let decimals = if number < 9.9995 {
        3
    } else if number < 99.995 {
        2
    } else {
        1
    };
    format!("{}{name}", trimmed(format!("{number:.decimals$}")))
}

/// Without zeros at the end of its decimals.
fn trimmed(number: String) -> String {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.').to_owned() } else { number }
}

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

    fn bucket(first: i128, last: i128) -> Bucket {
        Bucket { first, last }
    }

    #[test]
    fn labels_say_what_is_in_a_bucket() {
        let log2 = |first, last| bucket(first, last).label(Scale::Log2, Quantity::Number);
        assert_eq!(log2(0, 1), "[0, 1]");
        assert_eq!(log2(2, 2), "(1, 2]");
        assert_eq!(log2(513, 1024), "(512, 1K]");
        assert_eq!(log2(i64::MIN.into(), -1), "(..., 0)");
        assert_eq!(log2((1 << 63) + 1, u64::MAX.into()), "(8E, ...)");
        let linear = |first, last, width| bucket(first, last).label(Scale::Linear(width), Quantity::Number);
        assert_eq!(linear(-100, -97, 4), "[-100, -96)");
        assert_eq!(linear(4096, 8191, 4096), "[4K, 8K)");
        assert_eq!(linear(i128::from(u64::MAX) - 3, u64::MAX.into(), 10), "[18446744073709551612, ...)");
        let hexadecimal = bucket(16, 31).label(Scale::Linear(16), Quantity::Hexadecimal);
        assert_eq!(hexadecimal, "[0x10, 0x20)");
    }

    #[test]
    fn latencies_have_units() {
        let label = |unit| bucket(1_048_577, 2_097_152).label(Scale::Log2, Quantity::Nanoseconds(unit));
        assert_eq!(label(LatencyUnit::Auto), "(1.049ms, 2.097ms]");
        assert_eq!(label(LatencyUnit::Us), "(1048.576, 2097.152]");
        assert_eq!(label(LatencyUnit::S), "(0.001, 0.002]");
        // Buckets of equal width can be narrower than the digits that are read of a time.
        let narrow =
            |first, last, unit| bucket(first, last).label(Scale::Linear(5_000), Quantity::Nanoseconds(unit));
        assert_eq!(narrow(11_565_000, 11_569_999, LatencyUnit::Auto), "[11.565ms, 11.57ms)");
        assert_eq!(narrow(11_565_000, 11_569_999, LatencyUnit::S), "[0.011565, 0.01157)");
        assert_eq!(narrow(999_995_000, 999_999_999, LatencyUnit::Auto), "[999.995ms, 1s)");
        assert_eq!(narrow(0, 4_999, LatencyUnit::Us), "[0, 5)");
        let auto = |ns: i128| Quantity::Nanoseconds(LatencyUnit::Auto).plain(ns);
        assert_eq!(
            [0, 512, 999, 1_000, 999_949, 999_960].map(auto),
            ["0", "512ns", "999ns", "1us", "999.9us", "1ms"]
        );
        assert_eq!(auto(90_000_000_000), "90s");
        assert_eq!(Quantity::Number.average(7, 2), "3.5");
        assert_eq!(Quantity::Number.average(7, 0), "-");
        assert_eq!(Quantity::Number.average(-7, 3), "-2.3");
        assert_eq!(Quantity::Number.average(-1, 100), "0");
        assert_eq!(Quantity::Number.average(7_311_066_746_820_913_484, 1), "7311066746820913484");
    }

    #[test]
    fn gaps_are_filled() {
        let log2 = bucket(2, 2).between(bucket(9, 16), Scale::Log2).unwrap();
        assert_eq!(log2, [bucket(3, 4), bucket(5, 8)]);
        let linear = bucket(0, 9).between(bucket(30, 39), Scale::Linear(10)).unwrap();
        assert_eq!(linear, [bucket(10, 19), bucket(20, 29)]);
        assert_eq!(bucket(0, 9).between(bucket(1000, 1009), Scale::Linear(10)), None);
        assert_eq!(bucket(i64::MIN.into(), -1).between(bucket(0, 1), Scale::Log2), Some(Vec::new()));
        assert_eq!(bucket(-100, -97).between(bucket(0, 3), Scale::Linear(3)), None);
    }

    proptest! {
        #[test]
        fn any_ranges_are_written(first: i64, last: u64, next: u64, width: u64, log2: bool) {
            let scale = if log2 { Scale::Log2 } else { Scale::Linear(width) };
            let one = bucket(first.into(), last.into());
            for quantity in [Quantity::Number, Quantity::Hexadecimal, Quantity::Nanoseconds(LatencyUnit::Auto)] {
                prop_assert!(one.label(scale, quantity).contains(", "));
            }
            let next = bucket(next.into(), next.into());
            if let Some(gap) = one.between(next, scale) {
                let ends: Vec<_> = gap.iter().map(|gap| gap.last).collect();
                let begins: Vec<_> = gap.iter().map(|gap| gap.first - 1).collect();
                prop_assert_eq!(ends.split_last().map(|(_, rest)| rest), begins.split_first().map(|(_, rest)| rest));
            }
        }

        #[test]
        fn log2_gaps_leave_nothing_out(low in 0_u32..62, more in 1_u32..40) {
            let of = |exponent: u32| match exponent {
                0 => bucket(0, 1),
                _ => bucket((1 << (exponent - 1)) + 1, 1 << exponent),
            };
            let high = (low + more).min(63);
            let gap = of(low).between(of(high), Scale::Log2).unwrap();
            prop_assert_eq!(gap, (low + 1..high).map(of).collect::<Vec<_>>());
        }
    }

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
