//! Rate limit for log lines that a client can cause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lines of a kind.
const EVERY: Duration = Duration::from_secs(10);

/// One kind of line.
#[derive(Debug, Default)]
pub(super) struct RateLimitedLog(Mutex<Option<(Instant, u64)>>);

impl RateLimitedLog {
    /// Calls `log` with the number of times since it was last called, unless that was a moment ago.
    pub(super) fn log(&self, log: impl FnOnce(u64)) {
        self.log_at(Instant::now(), log);
    }

    fn log_at(&self, now: Instant, log: impl FnOnce(u64)) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = match &mut *state {
            Some((last, untold)) if now.duration_since(*last) < EVERY => {
                *untold += 1;
                return;
            }
            Some((_, untold)) => *untold + 1,
            None => 1,
        };
        *state = Some((now, 0));
        drop(state);
        log(times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_logged_is_counted() {
        let (rarely, mut told) = (RateLimitedLog::default(), Vec::new());
        let begin = Instant::now();
        for seconds in [0, 1, 2, 9, 10, 11, 30] {
            rarely.log_at(begin + Duration::from_secs(seconds), |times| told.push((seconds, times)));
        }
        assert_eq!(told, [(0, 1), (10, 4), (30, 2)]);
    }
}
