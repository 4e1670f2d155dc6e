//! Gaps: events that will never come, and why.

use kprobed_proto::v1;

/// What the daemon paused recording for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PauseReason {
    /// To find one moment at which the ledger begins.
    Baseline,
    /// To delete a probe without a second instance to record into.
    Deletion,
    /// To enlarge the ring buffers, which overflowed too soon to do it without a pause.
    Resize,
}

impl PauseReason {
    /// Name for the daemon's log, such as `baseline`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Deletion => "deletion",
            Self::Resize => "resize",
        }
    }
}

/// A pause in which the daemon recorded nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordingPause {
    /// What for.
    pub reason: PauseReason,
    /// How long, in nanoseconds.
    pub duration_ns: u64,
    /// Hits of all probes in it; absent when the kernel did not count them.
    pub hits: Option<u64>,
}

/// Why events are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossCause {
    /// The ring buffer was full, and the kernel overwrote what nobody had read.
    Overrun,
    /// The subscriber's queue was full.
    SubscriberQueue,
    /// Bytes that make no sense.
    Undecodable,
    /// The subscriber's own limit on the rate.
    RateLimit,
    /// The history does not go back that far, or not any more.
    Expired,
    /// The history could not be written.
    NotStored,
    /// The daemon paused recording.
    Paused(RecordingPause),
    /// Another program emptied the buffers.
    Reset,
    /// Too many writers were nested in the ring buffer.
    CommitOverrun,
    /// The ring buffer was full, and overwriting is off.
    DroppedEvents,
}

impl LossCause {
    /// Whether a gap of the other cause can be told together with one of this.
    fn is_like(self, other: Self) -> bool {
        match (self, other) {
            (Self::Paused(pause), Self::Paused(other)) => pause.reason == other.reason,
            _ => self == other,
        }
    }
}

/// Events that will never come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Why.
    pub cause: LossCause,
    /// Of which CPU; absent for any.
    pub cpu: Option<u32>,
    /// How many; absent when that is not known here, and 0 when they were told with an earlier gap.
    pub count: Option<u64>,
    /// Time stamp of the first event behind the gap, in nanoseconds of the trace clock; 0 when there is none yet.
    pub before_ns: u64,
    /// How many gaps it stands for.
    pub gaps: u64,
}

impl Loss {
    /// One gap on one CPU.
    pub const fn on(cpu: u32, cause: LossCause, count: Option<u64>, before_ns: u64) -> Self {
        Self { cause, cpu: Some(cpu), count, before_ns, gaps: 1 }
    }

    /// Whether another gap can be told together with this one.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.cpu == other.cpu && self.cause.is_like(other.cause)
    }

    /// Takes in a later gap that is told together with this one.
    pub(super) fn absorb(&mut self, later: &Self) {
        self.count = self.count.zip(later.count).map(|(a, b)| a.saturating_add(b));
        self.before_ns = later.before_ns;
        self.gaps = self.gaps.saturating_add(later.gaps);
        if let (LossCause::Paused(pause), LossCause::Paused(later)) = (&mut self.cause, later.cause) {
            pause.duration_ns = pause.duration_ns.saturating_add(later.duration_ns);
            pause.hits = pause.hits.zip(later.hits).map(|(a, b)| a.saturating_add(b));
        }
    }
}

impl From<LossCause> for v1::LossCause {
    fn from(cause: LossCause) -> Self {
        match cause {
            LossCause::Overrun => Self::Overrun,
            LossCause::SubscriberQueue => Self::SubscriberQueue,
            LossCause::Undecodable => Self::Undecodable,
            LossCause::RateLimit => Self::RateLimit,
            LossCause::Expired => Self::Expired,
            LossCause::NotStored => Self::NotStored,
            LossCause::Paused(_) => Self::Paused,
            LossCause::Reset => Self::Reset,
            LossCause::CommitOverrun => Self::CommitOverrun,
            LossCause::DroppedEvents => Self::DroppedEvents,
        }
    }
}

impl From<PauseReason> for v1::PauseReason {
    fn from(reason: PauseReason) -> Self {
        match reason {
            PauseReason::Baseline => Self::Baseline,
            PauseReason::Deletion => Self::Deletion,
            PauseReason::Resize => Self::Resize,
        }
    }
}

impl From<RecordingPause> for v1::RecordingPause {
    fn from(pause: RecordingPause) -> Self {
        let RecordingPause { reason, duration_ns, hits } = pause;
        Self { reason: v1::PauseReason::from(reason).into(), duration_ns, hits }
    }
}

