//! Conversion from trace-clock time stamps to wall-clock time, and the processor time of this process.
//!
//! Owns the choice of the trace clock (`boot`, CLOCK_BOOTTIME). Samples the difference of both
//! clocks with an error bound; never assumes that the difference is constant.

use std::time::{Duration, SystemTime};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::time::{ClockId, clock_gettime};

/// The clock that the daemon's instance uses: CLOCK_BOOTTIME, which is comparable between CPUs and
/// goes on during suspend.
pub const TRACE_CLOCK: &str = "boot";

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockMapping {
    /// Wall clock minus trace clock, in nanoseconds.
    pub wall_offset_ns: i64,
    /// How far apart the readings can be, in nanoseconds.
    pub error_bound_ns: u64,
    /// When they were taken, on the trace clock, in nanoseconds.
    pub sampled_at_ns: u64,
}

impl ClockMapping {
    /// Reads both clocks now: the wall clock between two readings of the trace clock, taking their
    /// middle.
    pub fn sample() -> Self {
        let before = now_ns(ClockId::CLOCK_BOOTTIME);
        let wall = now_ns(ClockId::CLOCK_REALTIME);
        let after = now_ns(ClockId::CLOCK_BOOTTIME);
        let width = after.saturating_sub(before);
        let middle = before + width / 2;
        Self {
            wall_offset_ns: wall - middle,
            error_bound_ns: width.unsigned_abs().div_ceil(2),
            sampled_at_ns: middle.unsigned_abs(),
        }
    }

    /// The wall-clock time of a time stamp.
    pub fn wall_time(&self, timestamp_ns: u64) -> SystemTime {
        let wall_ns = i128::from(timestamp_ns) + i128::from(self.wall_offset_ns);
        SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(wall_ns).unwrap_or_default())
    }
}

/// The trace clock now, in nanoseconds.
pub fn trace_clock_ns() -> u64 {
    now_ns(ClockId::CLOCK_BOOTTIME).unsigned_abs()
}

/// Nanoseconds of a clock. The clocks asked for exist on every kernel that has kprobe events, so
/// that reading them cannot fail.
fn now_ns(clock: ClockId) -> i64 {
    clock_gettime(clock).map_or(0, |time| time.tv_sec() * 1_000_000_000 + time.tv_nsec())
}

/// Processor time of this process since its start: user and system, of all its threads. Absent if
/// the kernel does not report it.
pub fn processor_time() -> Option<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    duration(usage.user_time())?.checked_add(duration(usage.system_time())?)
}

fn duration(time: TimeVal) -> Option<Duration> {
    let (seconds, micros) = (u64::try_from(time.tv_sec()).ok()?, u64::try_from(time.tv_usec()).ok()?);
    Duration::from_secs(seconds).checked_add(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_stamp_of_now_is_now() {
        let mapping = ClockMapping::sample();
        let now = u64::try_from(now_ns(ClockId::CLOCK_BOOTTIME)).unwrap();
        let difference =
            mapping.wall_time(now).duration_since(SystemTime::now()).unwrap_or_else(|e| e.duration());
        assert!(difference < Duration::from_secs(1), "{difference:?}");
        assert!(mapping.error_bound_ns < 1_000_000_000);
    }

    #[test]
    fn work_takes_processor_time() {
        let before = processor_time().unwrap();
        // The clock of threads moves in steps; it is worked until one has passed.
        while processor_time().unwrap() == before {
            std::hint::spin_loop();
        }
        assert!(processor_time().unwrap() > before);
        assert_eq!(duration(TimeVal::new(1, 5)), Some(Duration::from_micros(1_000_005)));
        assert_eq!(duration(TimeVal::new(-1, 0)), None);
    }
}
