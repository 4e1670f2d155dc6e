//! Map from the trace clock of one boot of a host to the local clock.
//!
//! Owns the step at a new measurement: the new offset applies from then on, and the local time of a
//! host never decreases.

/// Offsets that are remembered: events that were read before the last comparisons may still wait
/// for other hosts.
const REMEMBERED: usize = 32;

/// Times in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// From this time stamp on.
    from: u64,
    offset: i64,
    /// No local time in it is earlier than this.
    floor: i64,
}

/// Maps time stamps to the local clock. It never decreases.
#[derive(Clone, Debug)]
pub(super) struct TimeMap {
    stretches: Vec<Stretch>,
}

impl TimeMap {
    pub(super) fn new(offset_ns: i64) -> Self {
        Self { stretches: vec![Stretch { from: 0, offset: offset_ns, floor: i64::MIN }] }
    }

    /// The local time of a time stamp, in nanoseconds since 1970.
    pub(super) fn local_ns(&self, timestamp_ns: u64) -> i64 {
        let behind = self.stretches.partition_point(|stretch| stretch.from <= timestamp_ns);
        let Some(stretch) = behind.checked_sub(1).and_then(|index| self.stretches.get(index)) else {
            return i64::MIN;
        };
        let local = i128::from(timestamp_ns) + i128::from(stretch.offset);
        // Both ends are centuries away.
        i64::try_from(local).unwrap_or(i64::MAX).max(stretch.floor)
    }

    /// Applies another offset from this time stamp on, or from the last change if that is later.
    pub(super) fn adjust(&mut self, offset_ns: i64, from_ns: u64) {
        let Some(last) = self.stretches.last_mut() else { return };
        if from_ns <= last.from {
            last.offset = offset_ns;
            return;
        }
        if last.offset != offset_ns {
            let floor = self.local_ns(from_ns);
            self.stretches.push(Stretch { from: from_ns, offset: offset_ns, floor });
        }
        if self.stretches.len() > REMEMBERED {
            self.stretches.remove(0);
            if let Some(first) = self.stretches.first_mut() {
                first.from = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_order_of_a_host_stays_whatever_its_clock_does(
            offsets in proptest::collection::vec((-1_000..1_000_i64, 0..10_000_u64), 0..60),
            mut stamps in proptest::collection::vec(0..10_000_u64, 1..50),
        ) {
            stamps.sort_unstable();
            let mut map = TimeMap::new(0);
            for (offset, from) in &offsets {
                map.adjust(*offset, *from);
            }
            let local: Vec<_> = stamps.iter().map(|stamp| map.local_ns(*stamp)).collect();
            prop_assert!(local.is_sorted(), "{:?}", local);
        }
    }

    #[test]
    fn what_was_before_a_comparison_stays_where_it_was() {
        let mut map = TimeMap::new(1_000);
        map.adjust(900, 50);
        assert_eq!(
            [0, 49, 50, 100, 149, 150, 151].map(|stamp| map.local_ns(stamp)),
            [1_000, 1_049, 1_050, 1_050, 1_050, 1_050, 1_051]
        );
        map.adjust(2_000, 200);
        assert_eq!([199, 200].map(|stamp| map.local_ns(stamp)), [1_099, 2_200]);
        assert_eq!(TimeMap::new(i64::MAX).local_ns(u64::MAX), i64::MAX);
    }
}
