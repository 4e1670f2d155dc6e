//! Commands to a reader thread, and the channel that carries them.
//!
//! Owns the wake-up: an event file descriptor wakes a reader that sleeps, and a reader that is
//! reading checks whether a command waits; and the question whether all readers live. Never carries out a command:
//! `reader` does.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Weak};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::oneshot;

use super::handover;

/// A request to a reader thread.
#[derive(Debug)]
pub(super) enum Command {
    /// Read everything that was recorded until now, publish it, and answer.
    Drain(Sender<()>),
    /// The kernel has emptied the buffers and set their counters to zero; answer.
    BuffersWereReset(Sender<()>),
    /// A step of a hand-over from one instance to the next.
    HandOver(handover::Step),
    /// Answer: the thread lives.
    Beat(oneshot::Sender<()>),
    /// Read everything that was recorded until now, publish it, and end.
    Stop,
}

/// The sending end.
#[derive(Debug)]
pub(super) struct Outbox {
    commands: Sender<Command>,
    waiting: Arc<AtomicUsize>,
    wake: Arc<EventFd>,
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct Inbox {
    commands: Receiver<Command>,
    /// Number of commands that were sent and not yet taken.
    waiting: Arc<AtomicUsize>,
}

/// Both ends, and what wakes the receiver.
pub(super) fn commands() -> io::Result<(Outbox, Inbox, Arc<EventFd>)> {
    let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let (wake, waiting) = (Arc::new(wake), Arc::<AtomicUsize>::default());
    let (sender, receiver) = channel();
    let outbox = Outbox { commands: sender, waiting: Arc::clone(&waiting), wake: Arc::clone(&wake) };
    Ok((outbox, Inbox { commands: receiver, waiting }, wake))
}

impl Outbox {
    /// Sends a command, and wakes the reader.
    pub(super) fn send(&self, command: Command) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // A thread that has ended is noticed by whoever waits for its answer.
        if self.commands.send(command).is_ok()
            && let Err(errno) = self.wake.write(1)
        {
            tracing::error!(%errno, "cannot wake a reader");
        }
    }
}

impl Inbox {
    /// The next command, if there is one. [`Command::Stop`] once the sending end is dropped.
    pub(super) fn take(&self) -> Option<Command> {
        match self.commands.try_recv() {
            Ok(command) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                Some(command)
            }
            Err(TryRecvError::Disconnected) => Some(Command::Stop),
            Err(TryRecvError::Empty) => None,
        }
    }

    /// Whether a command waits: then the reader takes it before it reads on.
    pub(super) fn has_command(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// Answers a command.
pub(super) fn answer<T>(reply: &Sender<T>, value: T) {
    if reply.send(value).is_err() {
        tracing::debug!("the caller has gone before the answer");
    }
}

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
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn each_reader_has_to_answer() {
        let (first, second) = (commands().unwrap(), commands().unwrap());
        let outboxes = [Arc::new(first.0), Arc::new(second.0)];
        let pulse = ReaderPulse(outboxes.iter().map(Arc::downgrade).collect());
        let mut beat = Box::pin(pulse.beat());
        assert_eq!(beat.as_mut().now_or_never(), None);
        assert_eq!((first.2.read().unwrap(), second.2.read().unwrap()), (1, 1), "both are woken");
        let answer = |inbox: &Inbox| match inbox.take() {
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
