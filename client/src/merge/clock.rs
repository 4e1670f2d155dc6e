//! Offset of a host's clock from the local clock, and the local times of its time stamps.
//!
//! Owns the measurement: of several exchanges over the connection, the quickest counts. Owns the step at a new one as
//! well: the new offset applies from then on, and the local time of a host never decreases.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::api::ReadClockResponse;
use crate::client::Client;
use crate::error::Error;

/// Exchanges of a measurement. The first one on a new connection is slow, and any other can be.
const EXCHANGES: u32 = 5;

/// The local clock: the wall clock when it was created, and monotonic since then, so that setting
/// the wall clock does not change it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalClock {
    wall_ns: i64,
    begun: Instant,
}

impl LocalClock {
    pub(super) fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { wall_ns: i64::try_from(wall.as_nanos()).unwrap_or(i64::MAX), begun: Instant::now() }
    }

    /// Nanoseconds since 1970.
    fn now_ns(&self) -> i64 {
        self.wall_ns.saturating_add(i64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(i64::MAX))
    }
}

/// One reading of a host's clock, in nanoseconds: local times since 1970, the host's on its trace
/// clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Local time when the question was sent.
    pub sent_ns: i64,
    /// The host's time when it was received.
    pub received_ns: u64,
    /// The host's time when the answer was sent.
    pub answered_ns: u64,
    /// Local time when the answer arrived.
    pub arrived_ns: i64,
}

impl Exchange {
    /// Bounds of the local clock minus the host's trace clock: neither the question nor the answer
    /// can be received before it is sent. None: a clock went backwards.
    fn bounds(&self) -> Option<(i128, i128)> {
        let least = i128::from(self.sent_ns) - i128::from(self.received_ns);
        let greatest = i128::from(self.arrived_ns) - i128::from(self.answered_ns);
        (least <= greatest && self.answered_ns >= self.received_ns).then_some((least, greatest))
    }
}

/// Offset of a host's clock from the local clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// The boot that the trace clock belongs to.
    pub boot_id: String,
    /// The local clock minus the host's trace clock, in nanoseconds: add it to a time stamp.
    pub trace_offset_ns: i64,
    /// How far the host's wall clock is ahead of the local one, in nanoseconds. Negative: it is
    /// slow.
    pub wall_ahead_ns: i64,
    /// Both are wrong by no more than this, in nanoseconds: half of the time that the quickest
    /// exchange spent on the way. It does not include what the clocks drift until the next
    /// measurement.
    pub error_bound_ns: u64,
}

impl ClockOffset {
    /// The offset that follows from the exchanges; the one with the shortest round trip counts.
    /// `wall_offset_ns` and its error bound are those of the host. None: no exchange is consistent.
    pub fn of(
        boot_id: &str,
        exchanges: &[Exchange],
        wall_offset_ns: i64,
        wall_error_ns: u64,
    ) -> Option<Self> {
        let (least, greatest) =
            exchanges.iter().filter_map(Exchange::bounds).min_by_key(|(least, greatest)| greatest - least)?;
        let offset = least + (greatest - least) / 2;
        // Rounded up, so that both ends are inside.
        let bound = (greatest - least + 1) / 2 + i128::from(wall_error_ns);
        Some(Self {
            boot_id: boot_id.to_owned(),
            trace_offset_ns: i64::try_from(offset).ok()?,
            wall_ahead_ns: i64::try_from(i128::from(wall_offset_ns) - offset).ok()?,
            error_bound_ns: u64::try_from(bound).ok()?,
        })
    }

    /// Measures it over the connection.
    ///
    /// # Errors
    /// Those of the calls; [`Error::Incomplete`] when the answers are inconsistent.
    pub(super) async fn measure(client: &Client, local: LocalClock) -> Result<Self, Error> {
        let mut exchanges = Vec::new();
        let mut last = ReadClockResponse::default();
        for _ in 0..EXCHANGES {
            let sent_ns = local.now_ns();
            let answer = client.read_clock().await?;
            let arrived_ns = local.now_ns();
            if answer.boot_id != last.boot_id {
                exchanges.clear();
            }
            let (received_ns, answered_ns) = (answer.received_ns, answer.sent_ns);
            exchanges.push(Exchange { sent_ns, received_ns, answered_ns, arrived_ns });
            last = answer;
        }
        let wall = last.clock.ok_or(Error::Incomplete("clock"))?;
        Self::of(&last.boot_id, &exchanges, wall.wall_offset_ns, wall.error_bound_ns)
            .ok_or(Error::Incomplete("a time that follows the one before"))
    }
}

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
        fn the_truth_is_within_the_bound_whatever_the_delays(
            truth in -1_000_000_000_000_i64..1_000_000_000_000,
            ways in proptest::collection::vec((0..1_000_000_000_u32, 0..1_000_000_u32, 0..1_000_000_000_u32), 1..8),
        ) {
            let (mut now, mut exchanges) = (2_000_000_000_000_i64, Vec::new());
            for (there, work, back) in &ways {
                let trace = |local: i64| u64::try_from(local - truth).unwrap();
                let received = now + i64::from(*there);
                let answered = received + i64::from(*work);
                let arrived = answered + i64::from(*back);
                exchanges.push(Exchange {
                    sent_ns: now,
                    received_ns: trace(received),
                    answered_ns: trace(answered),
                    arrived_ns: arrived,
                });
                now = arrived;
            }
            let found = ClockOffset::of("b", &exchanges, truth + 7, 0).unwrap();
            prop_assert!(found.trace_offset_ns.abs_diff(truth) <= found.error_bound_ns, "{:?}", found);
            prop_assert!(found.wall_ahead_ns.abs_diff(7) <= found.error_bound_ns);
            let least = ways.iter().map(|way| u64::from(way.0) + u64::from(way.2)).min().unwrap();
            prop_assert!(found.error_bound_ns <= least.div_ceil(2));
        }

        #[test]
        fn no_numbers_can_panic(
            exchanges in proptest::collection::vec(any::<(i64, u64, u64, i64)>(), 0..5),
            wall: i64,
            error: u64,
        ) {
            let exchanges: Vec<_> = exchanges.into_iter().map(|(sent_ns, received_ns, answered_ns, arrived_ns)| {
                Exchange { sent_ns, received_ns, answered_ns, arrived_ns }
            }).collect();
            ClockOffset::of("b", &exchanges, wall, error);
        }
    }

    #[test]
    fn an_exchange_in_which_a_clock_went_back_tells_nothing() {
        let good = Exchange { sent_ns: 100, received_ns: 10, answered_ns: 12, arrived_ns: 110 };
        let back = Exchange { arrived_ns: 90, ..good };
        assert_eq!(ClockOffset::of("b", &[back], 0, 0), None);
        assert_eq!(ClockOffset::of("b", &[], 0, 0), None);
        let found = ClockOffset::of("b", &[back, good], 94, 3).unwrap();
        assert_eq!((found.trace_offset_ns, found.wall_ahead_ns, found.error_bound_ns), (94, 0, 7));
    }

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
