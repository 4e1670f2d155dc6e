//! Which of its two instances the daemon uses now.

use std::sync::{PoisonError, RwLock};

use super::Instance;

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

    /// Another one is used from now on.
    pub fn set(&self, instance: Instance) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = instance;
    }
}
