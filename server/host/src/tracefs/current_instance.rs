//! The tracing instance that the daemon uses now, of the two that it changes between.
//!
//! The control thread replaces it; every other thread reads it.

use std::sync::{PoisonError, RwLock};

use super::{Instance, TracefsError};

/// The daemon's current instance: the control thread replaces it, all other threads read it.
#[derive(Debug)]
pub struct CurrentInstance(RwLock<SizedInstance>);

/// An instance, and the buffers that it was given.
#[derive(Clone, Debug)]
struct SizedInstance {
    instance: Instance,
    buffer_kib: Option<u64>,
}

impl SizedInstance {
    fn new(instance: Instance) -> Self {
        let buffer_kib = instance.buffer_kib().ok();
        Self { instance, buffer_kib }
    }
}

impl CurrentInstance {
    /// Begins with this instance.
    pub fn new(instance: Instance) -> Self {
        Self(RwLock::new(SizedInstance::new(instance)))
    }

    fn sized(&self) -> SizedInstance {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The current instance. It can be replaced, and removed, at any time.
    pub fn get(&self) -> Instance {
        self.sized().instance
    }

    /// Size of the ring buffer of each CPU when the instance was made, in KiB. Absent when that
    /// could not be read.
    pub fn made_with_kib(&self) -> Option<u64> {
        self.sized().buffer_kib
    }

    /// Calls `look` with the current instance; again with the next one, if that failed and the
    /// instance was replaced meanwhile.
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

    /// Makes another instance the current one.
    pub fn set(&self, instance: Instance) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = SizedInstance::new(instance);
    }
}
