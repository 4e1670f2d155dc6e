//! Retries: what the daemon does again by itself for a probe: a repair that another program undoes, a removal that the
//! kernel refuses.
//!
//! Owns how often that was done, and the pauses, which double. Plain bookkeeping: never reads a clock. All times are in
//! nanoseconds of CLOCK_BOOTTIME.

use std::collections::HashMap;
use std::time::Duration;

use kprobed_lang::model::{ProbeUid, nanoseconds};

/// The longest pause.
const MOST_PAUSE: Duration = Duration::from_mins(8);

/// A probe for which nothing was done for so long starts over.
const FORGIVEN_AFTER: Duration = Duration::from_mins(30);

/// What was done for all probes.
#[derive(Debug, Default)]
pub(super) struct Retries(HashMap<ProbeUid, Tries>);

/// What was done for one.
#[derive(Clone, Copy, Debug)]
struct Tries {
    times: u32,
    last_ns: u64,
    not_before_ns: u64,
}

impl Retries {
    /// Whether something may be done for a probe now.
    pub(super) fn is_due(&self, uid: ProbeUid, now_ns: u64) -> bool {
        self.next_ns(uid).is_none_or(|next_ns| next_ns <= now_ns)
    }

    /// From when on something may be done again. Absent if nothing was done.
    pub(super) fn next_ns(&self, uid: ProbeUid) -> Option<u64> {
        self.0.get(&uid).map(|tries| tries.not_before_ns)
    }

    /// How often something was done.
    pub(super) fn times(&self, uid: ProbeUid) -> u32 {
        self.0.get(&uid).map_or(0, |tries| tries.times)
    }

    /// Something is done now. The pause before the next time doubles each time, from `pause` on. Returns how often
    /// something was done.
    pub(super) fn note(&mut self, uid: ProbeUid, now_ns: u64, pause: Duration) -> u32 {
        let times = self.times(uid) + 1;
        let pause = pause.saturating_mul(1 << times.min(16)).min(MOST_PAUSE);
        let not_before_ns = now_ns.saturating_add(nanoseconds(pause));
        self.0.insert(uid, Tries { times, last_ns: now_ns, not_before_ns });
        times
    }

    /// Forgets probes that have gone, and those for which nothing was done for long.
    pub(super) fn tidy(&mut self, is_there: impl Fn(ProbeUid) -> bool, now_ns: u64) {
        let forgiven_ns = nanoseconds(FORGIVEN_AFTER);
        self.0.retain(|uid, tries| is_there(*uid) && now_ns.saturating_sub(tries.last_ns) < forgiven_ns);
    }

    /// A client has changed it: the count starts over.
    pub(super) fn forget(&mut self, uid: ProbeUid) {
        self.0.remove(&uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_what_needs_nothing_is_forgiven() {
        let (uid, second, second_ns) = (ProbeUid(1), Duration::from_secs(1), 1_000_000_000);
        let mut retries = Retries::default();
        let (mut now, mut pauses) = (0, Vec::new());
        for times in 1..=10 {
            assert!(retries.is_due(uid, now));
            assert_eq!(retries.note(uid, now, second), times);
            let begun = now;
            now = retries.next_ns(uid).unwrap();
            assert!(!retries.is_due(uid, now - 1) && retries.is_due(uid, now));
            pauses.push((now - begun) / second_ns);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 480, 480]);
        assert!(retries.is_due(ProbeUid(2), 0), "others are not held up");
        let last = now - 480 * second_ns;
        retries.tidy(|_| true, last + nanoseconds(FORGIVEN_AFTER) - 1);
        assert_eq!(retries.times(uid), 10);
        retries.tidy(|_| true, last + nanoseconds(FORGIVEN_AFTER));
        assert!(retries.times(uid) == 0 && retries.is_due(uid, 0), "it is forgiven");
        retries.note(uid, now, second);
        retries.forget(uid);
        assert!(retries.is_due(uid, now));
        retries.note(uid, now, second);
        retries.tidy(|_| false, now);
        assert!(retries.is_due(uid, now), "it has gone");
    }
}
