//! Demand for larger ring buffers.
//!
//! The readers know the rate of each CPU and whether events were overwritten; the control thread,
//! which can resize the buffers, waits here and is not woken while they are large enough. Never
//! resizes a buffer itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// How long a reader may be held up, at the rate that was measured, before the kernel overwrites an
/// event.
const COVER: Duration = Duration::from_millis(250);

/// The size that the readers ask for.
#[derive(Debug, Default)]
pub struct BufferDemand {
    wanted_kib: AtomicU64,
    raised: Notify,
}

impl BufferDemand {
    /// Asks for buffers of that size.
    pub(super) fn ask(&self, bytes: u64) {
        self.wanted_kib.fetch_max(bytes.div_ceil(1 << 10), Ordering::Relaxed);
        self.raised.notify_one();
    }

    /// Waits until a reader asks for larger buffers, and returns the size that the buffer of each
    /// CPU should have, in KiB. Readers ask again every second while the buffers are too small and
    /// there are events.
    pub async fn raised(&self) -> u64 {
        self.raised.notified().await;
        self.wanted_kib.swap(0, Ordering::Relaxed)
    }
}

/// Bytes that the buffer of a CPU should have on which `read_bytes` were read in the time
/// `elapsed`. If events were lost, the true rate is unknown: the result is then at least twice
/// `buffer_bytes`.
pub(super) fn wanted_bytes(read_bytes: u64, elapsed: Duration, has_lost: bool, buffer_bytes: u64) -> u64 {
    let elapsed_us = elapsed.as_micros().max(1);
    let covering = u128::from(read_bytes) * COVER.as_micros() / elapsed_us;
    let covering = u64::try_from(covering).unwrap_or(u64::MAX);
    if has_lost { covering.max(buffer_bytes.saturating_mul(2)) } else { covering }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_quarter_of_a_second_is_covered() {
        let second = Duration::from_secs(1);
        assert_eq!(wanted_bytes(160 << 20, second, false, 1 << 20), 40 << 20);
        assert_eq!(wanted_bytes(160 << 20, 10 * second, false, 1 << 20), 4 << 20);
        assert_eq!(wanted_bytes(1 << 20, second, true, 1 << 20), 2 << 20);
        assert_eq!(wanted_bytes(160 << 20, second, true, 1 << 20), 40 << 20);
        assert_eq!(wanted_bytes(0, Duration::ZERO, false, 0), 0);
    }

    #[test]
    fn the_largest_wish_is_told_once() {
        let demand = BufferDemand::default();
        assert_eq!(demand.raised().now_or_never(), None);
        demand.ask(3 << 20);
        demand.ask((1 << 20) + 1);
        assert_eq!(demand.raised().now_or_never(), Some(3 << 10));
        assert_eq!(demand.raised().now_or_never(), None);
        demand.ask((1 << 20) + 1);
        assert_eq!(demand.raised().now_or_never(), Some((1 << 10) + 1));
    }
}
