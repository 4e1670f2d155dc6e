//! Watched time: when the daemon read the counters of the kernel.
//!
//! Owns the difference between "not hit" and "not known". Times are whole seconds since 1970; the
//! time from `start` to `end` has `end - start` seconds. Never reads a clock.

use std::collections::HashMap;
use std::ops::Range;

use sqlx::{Row as _, SqliteConnection};

use crate::store::StoreError;

/// Spans of time by boot, in order and without overlaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Watched(HashMap<String, Vec<Range<i64>>>);

impl Watched {
    pub(super) async fn read(connection: &mut SqliteConnection) -> Result<Self, StoreError> {
        let rows = sqlx::query("SELECT boot_id, start_s, end_s FROM hit_span").fetch_all(connection).await?;
        let mut spans = HashMap::<String, Vec<Range<i64>>>::new();
        for row in rows {
            // What cannot be read was not watched.
            let (Ok(start_s), Ok(end_s)) = (row.try_get("start_s"), row.try_get("end_s")) else { continue };
            let Ok(boot_id) = row.try_get("boot_id") else { continue };
            spans.entry(boot_id).or_default().push(start_s..end_s);
        }
        Ok(Self(spans.into_iter().map(|(boot, spans)| (boot, joined(spans))).collect()))
    }

    /// The spans of a boot within these limits.
    pub(super) fn within(&self, boot_id: &str, limits: &Range<i64>) -> Vec<Range<i64>> {
        let spans = self.0.get(boot_id).map(Vec::as_slice).unwrap_or_default();
        let cut = spans.iter().map(|span| span.start.max(limits.start)..span.end.min(limits.end));
        cut.filter(|span| !span.is_empty()).collect()
    }

    /// The end of the watched time of a boot.
    pub(super) fn end(&self, boot_id: &str) -> Option<i64> {
        self.0.get(boot_id).and_then(|spans| spans.last()).map(|span| span.end)
    }
}

/// Joins spans that overlap: a clock that was set back shows the same time twice.
fn joined(mut spans: Vec<Range<i64>>) -> Vec<Range<i64>> {
    spans.sort_by_key(|span| (span.start, span.end));
    let mut joined: Vec<Range<i64>> = Vec::with_capacity(spans.len());
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => joined.push(span),
        }
    }
    joined
}

/// Adds the seconds of these spans to intervals of `width` seconds. The first one has the number
/// `first`, counted from 1970. Seconds of other intervals are left out.
pub(super) fn cover(spans: &[Range<i64>], width: i64, first: i64, covered: &mut [i64]) {
    for span in spans {
        let from = span.start.div_euclid(width).max(first);
        let until = (span.end - 1).div_euclid(width).min(first.saturating_add(covered.len() as i64) - 1);
        for interval in from..=until {
            let (start, end) = (interval * width, (interval + 1) * width);
            let seconds = span.end.min(end) - span.start.max(start);
            let index = usize::try_from(interval - first).ok();
            if let Some(sum) = index.and_then(|index| covered.get_mut(index)) {
                *sum += seconds;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span() -> impl Strategy<Value = Range<i64>> {
        (0_i64..500, 0_i64..60).prop_map(|(start, length)| start..start + length)
    }

    proptest! {
        #[test]
        fn seconds_are_counted_once(
            spans in prop::collection::vec(span(), 0..12), limits in span(), width in 1_i64..70, first in -3_i64..20,
            intervals in 0_usize..40,
        ) {
            let watched = Watched(HashMap::from([("1".to_owned(), joined(spans.clone()))]));
            let within = watched.within("1", &limits);
            let mut covered = vec![0; intervals];
            cover(&within, width, first, &mut covered);
            let is_watched = |second: &i64| {
                limits.contains(second) && spans.iter().any(|span| span.contains(second))
            };
            for (interval, found) in (first..).zip(&covered) {
                let seconds = interval * width..(interval + 1) * width;
                prop_assert_eq!(seconds.filter(is_watched).count() as i64, *found);
            }
            prop_assert_eq!(watched.within("2", &limits), Vec::<Range<i64>>::new());
        }
    }
}
