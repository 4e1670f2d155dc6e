//! Stop condition of a command that follows: a signal, a duration, or the end of a child process.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::Exit;
use super::child::Child;

/// Signals and the clock.
pub(super) struct StopCondition {
    interrupt: Signal,
    terminate: Signal,
    deadline: Option<Instant>,
    /// The end of a program that was started to be followed.
    child: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Why to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// Ctrl-C, or a request to terminate.
    Signal,
    /// The time is up.
    Elapsed,
    /// The program that was started has ended.
    ChildEnded,
}

impl StopReason {
    /// The exit code of a command that has stopped. Without a limit of its own an interrupt is the regular end; with
    /// one, it is early.
    pub(super) fn exit(self, is_limited: bool) -> Exit {
        if is_limited && self == Self::Signal { Exit::Interrupted } else { Exit::Success }
    }
}

impl StopCondition {
    /// Listens to signals from now on. No time counts before [`Self::begin`]: what must be made ready first takes none
    /// of the time that a user gives.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            deadline: None,
            child: None,
        })
    }

    /// Stops after this time from now, and not earlier. `None`: only signals and the child stop.
    pub(super) fn begin(&mut self, duration: Option<Duration>) {
        // A time that the clock cannot reach does not limit.
        self.deadline = duration.and_then(|duration| Instant::now().checked_add(duration));
    }

    /// Stops when a program has ended as well.
    pub(super) fn or_after(&mut self, child: Option<&Child>) {
        self.child = child.map(|child| Box::pin(child.ended()) as Pin<Box<_>>);
    }

    /// Waits for a signal, whatever the clock says.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn signal(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits until it is time to stop.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn wait(&mut self) -> StopReason {
        let ended = async {
            match &mut self.child {
                Some(ended) => ended.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => StopReason::Signal,
            _ = self.terminate.recv() => StopReason::Signal,
            () = until(self.deadline) => StopReason::Elapsed,
            () = ended => StopReason::ChildEnded,
        }
    }
}

/// Waits until then. Never ends if that is not known.
pub(super) async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
