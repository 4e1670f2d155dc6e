//! The caller of a request: its principal, and the method that it calls.

use std::sync::Arc;

use kprobed_rights::{Method, Principal};
use tracing::Span;

use super::Operation;

/// Who asks for a change, and by which method. It goes with the request to the control thread, which
/// asks for rights once it knows what the request is about.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Who asks.
    pub principal: Arc<Principal>,
    /// The method that is called. Absent for the daemon itself, which calls none.
    pub method: Option<&'static Method>,
    /// The call.
    pub operation: Operation,
}

impl Caller {
    /// A client.
    pub fn new(principal: Arc<Principal>, method: &'static Method, operation: Operation) -> Self {
        Self { principal, method: Some(method), operation }
    }

    /// The daemon itself: what its files declare, and what it repairs.
    pub fn daemon() -> Self {
        Self { principal: Arc::new(Principal::Daemon), method: None, operation: Operation::default() }
    }

    /// What the log says with every line about the call. None for the daemon itself.
    pub fn span(&self) -> Span {
        let Self { principal, method, operation } = self;
        match method {
            Some(method) => {
                tracing::error_span!("call", %operation, %principal, method = method.name())
            }
            None => Span::none(),
        }
    }
}
