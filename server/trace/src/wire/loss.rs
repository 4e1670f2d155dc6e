//! Losses as messages, and back.

use kprobed_event::{LossCause, PauseReason, RecordingPause};
use kprobed_proto::v1;

use crate::pipeline::Loss;

impl From<&Loss> for v1::Loss {
    fn from(loss: &Loss) -> Self {
        let Loss { cause, cpu, count, before_ns, gaps, pause } = *loss;
        let cause = v1::LossCause::from(cause).into();
        Self { cause, cpu, count, before_ns, gaps, pause: pause.map(Into::into) }
    }
}

/// The loss of a message that was stored. `None` if this version does not know its cause, or the
/// reason of its pause.
pub fn loss_from_message(message: &v1::Loss) -> Option<Loss> {
    let cause = LossCause::from(v1::LossCause::try_from(message.cause).ok()?);
    let pause = match cause {
        LossCause::Other => return None,
        LossCause::Paused => {
            let pause = RecordingPause::from(message.pause.as_ref()?);
            Some(pause).filter(|pause| pause.reason != PauseReason::Other).map(Some)?
        }
        _ => None,
    };
    let v1::Loss { cpu, count, before_ns, gaps, .. } = *message;
    Some(Loss { cause, cpu, count, before_ns, gaps, pause })
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
                assert_eq!(v1::Loss::from(&loss_from_message(&message).unwrap()), message);
            }
        }
        // A pause without its reason, and one with a reason of a later version.
        let paused = v1::Loss { cause: v1::LossCause::Paused as i32, ..v1::Loss::default() };
        assert_eq!(loss_from_message(&paused), None);
        let later = v1::RecordingPause { reason: 99, ..v1::RecordingPause::default() };
        assert_eq!(loss_from_message(&v1::Loss { pause: Some(later), ..paused }), None);
        let unknown = v1::Loss { cause: 99, ..v1::Loss::default() };
        assert_eq!((loss_from_message(&unknown), loss_from_message(&v1::Loss::default())), (None, None));
    }
}