impl RecordingPause {
    /// `None` when its reason is not known.
    fn from_message(message: &v1::RecordingPause) -> Option<Self> {
        let reason = match message.reason() {
            v1::PauseReason::Unspecified => return None,
            v1::PauseReason::Baseline => PauseReason::Baseline,
            v1::PauseReason::Deletion => PauseReason::Deletion,
            v1::PauseReason::Resize => PauseReason::Resize,
        };
        Some(Self { reason, duration_ns: message.duration_ns, hits: message.hits })
    }
}

impl From<&Loss> for v1::Loss {
    fn from(loss: &Loss) -> Self {
        Self {
            cause: v1::LossCause::from(loss.cause).into(),
            cpu: loss.cpu,
            count: loss.count,
            before_ns: loss.before_ns,
            gaps: loss.gaps,
            pause: match loss.cause {
                LossCause::Paused(pause) => Some(pause.into()),
                _ => None,
            },
        }
    }
}

impl Loss {
    /// What a message says, for one that was stored. `None` when its cause is not known.
    pub fn from_message(message: &v1::Loss) -> Option<Self> {
        let cause = match v1::LossCause::try_from(message.cause).ok()? {
            v1::LossCause::Unspecified => return None,
            v1::LossCause::Overrun => LossCause::Overrun,
            v1::LossCause::SubscriberQueue => LossCause::SubscriberQueue,
            v1::LossCause::Undecodable => LossCause::Undecodable,
            v1::LossCause::RateLimit => LossCause::RateLimit,
            v1::LossCause::Expired => LossCause::Expired,
            v1::LossCause::NotStored => LossCause::NotStored,
            v1::LossCause::Paused => {
                LossCause::Paused(RecordingPause::from_message(message.pause.as_ref()?)?)
            }
            v1::LossCause::Reset => LossCause::Reset,
            v1::LossCause::CommitOverrun => LossCause::CommitOverrun,
            v1::LossCause::DroppedEvents => LossCause::DroppedEvents,
        };
        let v1::Loss { cpu, count, before_ns, gaps, .. } = *message;
        Some(Self { cause, cpu, count, before_ns, gaps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_a_loss_is() {
        let plain: Vec<_> = (1..=10).filter(|cause| *cause != v1::LossCause::Paused as i32).collect();
        assert!(v1::LossCause::try_from(11).is_err(), "a cause that this test does not know");
        let pauses = (1..=3).map(|reason| {
            let pause = v1::RecordingPause { reason, duration_ns: 8, hits: Some(412) };
            (v1::LossCause::Paused as i32, Some(pause))
        });
        assert!(v1::PauseReason::try_from(4).is_err(), "a reason that this test does not know");
        for (cause, pause) in plain.into_iter().map(|cause| (cause, None)).chain(pauses) {
            for count in [None, Some(0), Some(5)] {
                let message = v1::Loss { cause, cpu: Some(3), count, before_ns: 7, gaps: 2, pause };
                assert_eq!(v1::Loss::from(&Loss::from_message(&message).unwrap()), message);
            }
        }
        // A pause without its reason, and one with a reason of a later version.
        let paused = v1::Loss { cause: v1::LossCause::Paused as i32, ..v1::Loss::default() };
        assert_eq!(Loss::from_message(&paused), None);
        let later = v1::RecordingPause { reason: 99, ..v1::RecordingPause::default() };
        assert_eq!(Loss::from_message(&v1::Loss { pause: Some(later), ..paused }), None);
        let unknown = v1::Loss { cause: 99, ..v1::Loss::default() };
        assert_eq!((Loss::from_message(&unknown), Loss::from_message(&v1::Loss::default())), (None, None));
    }

    #[test]
    fn pauses_for_the_same_reason_add_up() {
        let pause = |reason, hits| Loss {
            cause: LossCause::Paused(RecordingPause { reason, duration_ns: 5, hits }),
            cpu: None,
            count: None,
            before_ns: 1,
            gaps: 1,
        };
        let mut first = pause(PauseReason::Deletion, Some(3));
        assert!(first.is_like(&pause(PauseReason::Deletion, Some(4))));
        assert!(!first.is_like(&pause(PauseReason::Resize, Some(4))));
        first.absorb(&pause(PauseReason::Deletion, Some(4)));
        let both = |hits| RecordingPause { reason: PauseReason::Deletion, duration_ns: 10, hits };
        assert_eq!((first.cause, first.gaps), (LossCause::Paused(both(Some(7))), 2));
        let mut unknown = pause(PauseReason::Deletion, Some(3));
        unknown.absorb(&pause(PauseReason::Deletion, None));
        assert_eq!(unknown.cause, LossCause::Paused(both(None)), "a sum with an unknown part is unknown");
    }
}
