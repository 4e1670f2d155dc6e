//! The caller of a request: its principal, the method that it calls, and the operation. That is one call of a client,
//! by the id that its log lines, its audit entries and its answer share.
//!
//! Owns which ids of clients are taken over.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use kprobed_audit::{Action, Entry};
use kprobed_rights::{Method, Principal};
use tracing::Span;

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

    /// An entry of the audit log about what it asks for.
    pub(crate) fn entry(&self, action: Action) -> Entry {
        let method = self.method.map(|method| method.name().to_owned()).unwrap_or_default();
        Entry { method, ..Entry::new(action, self.principal.to_string()) }
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

/// The most characters of an id.
const MAX_CHARACTERS: usize = 64;

static RUN: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0_u8));

static CALLS: AtomicU64 = AtomicU64::new(1);

/// An id.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Operation(Arc<str>);

impl Operation {
    /// That of the client, if it gave one that fits into a line of a log; else a new one.
    pub fn of(given: Option<&str>) -> Self {
        if let Some(text) = given.filter(|text| is_id(text)) {
            return Self(text.into());
        }
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        Self(format!("{:08x}-{call}", *RUN & 0xffff_ffff).into())
    }

    /// As text; empty for what the daemon does by itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_id(text: &str) -> bool {
    (1..=MAX_CHARACTERS).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_the_client_is_taken_over_if_it_fits_a_line() {
        let of = |text: &str| Operation::of(Some(text)).to_string();
        assert_eq!(of("ticket-4711:a.b_c"), "ticket-4711:a.b_c");
        for bad in ["", "two words", "a=b", "\"x\"", &"x".repeat(65), "ä"] {
            let made = of(bad);
            assert!(made != bad && is_id(&made), "{bad}: {made}");
        }
        let next = || Operation::of(None);
        assert_ne!(next(), next());
    }
}
