//! Pulse of the reader threads: whether each of them still takes its turns.
//!
//! Owns the question and the wait for the answers. Never keeps a reader alive, and never decides what becomes of a
//! daemon whose readers do not answer.

use std::sync::Weak;

use tokio::sync::oneshot;

use super::commands::{Command, Outbox};

/// A reader has ended: events of its CPUs are no longer read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a reader thread has ended")]
pub struct ReaderEnded;

/// All readers, to be asked whether they live.
#[derive(Clone, Debug)]
pub struct ReaderPulse(pub(super) Vec<Weak<Outbox>>);

impl ReaderPulse {
    /// Returns when every reader has taken a turn. Wakes each of them. There is no limit to the wait.
    ///
    /// # Errors
    /// [`ReaderEnded`].
    pub async fn beat(&self) -> Result<(), ReaderEnded> {
        let mut answers = Vec::new();
        for reader in &self.0 {
            let (reply, answer) = oneshot::channel();
            reader.upgrade().ok_or(ReaderEnded)?.send(Command::Beat(reply));
            answers.push(answer);
        }
        for answer in answers {
            answer.await.map_err(|_no_answer| ReaderEnded)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;

    use super::super::commands::commands;
    use super::*;

    #[test]
    fn each_reader_has_to_answer() {
        let (first, second) = (commands().unwrap(), commands().unwrap());
        let outboxes = [Arc::new(first.0), Arc::new(second.0)];
        let pulse = ReaderPulse(outboxes.iter().map(Arc::downgrade).collect());
        let mut beat = Box::pin(pulse.beat());
        assert_eq!(beat.as_mut().now_or_never(), None);
        assert_eq!((first.2.read().unwrap(), second.2.read().unwrap()), (1, 1), "both are woken");
        let answer = |inbox: &super::super::commands::Inbox| match inbox.take() {
            Some(Command::Beat(reply)) => reply.send(()).unwrap(),
            other => panic!("{other:?}"),
        };
        answer(&first.1);
        assert_eq!(beat.as_mut().now_or_never(), None, "the second one hangs");
        answer(&second.1);
        assert_eq!(beat.as_mut().now_or_never(), Some(Ok(())));
    }

    #[test]
    fn a_reader_that_has_ended_is_an_error() {
        let (outbox, inbox, _wake) = commands().unwrap();
        let outbox = Arc::new(outbox);
        let pulse = ReaderPulse(vec![Arc::downgrade(&outbox)]);
        drop(inbox);
        assert_eq!(pulse.beat().now_or_never(), Some(Err(ReaderEnded)));
        drop(outbox);
        assert_eq!(pulse.beat().now_or_never(), Some(Err(ReaderEnded)));
    }
}
