//! How long a reader rests between two turns, as its subscribers want it.
//!
//! While nothing happens a reader sleeps in `poll` and any event wakes it (`buffer_percent` is 0).
//! Once there are events it does not listen: it rests, and then reads what has come. A wake-up for
//! each event would cost the probed task more than the event itself. The kernel's own way to wait
//! for a part of the buffer (`buffer_percent` above 0) is not used: whether it wakes, and when,
//! differs between the kernels that have it, while the time in which a CPU can fill a buffer is
//! known.

use std::time::Duration;

/// How long events may wait in the kernel's buffer so that many are read at once. From patient to
/// impatient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// Some fifty milliseconds.
    Throughput,
    /// Some ten.
    #[default]
    Balanced,
    /// Less than one.
    Latency,
}

/// The most that one CPU can record in a second when it does nothing else, in bytes: 4 million
/// events of 64 bytes.
const BYTES_PER_SECOND_MAX: u64 = 256 << 20;

/// Rest of a reader whose subscribers are in a hurry: an event is with them within a millisecond.
/// A longer rest costs less, and leaves no margin: the 99th percentile is the rest and a turn.
const LATENCY_REST: Duration = Duration::from_micros(500);

/// Rest of a reader that nobody hurries.
const BALANCED_REST: Duration = Duration::from_millis(10);

/// Rest of a reader whose subscribers want few large pieces.
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
