//! The pace of a stream of checks.
//!
//! Owns whose checks the stream makes. Never waits itself.

use std::sync::Arc;
use std::time::Duration;

use kprobed_rights::Principal;

use kprobed_control::auth::{Caller, Rights};

/// The pace that the roles of a caller set. The front end puts it into the extensions of a request.
#[derive(Clone, Debug)]
pub struct Pace {
    rights: Arc<Rights>,
    principal: Arc<Principal>,
}

impl Pace {
    /// The pace of a caller.
    pub(crate) fn new(rights: &Arc<Rights>, caller: &Caller) -> Self {
        Self { rights: Arc::clone(rights), principal: Arc::clone(&caller.principal) }
    }

    /// How long to wait after so many checks, by the roles that are in force now.
    pub(crate) fn after(&self, checks: u64) -> Duration {
        self.rights.pace(&self.principal, checks)
    }
}
