//! Activity alarm: tells the control thread that many events were read.
//!
//! Owns the amount that is left until it rings. The control thread looks at the hit counts of
//! probes rarely while rates are low, and this lets it know that they are not any more, without a
//! timer that wakes it up meanwhile. Never reads a hit count itself.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

/// The alarm. Not set at first.
#[derive(Debug, Default)]
pub struct Activity {
    /// Bytes until it rings; not above 0 while it is not set.
    left_bytes: AtomicI64,
    rung: Notify,
}

impl Activity {
    /// Has it ring once, after the readers have read so many bytes of events from now on.
    pub fn set(&self, bytes: u64) {
        self.left_bytes.store(i64::try_from(bytes.max(1)).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// So many bytes of events were read.
    pub(super) fn read(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let before = self.left_bytes.load(Ordering::Relaxed);
        // Not below 0, however much is read while it is not set.
        if before > 0 && self.left_bytes.fetch_sub(bytes, Ordering::Relaxed) <= bytes {
            self.left_bytes.store(0, Ordering::Relaxed);
            self.rung.notify_one();
        }
    }

    /// Waits until it rings.
    pub async fn rung(&self) {
        self.rung.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn it_rings_once_each_time_that_it_is_set() {
        let activity = Activity::default();
        let rung = || activity.rung().now_or_never().is_some();
        activity.read(u64::MAX);
        assert!(!rung(), "it was not set");
        activity.set(100);
        activity.read(99);
        assert!(!rung());
        activity.read(1);
        assert!(rung());
        activity.read(1000);
        assert!(!rung(), "it has rung already");
        activity.set(10);
        activity.read(u64::MAX);
        assert!(rung());
    }
}
