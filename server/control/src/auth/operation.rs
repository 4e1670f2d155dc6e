//! Operation: one call of a client, by the id that its log lines, its audit entries and its answer share.
//!
//! Owns which ids of clients are taken over.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

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
