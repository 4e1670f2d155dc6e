//! Spreading of hits over intervals: the hits between two samples, cut by time.
//!
//! Owns the one rule for it, which rolling up and reading share: hits are spread evenly over the
//! time between the two samples, and rounded so that nothing is lost and nothing is added. All
//! times are whole seconds since 1970. Never reads or writes a table.

use std::ops::Range;

use kprobed_lang::model::Hits;

/// Distributes the hits after the begin of second `since` and before that of second `time` over
/// intervals of `width` seconds, numbered from 1970. Intervals outside of `wanted` get nothing, and
/// so do those without hits. A time without a length belongs to the interval that contains it.
pub(super) fn spread(
    happened: Hits,
    (since, time): (i64, i64),
    width: i64,
    wanted: &Range<i64>,
    mut each: impl FnMut(i64, Hits),
) {
    if happened == Hits::default() {
        return;
    }
    let width = width.max(1);
    if time <= since {
        let interval = time.div_euclid(width);
        if wanted.contains(&interval) {
            each(interval, happened);
        }
        return;
    }
    let (first, last) = (since.div_euclid(width), (time - 1).div_euclid(width));
    // Until the end of an interval. With the last one it is all.
    let until = |interval: i64| {
        let passed = interval.saturating_add(1).saturating_mul(width).min(time).saturating_sub(since).max(0);
        let part = |count: u64| rounded(count, passed.unsigned_abs(), (time - since).unsigned_abs());
        Hits { hits: part(happened.hits), nmissed: part(happened.nmissed) }
    };
    let shown = first.max(wanted.start)..last.saturating_add(1).min(wanted.end);
    let mut before = if shown.start > first { until(shown.start - 1) } else { Hits::default() };
    for interval in shown {
        let now = until(interval);
        let here = Hits { hits: now.hits - before.hits, nmissed: now.nmissed - before.nmissed };
        if here != Hits::default() {
            each(interval, here);
        }
        before = now;
    }
}

/// `count * part / whole`, to the nearest. `part` is not above `whole`.
fn rounded(count: u64, part: u64, whole: u64) -> u64 {
    if part >= whole {
        return count;
    }
    let product = u128::from(count) * u128::from(part);
    let whole = u128::from(whole);
    u64::try_from((product + whole / 2) / whole).unwrap_or(count).min(count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(happened: Hits, times: (i64, i64), width: i64, wanted: &Range<i64>) -> Vec<(i64, u64, u64)> {
        let mut shares = Vec::new();
        spread(happened, times, width, wanted, |interval, hits| {
            shares.push((interval, hits.hits, hits.nmissed));
        });
        shares
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nothing_is_added(
            hits in any::<u64>(), nmissed in 0_u64..10, since in 0_i64..100_000, length in -5_i64..5000,
            width in 1_i64..4000, cut in -10_i64..110_000,
        ) {
            let happened = Hits { hits, nmissed };
            let times = (since, since + length);
            let whole = all(happened, times, width, &(i64::MIN..i64::MAX));
            prop_assert_eq!(whole.iter().map(|(_, hits, _)| u128::from(*hits)).sum::<u128>(), u128::from(hits));
            prop_assert_eq!(whole.iter().map(|(_, _, nmissed)| nmissed).sum::<u64>(), nmissed);
            // Every share lies in the time, and shares of two parts are those of the whole.
            let inside = (since.min(since + length) / width)..=(since.max(since + length) / width);
            prop_assert!(whole.iter().all(|(interval, ..)| inside.contains(interval)));
            let mut parts = all(happened, times, width, &(i64::MIN..cut));
            parts.extend(all(happened, times, width, &(cut..i64::MAX)));
            prop_assert_eq!(parts, whole);
        }
    }

    #[test]
    fn hits_are_spread_evenly() {
        let hits = |hits| Hits { hits, nmissed: 0 };
        let every = i64::MIN..i64::MAX;
        assert_eq!(all(hits(60), (30, 90), 60, &every), [(0, 30, 0), (1, 30, 0)]);
        assert_eq!(all(hits(60), (60, 120), 60, &every), [(1, 60, 0)], "a minute is not cut");
        assert_eq!(all(hits(1), (50, 119), 60, &every), [(1, 1, 0)], "a hit is not cut either");
        assert_eq!(all(hits(7), (60, 60), 60, &every), [(1, 7, 0)]);
        assert_eq!(all(hits(7), (120, 60), 60, &every), [(1, 7, 0)], "a clock that was set back");
        assert_eq!(all(hits(90), (0, 180), 60, &(1..2)), [(1, 30, 0)]);
    }
}
