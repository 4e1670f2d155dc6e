//! Automatic growth of the ring buffers when the rate of events needs it.
//!
//! Owns when and by how much they grow. The kernel does not record while it changes the size of a
//! buffer, and hits in that time are counted nowhere. So the daemon never resizes a buffer: it
//! switches to another instance with larger ones, as for a deletion, without a loss unless they
//! overflow too soon for that. Buffers never become smaller again: a rate that was seen once is
//! expected to return.

use std::collections::HashSet;
use std::iter::successors;
use std::time::Duration;

use tokio::time::Instant;

use super::controller::Controller;
use kprobed_event::PauseReason;
use kprobed_host::tracefs::{Instance, InstanceOptions};

/// Time after a failed try until the next one; twice as long after each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(2);

/// No longer than this.
const LONGEST_PAUSE: Duration = Duration::from_mins(2);

/// When the next try may be made.
#[derive(Debug, Default)]
pub(super) struct Growth {
    not_before: Option<Instant>,
    pause: Duration,
}

impl Growth {
    fn has_failed(&mut self) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.not_before = Some(Instant::now() + self.pause);
    }
}

impl Controller {
    /// Makes the buffers as large as `wanted_kib`, or as large as they may be.
    pub(super) fn grow(&mut self, wanted_kib: u64) {
        let options = &self.parts.instance_options;
        let Some(buffer_kib) = larger(options.buffer_kib, wanted_kib, options.buffer_max_kib) else { return };
        if self.growth.not_before.is_some_and(|time| Instant::now() < time) {
            return;
        }
        // Another program may have made them larger than the daemon did, or than they may grow.
        if self.parts.instance.buffer_kib().is_ok_and(|now_kib| now_kib >= buffer_kib) {
            return;
        }
        let options = InstanceOptions { buffer_kib, ..options.clone() };
        let recorded = self.recorded_besides(&HashSet::new());
        // An event that is switched off is not disturbed at all.
        let Some(event) = recorded.iter().min_by_key(|event| event.enabled) else { return };
        if !recorded.iter().any(|event| event.enabled) {
            return;
        }
        let settle = |next: &Instance| next.settle_by(&event.name, &event.filter);
        match self.hand_over(&options, (PauseReason::Resize, &settle), &recorded) {
            Ok(()) => {
                tracing::info!(buffer_kib, "the ring buffers were too small for the rate");
                (self.parts.instance_options, self.growth) = (options, Growth::default());
            }
            Err(error) => {
                tracing::warn!(%error, buffer_kib, "the ring buffers are too small for the rate, and cannot become larger now");
                self.growth.has_failed();
            }
        }
    }
}

/// The size to switch to: doubled as often as needed, up to `most_kib`. Absent if the present size
/// suffices, or is the largest allowed.
fn larger(now_kib: u64, wanted_kib: u64, most_kib: u64) -> Option<u64> {
    let doubled = successors(Some(now_kib.max(1)), |kib| kib.checked_mul(2)).find(|kib| *kib >= wanted_kib);
    let kib = doubled.unwrap_or(u64::MAX).min(most_kib);
    (kib > now_kib).then_some(kib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_doubled_up_to_a_limit() {
        assert_eq!(larger(1024, 1025, 65_536), Some(2048));
        assert_eq!(larger(1024, 9000, 65_536), Some(16_384));
        assert_eq!(larger(1024, 90_000, 65_536), Some(65_536));
        assert_eq!(larger(1024, 90_000, 1024), None);
        assert_eq!(larger(1024, 1000, 65_536), None);
        assert_eq!(larger(65_536, u64::MAX, 8192), None);
        assert_eq!(larger(0, u64::MAX, 8192), Some(8192));
    }

    #[test]
    fn failures_are_followed_by_longer_pauses() {
        let mut growth = Growth::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            growth.has_failed();
            pauses.push(growth.pause.as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 120, 120]);
    }
}
