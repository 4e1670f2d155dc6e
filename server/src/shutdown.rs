//! Signals: orderly shutdown and reload; and the daemon's async tasks, which are named, counted and awaited.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
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
        self.tracker.close();
        tokio::time::timeout(grace, self.tracker.wait()).await.is_ok()
    }
}

/// Requests to read the configuration again: SIGHUP, from now on.
///
/// # Errors
/// When the handler cannot be installed.
pub fn reloads() -> io::Result<tokio::signal::unix::Signal> {
    signal(SignalKind::hangup())
}

/// Waits for SIGTERM or SIGINT. Says which.
///
/// # Errors
/// When the handlers cannot be installed.
pub async fn requested() -> io::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}
