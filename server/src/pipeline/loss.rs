//! Gaps: events that will never come, and why.

use kprobed_proto::v1;

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
    /// Somebody emptied the buffers.
    Wiped,
    /// The ring buffer refused events.
    Refused,
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
        self.cpu == other.cpu && self.cause == other.cause
    }

    /// Takes in a later gap that is told together with this one.
    pub(super) fn absorb(&mut self, later: &Self) {
        self.count = self.count.zip(later.count).map(|(a, b)| a.saturating_add(b));
        self.before_ns = later.before_ns;
        self.gaps = self.gaps.saturating_add(later.gaps);
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
            LossCause::Wiped => Self::Wiped,
            LossCause::Refused => Self::Refused,
        }
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
            v1::LossCause::Wiped => LossCause::Wiped,
            v1::LossCause::Refused => LossCause::Refused,
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
        for cause in 1..=8 {
            for count in [None, Some(0), Some(5)] {
                let message = v1::Loss { cause, cpu: Some(3), count, before_ns: 7, gaps: 2 };
                assert_eq!(v1::Loss::from(&Loss::from_message(&message).unwrap()), message);
            }
        }
        let unknown = v1::Loss { cause: 99, ..v1::Loss::default() };
        assert_eq!((Loss::from_message(&unknown), Loss::from_message(&v1::Loss::default())), (None, None));
    }
}
