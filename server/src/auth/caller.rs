//! The caller of a request: its principal, and the method that it calls.

use std::sync::Arc;

use kprobed_rights::{Method, Principal};

/// Who asks for a change, and by which method. It goes with the request to the control thread, which
/// asks for rights once it knows what the request is about.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Who asks.
    pub principal: Arc<Principal>,
    /// The method that is called. Absent for the daemon itself, which calls none.
    pub method: Option<&'static Method>,
}

impl Caller {
    /// A client.
    pub fn new(principal: Arc<Principal>, method: &'static Method) -> Self {
        Self { principal, method: Some(method) }
    }

    /// The daemon itself: what its files declare, and what it repairs.
    pub fn daemon() -> Self {
        Self { principal: Arc::new(Principal::Daemon), method: None }
    }
}
