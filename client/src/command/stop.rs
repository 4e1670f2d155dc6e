//! When to stop following.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// Signals and the clock.
pub(super) struct Stop {
    interrupt: Signal,
    terminate: Signal,
    deadline: Option<Instant>,
}

/// Why to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// Ctrl-C, or a request to terminate.
    Signal,
    /// The time is up.
    Elapsed,
}

impl Stop {
    /// Listens from now on.
    pub(super) fn new(duration: Option<Duration>) -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            deadline: deadline(duration),
        })
    }

    /// Stops after this time from now, and not earlier. `None`: only signals stop.
    pub(super) fn after(&mut self, duration: Option<Duration>) {
        self.deadline = deadline(duration);
    }

    /// Waits until it is time to stop.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn wait(&mut self) -> StopReason {
        let elapsed = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => StopReason::Signal,
            _ = self.terminate.recv() => StopReason::Signal,
            () = elapsed => StopReason::Elapsed,
        }
    }
}

/// A time that the clock cannot reach does not limit.
fn deadline(duration: Option<Duration>) -> Option<Instant> {
    duration.and_then(|duration| Instant::now().checked_add(duration))
}
