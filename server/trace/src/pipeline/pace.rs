//! Pace of a reader: how long it rests between two turns.
//!
//! While nothing happens a reader sleeps in `poll` and any event wakes it (`buffer_percent` is 0).
//! Once there are events it does not poll: it rests, and then reads the events that were recorded
//! meanwhile. A wake-up for each event would cost the probed task more than the event itself. The
//! daemon does not use the kernel's own way to wait for a part of the buffer (`buffer_percent`
//! above 0): whether it wakes, and when, differs between the kernels that have it, while the time
//! in which a CPU can fill a buffer is known.
//!
//! Owns the length of a rest. Never sleeps: `reader` does.

use std::time::Duration;

/// How long events may wait in the kernel's buffer so that many are read at once. From the longest
/// wait to the shortest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// About fifty milliseconds.
    Throughput,
    /// About ten milliseconds.
    #[default]
    Balanced,
    /// Less than one millisecond.
    Latency,
}

/// The most that one CPU can record in a second when it does nothing else, in bytes: 4 million
/// events of 64 bytes.
const BYTES_PER_SECOND_MAX: u64 = 256 << 20;

/// Rest of a reader with a subscriber that asked for [`Pace::Latency`]: an event reaches it within
/// a millisecond. The 99th percentile of the delay is the rest and a turn, so that a longer rest
/// would leave no margin; nearly all that the daemon takes at this pace are the wake-ups, so that a
/// shorter one would cost more.
const LATENCY_REST: Duration = Duration::from_micros(700);

/// Rest of a reader at [`Pace::Balanced`].
const BALANCED_REST: Duration = Duration::from_millis(10);

/// Rest of a reader whose subscribers all asked for [`Pace::Throughput`].
const THROUGHPUT_REST: Duration = Duration::from_millis(50);

/// No rest is shorter than this, whatever the size of the buffer.
const SHORTEST_REST: Duration = Duration::from_micros(200);

impl Pace {
    /// How long to rest after a turn that found events. Never longer than it takes a CPU that does
    /// nothing but hit probes to fill a quarter of its buffer of `buffer_bytes`.
    pub(super) fn rest(self, buffer_bytes: u64) -> Duration {
        let wanted = match self {
            Self::Latency => LATENCY_REST,
            Self::Balanced => BALANCED_REST,
            Self::Throughput => THROUGHPUT_REST,
        };
        let quarter =
            Duration::from_micros((buffer_bytes / 4).saturating_mul(1_000_000) / BYTES_PER_SECOND_MAX);
        wanted.min(quarter).max(SHORTEST_REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_are_bounded_by_the_buffer() {
        assert_eq!(Pace::Balanced.rest(8 << 20), Duration::from_micros(7812));
        assert_eq!(Pace::Balanced.rest(64 << 20), BALANCED_REST);
        assert_eq!(Pace::Throughput.rest(64 << 20), THROUGHPUT_REST);
        assert_eq!(Pace::Latency.rest(64 << 20), LATENCY_REST);
        assert_eq!(Pace::Throughput.rest(64 << 10), SHORTEST_REST);
    }
}
