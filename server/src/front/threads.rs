//! Whether there are threads to be had.

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
        // The others wait for ever; the process is about to end.
        Some(error) => Err(error),
    }
}
