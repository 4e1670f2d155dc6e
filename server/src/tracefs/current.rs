//! Which of its two instances the daemon uses now.

use std::sync::{PoisonError, RwLock};

use super::{Instance, TracefsError};

/// The daemon's instance as of now: the control thread changes it, whoever looks at the host reads it.
#[derive(Debug)]
pub struct CurrentInstance(RwLock<Instance>);

impl CurrentInstance {
    /// Begins with this one.
    pub const fn new(instance: Instance) -> Self {
        Self(RwLock::new(instance))
    }

    /// The one that is used now. It can be replaced, and removed, at any time.
    pub fn get(&self) -> Instance {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
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

    /// Another one is used from now on.
    pub fn set(&self, instance: Instance) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = instance;
    }
}
