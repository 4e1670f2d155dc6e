//! Floods of resets: a client that begins calls and takes them back at once costs work, and never
//! reaches the limit of calls under way (CVE-2023-44487).
//!
//! Owns how many calls of a connection may end so. Calls that hyper has not given to the front end yet
//! are bounded by hyper.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Calls of a connection that may be taken back within [`TIME`]: a client that gives up all of its
/// calls at once, several times, is none of these.
pub(super) const MOST: u32 = 1000;

/// The time in which they are counted.
const TIME: Duration = Duration::from_secs(10);

/// The resets of one connection.
#[derive(Debug)]
pub(super) struct Resets {
    counted: Mutex<(Instant, u32)>,
    flooded: CancellationToken,
}

impl Default for Resets {
    fn default() -> Self {
        Self { counted: Mutex::new((Instant::now(), 0)), flooded: CancellationToken::new() }
    }
}

impl Resets {
    /// A call begins.
    pub(super) fn begin(self: &Arc<Self>) -> Unanswered {
        Unanswered(Some(Arc::clone(self)))
    }

    /// Is cancelled when there are too many.
    pub(super) fn flooded(&self) -> &CancellationToken {
        &self.flooded
    }

    fn count(&self, now: Instant) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, count) = &mut *counted;
        if now.saturating_duration_since(*since) >= TIME {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        if *count > MOST {
            self.flooded.cancel();
        }
    }
}

/// A call that has no answer yet. It is counted if it is dropped so.
#[derive(Debug)]
pub(super) struct Unanswered(Option<Arc<Resets>>);

impl Unanswered {
    /// The call has its answer.
    pub(super) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(resets) = &self.0 {
            resets.count(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_within_a_short_time_are_a_flood() {
        let (resets, begin) = (Resets::default(), Instant::now());
        for round in 1..=3 {
            (0..MOST).for_each(|_| resets.count(begin + TIME * round));
            assert!(!resets.flooded().is_cancelled());
        }
        resets.count(begin + TIME * 3);
        assert!(resets.flooded().is_cancelled());
    }

    #[test]
    fn a_call_with_an_answer_is_none() {
        let resets = Arc::<Resets>::default();
        (0..2 * MOST).for_each(|_| resets.begin().answered());
        assert!(!resets.flooded().is_cancelled());
        (0..=MOST).for_each(|_| drop(resets.begin()));
        assert!(resets.flooded().is_cancelled());
    }
}
