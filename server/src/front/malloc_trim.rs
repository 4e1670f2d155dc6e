//! Returning free heap memory to the kernel after clients have gone (malloc_trim(3)).
//!
//! Queues and buffers of connections are freed, but glibc keeps the memory: with a heap for each
//! thread, hundreds of streams leave more than a hundred MiB. A call of `malloc_trim` is cheap, and
//! made once no connection has closed for a while.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Closed connections after which memory is returned.
const WORTH: usize = 64;

/// Time without a closed connection before memory is returned.
const QUIET: Duration = Duration::from_millis(500);

/// Gives memory back.
#[derive(Debug, Default)]
pub(super) struct Trimmer {
    closed: AtomicUsize,
    wake: Notify,
}

impl Trimmer {
    /// Weight of a connection with streams.
    pub(super) const STREAM: usize = WORTH;

    /// Connections have closed.
    pub(super) fn closed(&self, weight: usize) {
        if self.closed.fetch_add(weight, Ordering::Relaxed) + weight >= WORTH {
            self.wake.notify_one();
        }
    }

    /// Runs until the daemon stops. Sleeps while no connection closes.
    pub(super) async fn run(&self, stopping: &CancellationToken) {
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = self.wake.notified() => {}
            }
            while tokio::time::timeout(QUIET, self.wake.notified()).await.is_ok() {}
            self.closed.store(0, Ordering::Relaxed);
            if let Err(error) = tokio::task::spawn_blocking(return_memory).await {
                tracing::debug!(%error, "cannot return memory to the kernel");
            }
        }
    }
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "glibc has no safe way to say it")]
fn return_memory() {
    // SAFETY: it takes no pointer, and may be called at any time from any thread.
    let returned = unsafe { libc::malloc_trim(0) };
    tracing::debug!(returned, "returned memory to the kernel");
}

#[cfg(not(target_env = "gnu"))]
fn return_memory() {}
