//! Timers of the kernel: an alarm at a time since boot, and a notice when the wall clock is set.
//!
//! Owns two timer descriptors. Nothing wakes up while neither is set, and nothing is polled: the
//! runtime's own timers count CLOCK_MONOTONIC, which stands still while the host sleeps. Never
//! decides what is done when they expire.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::unix::AsyncFd;

/// Expiry of a timer that is only to be cancelled: 9 * 10^9 seconds after 1970, near the end of
/// what the kernel's clocks can count (`KTIME_MAX`, the year 2262).
const NEVER_S: i64 = 9_000_000_000;

/// A timer descriptor as the runtime takes it.
#[derive(Debug)]
struct Timer(TimerFd);

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

#[expect(
    deprecated,
    reason = "what replaces it is unsafe to call; a `Timer` owns its descriptor and never gives out another one"
)]
fn timer(clock: ClockId) -> io::Result<AsyncFd<Timer>> {
    AsyncFd::new(Timer(TimerFd::new(clock, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?))
}

/// Waits until the timer has expired or was cancelled, and clears that.
async fn expired(timer: &AsyncFd<Timer>) -> io::Result<()> {
    loop {
        let mut ready = timer.readable().await?;
        match ready.try_io(|timer| timer.get_ref().0.wait().map_err(io::Error::from)) {
            Ok(outcome) => return outcome,
            // It was set to another time meanwhile.
            Err(_would_block) => {}
        }
    }
}

/// Rings at a time since boot, counted by CLOCK_BOOTTIME: what is due while the host sleeps rings
/// when it wakes up (fs/timerfd.c).
#[derive(Debug)]
pub(in crate::control) struct BootAlarm(AsyncFd<Timer>);

impl BootAlarm {
    /// An alarm that is not set. To be called within a runtime.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub(in crate::control) fn new() -> io::Result<Self> {
        timer(ClockId::CLOCK_BOOTTIME).map(Self)
    }

    /// Sets it to a time since boot, in nanoseconds; one that has passed rings at once. `None`: it
    /// does not ring.
    ///
    /// # Errors
    /// What the kernel says. There is no reason known for which it would refuse.
    pub(in crate::control) fn set(&self, at_ns: Option<u64>) -> io::Result<()> {
        let timer = &self.0.get_ref().0;
        let Some(at_ns) = at_ns else { return Ok(timer.unset()?) };
        // 0 would switch it off.
        let at = std::time::Duration::from_nanos(at_ns.max(1));
        timer.set(Expiration::OneShot(TimeSpec::from(at)), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
        Ok(())
    }

    /// Waits until it rings.
    ///
    /// # Errors
    /// When the descriptor cannot be read.
    ///
    /// # Cancel safety
    /// What has rung rings again when the future is dropped.
    pub(in crate::control) async fn rung(&self) -> io::Result<()> {
        expired(&self.0).await
    }
}

/// Reports that a program has set the wall clock, but not that its rate was adjusted
/// (`TFD_TIMER_CANCEL_ON_SET`, fs/timerfd.c: `timerfd_clock_was_set`, since 3.0). The end of a
/// sleep of the host is reported as well.
#[derive(Debug)]
pub(in crate::control) struct ClockAlarm(AsyncFd<Timer>);

impl ClockAlarm {
    /// Listens from now on. To be called within a runtime.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub(in crate::control) fn new() -> io::Result<Self> {
        let alarm = Self(timer(ClockId::CLOCK_REALTIME)?);
        alarm.listen()?;
        Ok(alarm)
    }

    fn listen(&self) -> io::Result<()> {
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        match self.0.get_ref().0.set(Expiration::OneShot(TimeSpec::new(NEVER_S, 0)), flags) {
            // The clock was set since it was last read; the timer is set all the same.
            Ok(()) | Err(Errno::ECANCELED) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the clock is set.
    ///
    /// # Errors
    /// When the descriptor cannot be read.
    ///
    /// # Cancel safety
    /// Nothing is missed when the future is dropped.
    pub(in crate::control) async fn was_set(&self) -> io::Result<()> {
        expired(&self.0).await?;
        self.listen()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;
    use kprobed_host::kernel::trace_clock_ns;

    #[tokio::test]
    async fn an_alarm_rings_at_its_time_and_once() {
        let alarm = BootAlarm::new().unwrap();
        assert!(alarm.rung().now_or_never().is_none(), "it is not set");
        let at = trace_clock_ns() + 20_000_000;
        alarm.set(Some(at)).unwrap();
        alarm.rung().await.unwrap();
        assert!(trace_clock_ns() >= at);
        assert!(alarm.rung().now_or_never().is_none(), "it has rung");
        // What has passed rings at once; what is taken back does not ring.
        alarm.set(Some(0)).unwrap();
        tokio::time::timeout(Duration::from_secs(10), alarm.rung()).await.unwrap().unwrap();
        alarm.set(Some(1)).unwrap();
        alarm.set(None).unwrap();
        let rung = tokio::time::timeout(Duration::from_millis(50), alarm.rung()).await;
        assert!(rung.is_err(), "it was taken back");
    }

    #[tokio::test]
    async fn a_clock_that_is_not_set_is_silent() {
        let alarm = ClockAlarm::new().unwrap();
        alarm.listen().unwrap();
        assert!(alarm.was_set().now_or_never().is_none());
    }
}
