//! Which of its two instances the daemon uses now.

use std::sync::{PoisonError, RwLock};

use super::{Instance, TracefsError};

/// The daemon's instance as of now: the control thread changes it, whoever looks at the host reads it.
#[derive(Debug)]
pub struct CurrentInstance(RwLock<Made>);

/// An instance, and the buffers that it was given.
#[derive(Clone, Debug)]
struct Made {
    instance: Instance,
    buffer_kib: Option<u64>,
}

impl Made {
    fn new(instance: Instance) -> Self {
        let buffer_kib = instance.buffer_kib().ok();
        Self { instance, buffer_kib }
    }
}

impl CurrentInstance {
    /// Begins with this one, as it was made.
    pub fn new(instance: Instance) -> Self {
        Self(RwLock::new(Made::new(instance)))
    }

    fn made(&self) -> Made {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The one that is used now. It can be replaced, and removed, at any time.
    pub fn get(&self) -> Instance {
        self.made().instance
    }

    /// Size of the ring buffer of each CPU when the instance was made, in KiB. Absent when that could not be read.
    pub fn made_with_kib(&self) -> Option<u64> {
        self.made().buffer_kib
    }

    /// Looks at the one that is used now; at the next one, if it was replaced while it was looked at.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn look<T>(&self, look: impl Fn(&Instance) -> Result<T, TracefsError>) -> Result<T, TracefsError> {
        let instance = self.get();
        match look(&instance) {
            Err(_) if self.get().root() != instance.root() => look(&self.get()),
            outcome => outcome,
        }
    }

    /// Another one is used from now on, as it was made.
    pub fn set(&self, instance: Instance) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Made::new(instance);
    }
}
