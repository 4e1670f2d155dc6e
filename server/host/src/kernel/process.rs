//! Processor time of this process.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// Processor time of this process since its start: user and system, of all its threads. Absent if
/// the kernel does not report it.
pub fn processor_time() -> Option<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    of(usage.user_time())?.checked_add(of(usage.system_time())?)
}

fn of(time: TimeVal) -> Option<Duration> {
    let (seconds, micros) = (u64::try_from(time.tv_sec()).ok()?, u64::try_from(time.tv_usec()).ok()?);
    Duration::from_secs(seconds).checked_add(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_processor_time() {
        let before = processor_time().unwrap();
        // The clock of threads moves in steps; it is worked until one has passed.
        while processor_time().unwrap() == before {
            std::hint::spin_loop();
        }
        assert!(processor_time().unwrap() > before);
        assert_eq!(of(TimeVal::new(1, 5)), Some(Duration::from_micros(1_000_005)));
        assert_eq!(of(TimeVal::new(-1, 0)), None);
    }
}
