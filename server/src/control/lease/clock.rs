//! Clock arithmetic of leases: when a lease ends, over sleep, reboots and a wall clock that is set.
//!
//! Owns the conversion between the clocks; never reads the database. Within a boot a lease is
//! counted by CLOCK_BOOTTIME, which goes on while the host sleeps and which no program can set.
//! Over a reboot only the wall clock goes on; it is believed once, at the first start after that,
//! unless it shows a time before the lease was given: then it has not been set yet (a host without
//! a battery begins in 1970). Until it is set, a lease lasts as long as it was given for, counted
//! from the boot.

use std::time::{Duration, SystemTime};

use kprobed_host::kernel::trace_clock_ns;

/// One reading of the clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::control) struct Clocks<'a> {
    /// This boot.
    pub(in crate::control) boot_id: &'a str,
    /// Since it, in nanoseconds of CLOCK_BOOTTIME.
    pub(in crate::control) boot_ns: u64,
    pub(in crate::control) wall: SystemTime,
}

/// A lease as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::control) struct Written<'a> {
    /// As requested.
    pub(in crate::control) duration: Duration,
    /// Its end by the wall clock when it was stored.
    pub(in crate::control) expire: SystemTime,
    /// The boot in which it was counted last.
    pub(in crate::control) boot_id: &'a str,
    /// Its end in nanoseconds of CLOCK_BOOTTIME of that boot.
    pub(in crate::control) end_boot_ns: u64,
}

/// The end of a lease in this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::control) struct End {
    /// In nanoseconds of CLOCK_BOOTTIME.
    pub(in crate::control) boot_ns: u64,
    /// The wall clock has not been set yet: when it is, the end is computed again.
    pub(in crate::control) is_provisional: bool,
}

impl<'a> Clocks<'a> {
    /// Reads them.
    pub(in crate::control) fn now(boot_id: &'a str) -> Self {
        Self { boot_id, boot_ns: trace_clock_ns(), wall: SystemTime::now() }
    }

    /// The end of a lease that is given now.
    pub(in crate::control) fn after(&self, duration: Duration) -> u64 {
        self.boot_ns.saturating_add(nanoseconds(duration))
    }

    /// The end of a lease that was stored.
    pub(in crate::control) fn end(&self, lease: &Written<'_>) -> End {
        if lease.boot_id == self.boot_id {
            return End { boot_ns: lease.end_boot_ns, is_provisional: false };
        }
        let given = lease.expire.checked_sub(lease.duration).unwrap_or(SystemTime::UNIX_EPOCH);
        if self.wall < given {
            return End { boot_ns: nanoseconds(lease.duration), is_provisional: true };
        }
        let left = lease.expire.duration_since(self.wall).unwrap_or_default().min(lease.duration);
        End { boot_ns: self.after(left), is_provisional: false }
    }

    /// The wall clock at a time of this boot, if it is not set meanwhile. Times before 1970 are
    /// cut.
    pub(in crate::control) fn wall_at(&self, boot_ns: u64) -> SystemTime {
        let ahead = Duration::from_nanos(boot_ns.saturating_sub(self.boot_ns));
        let behind = Duration::from_nanos(self.boot_ns.saturating_sub(boot_ns));
        let wall = self.wall.checked_sub(behind).unwrap_or(SystemTime::UNIX_EPOCH);
        wall.checked_add(ahead).unwrap_or(wall).max(SystemTime::UNIX_EPOCH)
    }
}

/// Nanoseconds, at most what fits: more than 500 years.
pub(in crate::control) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn wall(hours: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + HOUR * u32::try_from(hours).unwrap()
    }

    fn clocks(boot_id: &str, up: Duration, wall: SystemTime) -> Clocks<'_> {
        Clocks { boot_id, boot_ns: nanoseconds(up), wall }
    }

    /// Two hours, given at hour 500,000 of the wall clock, five hours after boot `a`.
    const WRITTEN: fn() -> Written<'static> = || Written {
        duration: 2 * HOUR,
        expire: wall(500_002),
        boot_id: "a",
        end_boot_ns: 7 * 3_600_000_000_000,
    };

    #[test]
    fn within_a_boot_the_wall_clock_does_not_matter() {
        for shown in [0, 499_000, 500_001, 900_000] {
            let end = clocks("a", 6 * HOUR, wall(shown)).end(&WRITTEN());
            assert_eq!(end, End { boot_ns: nanoseconds(7 * HOUR), is_provisional: false });
        }
        // What is shown follows it.
        assert_eq!(clocks("a", 6 * HOUR, wall(900_000)).wall_at(nanoseconds(7 * HOUR)), wall(900_001));
        assert_eq!(clocks("a", 9 * HOUR, wall(900_000)).wall_at(nanoseconds(7 * HOUR)), wall(899_998));
        assert_eq!(clocks("a", 9 * HOUR, wall(1)).wall_at(nanoseconds(7 * HOUR)), wall(0));
    }

    #[test]
    fn over_a_reboot_the_wall_clock_counts() {
        let end = |shown| clocks("b", HOUR, wall(shown)).end(&WRITTEN());
        let exact = |boot_ns| End { boot_ns: nanoseconds(boot_ns), is_provisional: false };
        assert_eq!(end(500_000), exact(3 * HOUR));
        assert_eq!(end(500_001), exact(2 * HOUR));
        // It ended while the host was off.
        assert_eq!(end(500_002), exact(HOUR));
        assert_eq!(end(700_000), exact(HOUR));
        // The clock was not set yet: it lasts no longer than it was given for.
        let unset = End { boot_ns: nanoseconds(2 * HOUR), is_provisional: true };
        assert_eq!((end(0), end(499_999)), (unset, unset));
    }

    proptest! {
        #[test]
        fn no_clock_makes_a_lease_longer_than_it_was(
            duration_ns in 1..u64::MAX,
            expire_ns: u64,
            end_boot_ns: u64,
            same_boot: bool,
            boot_ns: u64,
            wall_ns: u64,
        ) {
            let duration = Duration::from_nanos(duration_ns);
            let at = |ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns);
            let lease = Written { duration, expire: at(expire_ns), boot_id: "a", end_boot_ns };
            let clocks = Clocks { boot_id: if same_boot { "a" } else { "b" }, boot_ns, wall: at(wall_ns) };
            let end = clocks.end(&lease);
            if same_boot {
                prop_assert_eq!(end, End { boot_ns: end_boot_ns, is_provisional: false });
            } else {
                prop_assert!(end.boot_ns <= boot_ns.saturating_add(duration_ns));
                prop_assert!(!end.is_provisional || wall_ns < expire_ns);
            }
        }
    }
}
