//! Giving memory back after clients have gone.
//!
//! Queues and buffers of connections are freed, and glibc keeps what it was given: with a heap for each thread, hundreds of streams
//! leave more than a hundred MiB behind. Asking it is cheap, and done once things are quiet.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Connections that are worth it.
const WORTH: usize = 64;

/// Nobody left for so long: then it is quiet.
const QUIET: Duration = Duration::from_millis(500);

/// Gives memory back.
#[derive(Debug, Default)]
pub(super) struct Trimmer {
    closed: AtomicUsize,
    wake: Notify,
}

impl Trimmer {
    /// What a connection with streams counts.
    pub(super) const STREAM: usize = WORTH;

    /// Connections have closed.
    pub(super) fn closed(&self, weight: usize) {
        if self.closed.fetch_add(weight, Ordering::Relaxed) + weight >= WORTH {
            self.wake.notify_one();
        }
    }

    /// Until the daemon stops. Nothing runs while nobody leaves.
    pub(super) async fn run(&self, stopping: &CancellationToken) {
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = self.wake.notified() => {}
            }
            while tokio::time::timeout(QUIET, self.wake.notified()).await.is_ok() {}
            self.closed.store(0, Ordering::Relaxed);
            if let Err(error) = tokio::task::spawn_blocking(give_back).await {
                tracing::debug!(%error, "memory was not given back");
            }
        }
    }
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "glibc has no safe way to say it")]
fn give_back() {
    // SAFETY: it takes no pointer, and may be called at any time from any thread.
    let gave = unsafe { libc::malloc_trim(0) };
    tracing::debug!(gave, "gave memory back");
}

#[cfg(not(target_env = "gnu"))]
fn give_back() {}
