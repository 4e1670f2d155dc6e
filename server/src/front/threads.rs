//! Checking that the system allows enough threads before the runtime starts.
//!
//! The runtime panics if it cannot start a thread.

use std::io;
use std::sync::{Arc, Barrier};
use std::thread;

/// Starts so many threads at a time, and ends them.
///
/// # Errors
/// What the system says to the first that cannot be started.
pub fn try_threads(threads: usize) -> io::Result<()> {
    let barrier = Arc::new(Barrier::new(threads + 1));
    let (mut started, mut failed) = (Vec::new(), None);
    for _ in 0..threads {
        let inner = Arc::clone(&barrier);
        match thread::Builder::new().spawn(move || inner.wait()) {
            Ok(thread) => started.push(thread),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    match failed {
        None => {
            barrier.wait();
            for thread in started {
                drop(thread.join());
            }
            Ok(())
        }
        // The threads that were started never end; the process is about to.
        Some(error) => Err(error),
    }
}
