//! Signals: orderly shutdown; and the daemon's async tasks, which are named, counted and awaited.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

/// All tasks of the daemon.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stopping: CancellationToken,
}

impl Tasks {
    /// Starts a task. It has to end soon after [`Tasks::stopping`] is cancelled.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(task.instrument(tracing::debug_span!("task", name)));
    }

    /// The same on another runtime.
    pub(crate) fn spawn_on(
        &self,
        runtime: &Handle,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.tracker.spawn_on(task.instrument(tracing::debug_span!("task", name)), runtime);
    }

    /// Is cancelled when the daemon begins to stop.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Tells all tasks to stop and waits until they have, but no longer than `grace`. Answers
    /// whether they have.
    pub async fn stop(&self, grace: Duration) -> bool {
        self.stopping.cancel();
        self.ended(grace).await
    }

    /// Waits until all tasks have ended by themselves, but no longer than `grace`. Answers whether they have.
    pub(crate) async fn ended(&self, grace: Duration) -> bool {
        self.tracker.close();
        tokio::time::timeout(grace, self.tracker.wait()).await.is_ok()
    }
}

/// Requests to stop: SIGTERM and SIGINT, from now on.
#[derive(Debug)]
pub struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    /// From now on, none of them ends the process.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one, or returns one that has come since the last call. Says which.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal as Raised, raise};

    use super::*;

    /// One that comes while the daemon starts stops it once it has started.
    #[tokio::test]
    async fn a_signal_that_comes_before_the_wait_is_not_lost() {
        let mut stops = Stops::new().unwrap();
        raise(Raised::SIGTERM).unwrap();
        assert_eq!(stops.next().await, "SIGTERM");
    }
}
