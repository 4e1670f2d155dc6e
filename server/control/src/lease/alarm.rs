//! Timer of the kernel: an alarm at a time since boot.
//!
//! Owns a timer descriptor. Nothing wakes up while it is not set, and nothing is polled: the
//! runtime's own timers count CLOCK_MONOTONIC, which stands still while the host sleeps. Never
//! decides what is done when it expires.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::unix::AsyncFd;

/// A timer descriptor as the runtime takes it.
#[derive(Debug)]
struct Timer(TimerFd);

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Rings at a time since boot, counted by CLOCK_BOOTTIME: what is due while the host sleeps rings
/// when it wakes up (fs/timerfd.c).
#[derive(Debug)]
pub(crate) struct BootAlarm(AsyncFd<Timer>);

impl BootAlarm {
    /// An alarm that is not set. To be called within a runtime.
    ///
    /// # Errors
    /// When there are no more descriptors.
    #[expect(
        deprecated,
        reason = "what replaces it is unsafe to call; a `Timer` owns its descriptor and never gives out another one"
    )]
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        AsyncFd::new(Timer(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?)).map(Self)
    }

    /// Sets it to a time since boot, in nanoseconds; one that has passed rings at once. `None`: it
    /// does not ring.
    ///
    /// # Errors
    /// What the kernel says. There is no reason known for which it would refuse.
    pub(crate) fn set(&self, at_ns: Option<u64>) -> io::Result<()> {
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
    pub(crate) async fn rung(&self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            // Otherwise it was set to another time meanwhile.
            if let Ok(outcome) = ready.try_io(|timer| timer.get_ref().0.wait().map_err(io::Error::from)) {
                return outcome;
            }
        }
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
}
