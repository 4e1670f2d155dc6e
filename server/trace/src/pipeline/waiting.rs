//! Whether somebody waits for a reader: then it looks at its commands before it reads on.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Commands that wait for a reader.
#[derive(Debug, Default)]
pub(super) struct Waiting(AtomicUsize);

impl Waiting {
    /// Another one is about to be sent.
    pub(super) fn one_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One of them was taken.
    pub(super) fn one_less(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether there are any.
    pub(super) fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}
