//! Gaps: events that a subscriber will never get, and why.
//!
//! Owns how gaps of the same cause add up. The causes are those of `kprobed_event`, and the message
//! about a gap is `wire`'s.

use kprobed_event::{LossCause, RecordingPause};

/// Events that will never come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Why.
    pub cause: LossCause,
    /// Of which CPU; absent for any.
    pub cpu: Option<u32>,
    /// How many; absent if that is not known here, and 0 if an earlier gap has counted them.
    pub count: Option<u64>,
    /// Time stamp of the first event behind the gap, in nanoseconds of the trace clock; 0 if there
    /// is none yet.
    pub before_ns: u64,
    /// How many gaps it stands for.
    pub gaps: u64,
    /// What the pause was. Present if and only if the cause is [`LossCause::Paused`].
    pub pause: Option<RecordingPause>,
}

impl Loss {
    /// One gap on one CPU.
    pub const fn on(cpu: u32, cause: LossCause, count: Option<u64>, before_ns: u64) -> Self {
        Self { cause, cpu: Some(cpu), count, before_ns, gaps: 1, pause: None }
    }

    /// One gap, of any CPU, with no event behind it yet.
    pub const fn anywhere(cause: LossCause, count: Option<u64>) -> Self {
        Self { cause, cpu: None, count, before_ns: 0, gaps: 1, pause: None }
    }

    /// Nothing was recorded in a pause. How many events there would have been is not known: filters
    /// would have held back some.
    pub const fn paused(pause: RecordingPause, before_ns: u64) -> Self {
        Self { before_ns, pause: Some(pause), ..Self::anywhere(LossCause::Paused, None) }
    }

    /// Whether another gap can be reported together with this one.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let reason = |loss: &Self| loss.pause.map(|pause| pause.reason);
        (self.cpu, self.cause, reason(self)) == (other.cpu, other.cause, reason(other))
    }

    /// Takes in a later gap that is reported together with this one.
    pub(super) fn absorb(&mut self, later: &Self) {
        self.count = self.count.zip(later.count).map(|(a, b)| a.saturating_add(b));
        self.before_ns = later.before_ns;
        self.gaps = self.gaps.saturating_add(later.gaps);
        if let (Some(pause), Some(later)) = (&mut self.pause, later.pause) {
            pause.duration = pause.duration.saturating_add(later.duration);
            pause.hits = pause.hits.zip(later.hits).map(|(a, b)| a.saturating_add(b));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kprobed_event::PauseReason;

    use super::*;

    #[test]
    fn pauses_for_the_same_reason_add_up() {
        let one = Duration::from_nanos(5);
        let pause = |reason, hits| Loss::paused(RecordingPause { reason, duration: one, hits }, 1);
        let mut first = pause(PauseReason::Deletion, Some(3));
        assert!(first.is_like(&pause(PauseReason::Deletion, Some(4))));
        assert!(!first.is_like(&pause(PauseReason::Resize, Some(4))));
        first.absorb(&pause(PauseReason::Deletion, Some(4)));
        let both = |hits| {
            let reason = PauseReason::Deletion;
            Some(RecordingPause { reason, duration: Duration::from_nanos(10), hits })
        };
        assert_eq!((first.pause, first.gaps), (both(Some(7)), 2));
        let mut unknown = pause(PauseReason::Deletion, Some(3));
        unknown.absorb(&pause(PauseReason::Deletion, None));
        assert_eq!(unknown.pause, both(None), "a sum with an unknown part is unknown");
    }
}
