//! The tracing instance that the daemon uses now, of the two that it changes between.
//!
//! The control thread replaces it; every other thread reads it.

use std::sync::{Arc, PoisonError, RwLock};

use super::{Instance, InstanceForm, TracefsError};

/// The daemon's current instance: the control thread replaces it, all other threads read it.
#[derive(Debug)]
pub struct CurrentInstance(RwLock<FormedInstance>);

/// An instance, and the form that it was given.
type FormedInstance = (Instance, Arc<InstanceForm>);

fn formed(instance: Instance) -> FormedInstance {
    let form = Arc::new(instance.form());
    (instance, form)
}

impl CurrentInstance {
    /// Begins with this instance.
    pub fn new(instance: Instance) -> Self {
        Self(RwLock::new(formed(instance)))
    }

    fn formed(&self) -> FormedInstance {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The current instance. It can be replaced, and removed, at any time.
    pub fn get(&self) -> Instance {
        self.formed().0
    }

    /// The form that the current instance was given when it was made.
    pub fn form(&self) -> Arc<InstanceForm> {
        self.formed().1
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
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = formed(instance);
    }
}
