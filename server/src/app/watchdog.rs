//! The watchdog of the service manager, which is fed while the threads live that the daemon cannot do without.
//!
//! Owns which threads these are (the control thread, the readers, the workers of both runtimes), how often they are
//! asked, and when a thread counts as alive that does not answer. Never kills anything: a watchdog that is not fed has
//! the service manager end the daemon and start it again. What the kernel has goes on meanwhile.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use kprobed_host::tracefs::answered_writes;
use kprobed_trace::pipeline::ReaderPulse;
use tokio::runtime::Handle;
use tokio::time::sleep;

use kprobed_control::ControlHandle;

/// How often the threads are asked within the time limit of the watchdog. Between two feedings lie one interval and the
/// longest silence of a thread, so that a single write to the kernel may take three quarters of the limit.
const BEATS_IN_A_LIMIT: u32 = 4;

/// The threads of a daemon.
#[derive(Clone, Debug)]
pub struct Watched {
    pub(super) control: ControlHandle,
    pub(super) readers: ReaderPulse,
    pub(super) streams: Handle,
}

impl Watched {
    /// Calls `feed` while all threads live, at least once within `limit`. Runs on the runtime for control calls.
    pub async fn watch(&self, limit: Duration, feed: impl FnMut()) -> Infallible {
        let interval = limit / BEATS_IN_A_LIMIT;
        feed_after_each(interval, async || self.all_live(interval).await, feed).await
    }

    /// Returns when each thread has shown that it lives.
    async fn all_live(&self, interval: Duration) {
        let control = async {
            let asked = async || self.control.beat().await;
            lives(asked, answered_writes, interval).await;
        };
        let readers = async {
            if self.readers.beat().await.is_err() {
                never("a reader thread has ended").await;
            }
        };
        let runtimes = async {
            let workers = [Handle::current(), self.streams.clone()];
            for beat in workers.map(|runtime| runtime.spawn(async {})) {
                if beat.await.is_err() {
                    never("a runtime has ended").await;
                }
            }
        };
        tokio::join!(control, readers, runtimes);
    }
}

/// Asks again and again, and feeds after each answer.
async fn feed_after_each(
    interval: Duration,
    mut live: impl AsyncFnMut(),
    mut feed: impl FnMut(),
) -> Infallible {
    loop {
        live().await;
        feed();
        sleep(interval).await;
    }
}

/// Returns when a thread answers, or has made `progress` meanwhile: a change of a thousand probes keeps it from
/// answering, and is no reason to end it.
async fn lives<E>(
    answer: impl AsyncFnOnce() -> Result<(), E>,
    progress: impl Fn() -> u64,
    interval: Duration,
) {
    let mut answer = pin!(answer());
    let mut before = progress();
    loop {
        tokio::select! {
            answered = &mut answer => match answered {
                Ok(()) => return,
                Err(_ended) => never("the control thread has ended").await,
            },
            () = sleep(interval) => {
                let now = progress();
                if now != before {
                    return;
                }
                before = now;
            }
        }
    }
}

/// What has ended does not answer any more.
async fn never(reason: &str) {
    tracing::error!(reason, "the watchdog is not fed: the service manager will start the daemon again");
    pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::{Instant, timeout};

    use super::*;

    const LIMIT: Duration = Duration::from_mins(1);
    const INTERVAL: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn it_is_fed_more_often_than_it_asks_for() {
        let (begun, mut fed) = (Instant::now(), Vec::new());
        let feeding = feed_after_each(INTERVAL, async || (), || fed.push(begun.elapsed().as_secs()));
        assert!(timeout(Duration::from_secs(59), feeding).await.is_err());
        assert_eq!(fed, [0, 15, 30, 45]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_answer_is_not_fed() {
        let (turns, fed) = (Cell::new(0), Cell::new(0));
        let live = async || {
            turns.set(turns.get() + 1);
            if turns.get() == 3 {
                pending::<()>().await;
            }
        };
        let feeding = feed_after_each(INTERVAL, live, || fed.set(fed.get() + 1));
        assert!(timeout(LIMIT * 100, feeding).await.is_err());
        assert_eq!(fed.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_is_fed_late() {
        let (begun, mut fed) = (Instant::now(), Vec::new());
        let live = async || sleep(Duration::from_secs(20)).await;
        let feeding = feed_after_each(INTERVAL, live, || fed.push(begun.elapsed().as_secs()));
        assert!(timeout(LIMIT * 2, feeding).await.is_err());
        assert_eq!(fed, [20, 55, 90]);
        assert!(fed.windows(2).all(|fed| fed[1] - fed[0] < LIMIT.as_secs()));
    }

    #[tokio::test(start_paused = true)]
    async fn progress_counts_as_an_answer() {
        let begun = Instant::now();
        let hangs = || async || pending::<Result<(), ()>>().await;
        let busy = || begun.elapsed().as_secs();
        lives(hangs(), busy, INTERVAL).await;
        assert_eq!(begun.elapsed(), INTERVAL);
        let stuck = lives(hangs(), || 7, INTERVAL);
        assert!(timeout(LIMIT * 100, stuck).await.is_err(), "it makes no progress");
        let ended = lives(async || Err(()), busy, INTERVAL);
        assert!(timeout(LIMIT * 100, ended).await.is_err(), "it has ended");
        let begun = Instant::now();
        lives(async || Ok::<_, ()>(()), || 7, INTERVAL).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
