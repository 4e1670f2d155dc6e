//! The runtime (threads) that serves event streams.
//!
//! It is apart from the one that serves control calls, so that the events of hundreds of streams do
//! not delay a `list`.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

/// A runtime of their own.
#[derive(Debug)]
pub(super) struct StreamRuntime {
    handle: Handle,
    /// Until it is dropped.
    runtime: Option<Runtime>,
}

impl StreamRuntime {
    pub(super) fn start() -> io::Result<Self> {
        // Half of the CPUs: a thread that is woken wakes another one to look for more work, which there
        // hardly ever is.
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads((cpus / 2).max(1))
            .enable_all()
            .thread_name("kprobed-stream")
            .build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    pub(super) const fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for StreamRuntime {
    /// Does not wait: that is not possible inside of another runtime, and the tasks have ended or
    /// are to be cut.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
