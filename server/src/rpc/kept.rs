//! Bytes that a stream keeps between two messages.
//!
//! Owns how a stream says how much that is: it comes with the call, and is charged to its caller. Never counts.

use std::fmt;
use std::sync::Arc;

use kprobed_control::error::Error;

/// What a stream keeps, charged to its caller.
#[derive(Clone)]
pub struct KeptBytes(Arc<Charge>);

type Charge = dyn Fn(u64) -> Result<(), Error> + Send + Sync;

impl KeptBytes {
    /// `charge` holds so many bytes for the caller, instead of those before, or refuses.
    pub fn new(charge: impl Fn(u64) -> Result<(), Error> + Send + Sync + 'static) -> Self {
        Self(Arc::new(charge))
    }

    /// So many bytes are kept from now on.
    pub(super) fn set(&self, bytes: usize) -> Result<(), Error> {
        (self.0)(bytes as u64)
    }
}

impl fmt::Debug for KeptBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptBytes").finish_non_exhaustive()
    }
}
