//! Losses: gaps that a subscriber will never get the events of, their causes, and their message.
//!
//! Owns how gaps of the same cause add up. The causes are those of `kprobed_event`. Never detects a
//! loss: the pipeline does.

use kprobed_event::{LossCause, PauseReason, RecordingPause};
use kprobed_proto::v1;

/// Events that will never be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The cause.
    pub cause: LossCause,
    /// The CPU whose events are missing; absent for any CPU.
    pub cpu: Option<u32>,
    /// How many; absent if the number is unknown, and 0 if an earlier gap has counted them.
    pub count: Option<u64>,
    /// Time stamp of the first event after the gap, in nanoseconds of the trace clock; 0 if there
    /// is none yet.
    pub before_ns: u64,
    /// Number of gaps in this report.
    pub gaps: u64,
    /// Reason and length of the pause. Present if and only if the cause is [`LossCause::Paused`].
    pub pause: Option<RecordingPause>,
}

impl Loss {
    /// One gap on one CPU.
    pub const fn on(cpu: u32, cause: LossCause, count: Option<u64>, before_ns: u64) -> Self {
        Self { cause, cpu: Some(cpu), count, before_ns, gaps: 1, pause: None }
    }

    /// One gap, of any CPU, with no event after it yet.
    pub const fn anywhere(cause: LossCause, count: Option<u64>) -> Self {
        Self { cause, cpu: None, count, before_ns: 0, gaps: 1, pause: None }
    }

    /// The gap of a pause in recording. The number of missing events is unknown: filters would have
    /// rejected some.
    pub const fn paused(pause: RecordingPause, before_ns: u64) -> Self {
        Self { before_ns, pause: Some(pause), ..Self::anywhere(LossCause::Paused, None) }
    }

    /// Whether another gap can be reported together with this one.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let reason = |loss: &Self| loss.pause.map(|pause| pause.reason);
        (self.cpu, self.cause, reason(self)) == (other.cpu, other.cause, reason(other))
    }

    /// Adds a later gap that is reported together with this one.
    pub(crate) fn absorb(&mut self, later: &Self) {
        self.count = self.count.zip(later.count).map(|(a, b)| a.saturating_add(b));
        self.before_ns = later.before_ns;
        self.gaps = self.gaps.saturating_add(later.gaps);
        if let (Some(pause), Some(later)) = (&mut self.pause, later.pause) {
            pause.duration = pause.duration.saturating_add(later.duration);
            pause.hits = pause.hits.zip(later.hits).map(|(a, b)| a.saturating_add(b));
        }
    }
}

impl From<&Loss> for v1::Loss {
    fn from(loss: &Loss) -> Self {
        let Loss { cause, cpu, count, before_ns, gaps, pause } = *loss;
        Self { cause: cause.into(), cpu, count, before_ns, gaps, pause: pause.map(Into::into) }
    }
}

/// The loss of a stored message. `None` if this version does not know its cause, or the reason of
/// its pause.
pub fn loss_from_message(message: &v1::Loss) -> Option<Loss> {
    let cause = LossCause::try_from(message.cause).ok()?;
    let pause = match cause {
        LossCause::Unspecified => return None,
        LossCause::Paused => {
            let pause = RecordingPause::from(message.pause.as_ref()?);
            Some(pause).filter(|pause| pause.reason != PauseReason::Unspecified).map(Some)?
        }
        _ => None,
    };
    let v1::Loss { cpu, count, before_ns, gaps, .. } = *message;
    Some(Loss { cause, cpu, count, before_ns, gaps, pause })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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

    #[test]
    fn messages_say_what_a_loss_is() {
        let plain: Vec<_> = (1..=13).filter(|cause| *cause != LossCause::Paused as i32).collect();
        assert!(LossCause::try_from(14).is_err(), "a cause that this test does not know");
        let pauses = (1..=3).map(|reason| {
            let pause = v1::RecordingPause { reason, duration_ns: 8, hits: Some(412) };
            (LossCause::Paused as i32, Some(pause))
        });
        assert!(PauseReason::try_from(4).is_err(), "a reason that this test does not know");
        for (cause, pause) in plain.into_iter().map(|cause| (cause, None)).chain(pauses) {
            for count in [None, Some(0), Some(5)] {
                let message = v1::Loss { cause, cpu: Some(3), count, before_ns: 7, gaps: 2, pause };
                assert_eq!(v1::Loss::from(&loss_from_message(&message).unwrap()), message);
            }
        }
        // A pause without its reason, and one with a reason of a later version.
        let paused = v1::Loss { cause: LossCause::Paused as i32, ..v1::Loss::default() };
        assert_eq!(loss_from_message(&paused), None);
        let later = v1::RecordingPause { reason: 99, ..v1::RecordingPause::default() };
        assert_eq!(loss_from_message(&v1::Loss { pause: Some(later), ..paused }), None);
        let unknown = v1::Loss { cause: 99, ..v1::Loss::default() };
        assert_eq!((loss_from_message(&unknown), loss_from_message(&v1::Loss::default())), (None, None));
    }
}
