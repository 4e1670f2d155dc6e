//! Memory of all queues together.
//!
//! Owns how much a queue may take when the memory gets short: one half of it is divided among all
//! queues, so that each has a part that no other one can take, and the other half is for whichever
//! needs it first. So a client that does not read costs others no events. Never touches a queue: what
//! does not fit is dropped by the policy of its subscriber.

use std::sync::atomic::{AtomicU64, Ordering};

/// The memory, with what is in use of it.
#[derive(Debug)]
pub(super) struct QueueMemory {
    bytes: u64,
    used: AtomicU64,
    queues: AtomicU64,
}

impl QueueMemory {
    pub(super) const fn new(bytes: u64) -> Self {
        Self { bytes, used: AtomicU64::new(0), queues: AtomicU64::new(0) }
    }

    /// There is one more queue.
    pub(super) fn begin(&self) {
        self.queues.fetch_add(1, Ordering::Relaxed);
    }

    /// A queue ends, which has so many bytes.
    pub(super) fn end(&self, bytes: u64) {
        self.queues.fetch_sub(1, Ordering::Relaxed);
        self.give(bytes);
    }

    /// Whether a queue that has `own` bytes may have so many more.
    pub(super) fn allows(&self, own: u64, more: u64) -> bool {
        let half = self.bytes / 2;
        let part = half / self.queues.load(Ordering::Relaxed).max(1);
        own.saturating_add(more) <= part
            || self.used.load(Ordering::Relaxed).saturating_add(more) <= self.bytes - half
    }

    pub(super) fn take(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes in all queues.
    #[cfg(test)]
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the queues want, all of them together stay within the memory, and each gets its part.
        #[test]
        fn the_sum_is_bounded(wishes in proptest::collection::vec((0_usize..8, 1_u64..200, any::<bool>()), 1..300)) {
            let memory = QueueMemory::new(1000);
            let mut queues = [0_u64; 8];
            for _ in &queues {
                memory.begin();
            }
            for (queue, bytes, takes) in wishes {
                if takes && memory.allows(queues[queue], bytes) {
                    memory.take(bytes);
                    queues[queue] += bytes;
                } else if takes {
                    prop_assert!(queues[queue] + bytes > 500 / 8, "its own part is refused");
                } else {
                    let bytes = bytes.min(queues[queue]);
                    memory.give(bytes);
                    queues[queue] -= bytes;
                }
                prop_assert_eq!(memory.used(), queues.iter().sum::<u64>());
                prop_assert!(memory.used() <= 1000, "{:?}", queues);
            }
            for bytes in queues {
                memory.end(bytes);
            }
            prop_assert_eq!(memory.used(), 0);
        }
    }
}
