//! Ends of leases: which have come, which are to be carried out, and when the next one comes.
//!
//! Owns what follows from the records of probes. Plain functions: never reads a clock, the kernel or the database. All
//! times are in nanoseconds of CLOCK_BOOTTIME of this boot.

use std::sync::Arc;
use std::time::Duration;

use crate::retries::Retries;
use crate::{Probe, ProbeState};
use kprobed_lang::model::{Lease, Moment, nanoseconds};

/// The end of the lease of a row in this boot. A probe whose lease has ended goes on to be listed for as long as it
/// would have been, and not longer: `keep` is how long in all, and absent for others.
pub(super) fn in_this_boot(
    (duration, end): (Duration, &Moment),
    keep: Option<Duration>,
    now: &Moment,
) -> Moment {
    let Some(keep) = keep else { return end.in_boot_of(now, duration) };
    let gone = end.after(keep).in_boot_of(now, keep);
    let boot_ns = gone.boot_ns.saturating_sub(nanoseconds(keep));
    Moment { wall: end.wall, boot_ns, ..gone }
}

/// Whether the probe was taken out of the kernel since its lease has ended. A renewed lease has another end.
fn has_ended(probe: &Probe) -> bool {
    end(probe).is_some_and(|end| probe.lease_ended == Some(end.wall))
}

/// Whether a probe must be removed from the kernel now.
pub(super) fn is_due(probe: &Probe, retries: &Retries, now_ns: u64) -> bool {
    let is_over = end(probe).is_some_and(|end| end.boot_ns <= now_ns);
    is_over && !has_ended(probe) && !waits(probe, retries, now_ns)
}

/// Whether a probe that is listed for so long after its end was listed for long enough.
pub(super) fn is_forgotten(probe: &Probe, keep: Duration, now_ns: u64) -> bool {
    has_ended(probe) && gone_ns(probe, keep).is_some_and(|gone_ns| gone_ns <= now_ns)
}

fn gone_ns(probe: &Probe, keep: Duration) -> Option<u64> {
    Some(end(probe)?.boot_ns.saturating_add(nanoseconds(keep)))
}

/// When something is to be done next. `None`: never.
pub(super) fn next_boot_ns(leased: &[Arc<Probe>], keep: Duration, retries: &Retries) -> Option<u64> {
    let again_ns = |probe: &Probe| retries.next_ns(probe.uid).filter(|_| is_stuck(probe));
    let next = |probe: &Arc<Probe>| match again_ns(probe) {
        Some(again_ns) => Some(again_ns),
        None if has_ended(probe) => gone_ns(probe, keep),
        None => Some(end(probe)?.boot_ns),
    };
    leased.iter().filter_map(next).min()
}

/// Whether its time is over, and it could not be removed from the kernel.
pub(super) fn is_stuck(probe: &Probe) -> bool {
    matches!(probe.state, ProbeState::Expired(_)) && probe.own.is_some()
}

/// Whether it could not be removed, and is left alone until later.
pub(super) fn waits(probe: &Probe, retries: &Retries, now_ns: u64) -> bool {
    is_stuck(probe) && !retries.is_due(probe.uid, now_ns)
}

/// The end of the lease of a probe. Absent if it has none that ends by itself.
fn end(probe: &Probe) -> Option<&Moment> {
    match &probe.spec.metadata.lease {
        Some(Lease::Until { end, .. }) => Some(end),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use kprobed_lang::model::ProbeUid;

    use crate::Trouble;
    use crate::samples::probe;

    const HOUR: Duration = Duration::from_hours(1);
    const HOUR_NS: u64 = 3_600_000_000_000;
    const UID: ProbeUid = ProbeUid(1);

    /// After so many hours of a boot, when the wall clock shows so many since 1970.
    fn moment(boot_id: &str, up: u64, shown: u32) -> Moment {
        let wall = SystemTime::UNIX_EPOCH + HOUR * shown;
        Moment { wall, boot_id: boot_id.into(), boot_ns: up * HOUR_NS }
    }

    fn leased(end: Moment) -> Arc<Probe> {
        let lease = Lease::Until { duration: 2 * HOUR, end };
        Arc::new(probe(UID.0, "kprobes/open").with(|record| record.spec.metadata.lease = Some(lease)))
    }

    /// The same after its lease has ended.
    fn ended(probe: &Probe) -> Arc<Probe> {
        let end = end(probe).map(|end| end.wall);
        Arc::new(probe.clone().with(|record| record.lease_ended = end))
    }

    /// A lease of two hours that ends 7 hours after boot `a`, at hour 1002 of the wall clock, as a start finds it.
    fn read(has_ended: bool, now: &Moment) -> Arc<Probe> {
        let keep = has_ended.then_some(HOUR);
        let probe = leased(in_this_boot((2 * HOUR, &moment("a", 7, 1002)), keep, now));
        if has_ended { ended(&probe) } else { probe }
    }

    fn next(retries: &Retries, probe: &Arc<Probe>) -> Option<u64> {
        next_boot_ns(std::slice::from_ref(probe), HOUR, retries)
    }

    #[test]
    fn a_lease_ends_once_and_is_listed_for_a_while() {
        let probe = read(false, &moment("a", 5, 1000));
        let mut retries = Retries::default();
        assert_eq!(next(&retries, &probe), Some(7 * HOUR_NS));
        let is_due_at = |retries: &Retries, at| is_due(&probe, retries, at);
        assert!(!is_due_at(&retries, 7 * HOUR_NS - 1) && is_due_at(&retries, 7 * HOUR_NS));
        // It was repaired a moment ago, which does not hold its end up.
        retries.note(UID, 7 * HOUR_NS, HOUR);
        assert!(is_due_at(&retries, 7 * HOUR_NS));
        retries.forget(UID);
        // The kernel refuses to remove it: the daemon tries again later.
        let trouble = Trouble { code: "LEASE_ENDED", reason: String::new(), hint: String::new() };
        let stuck = Arc::new(Probe { state: ProbeState::Expired(trouble), ..Probe::clone(&probe) });
        retries.note(UID, 7 * HOUR_NS, Duration::from_secs(15));
        let again_ns = 7 * HOUR_NS + 30_000_000_000;
        assert!(!is_due(&stuck, &retries, again_ns - 1));
        assert_eq!(next(&retries, &stuck), Some(again_ns));
        assert!(is_due(&stuck, &retries, again_ns));
        // Or at once, if a client asks for that.
        retries.forget(UID);
        assert!(is_due(&stuck, &retries, 7 * HOUR_NS));
        let over = ended(&probe);
        assert!(!is_due(&over, &retries, 9 * HOUR_NS) && has_ended(&over));
        assert_eq!(next(&retries, &over), Some(8 * HOUR_NS));
        assert!(!is_forgotten(&over, HOUR, 8 * HOUR_NS - 1) && is_forgotten(&over, HOUR, 8 * HOUR_NS));
        assert_eq!(next_boot_ns(&[], HOUR, &retries), None);
    }

    #[test]
    fn a_renewed_lease_has_not_ended() {
        let over = ended(&read(false, &moment("a", 5, 1000)));
        let lease = leased(moment("a", 9, 1004)).spec.metadata.lease.clone();
        let renewed = Probe::clone(&over).with(|record| record.spec.metadata.lease = lease);
        let retries = Retries::default();
        assert!(!has_ended(&renewed) && !is_due(&renewed, &retries, 8 * HOUR_NS));
        assert!(is_due(&renewed, &retries, 9 * HOUR_NS));
    }

    #[test]
    fn over_a_reboot_the_wall_clock_decides() {
        for (shown, end) in [(1000, 3), (1001, 2), (1002, 1), (2000, 1), (0, 3)] {
            let probe = read(false, &moment("b", 1, shown));
            assert_eq!(next(&Retries::default(), &probe), Some(end * HOUR_NS), "{shown}");
            assert_eq!(is_due(&probe, &Retries::default(), HOUR_NS), end == 1);
        }
    }

    #[test]
    fn what_has_ended_stays_so() {
        // In 1970 as well: otherwise it would come back.
        let probe = read(true, &moment("b", 1, 0));
        assert!(has_ended(&probe) && !is_due(&probe, &Retries::default(), u64::MAX));
        let in_an_hour = Some(2 * HOUR_NS);
        assert_eq!(next(&Retries::default(), &probe), in_an_hour, "it is listed for an hour more at most");
        assert!(is_forgotten(&read(true, &moment("b", 1, 1003)), HOUR, HOUR_NS));
        assert_eq!(next(&Retries::default(), &read(true, &moment("a", 7, 900))), Some(8 * HOUR_NS));
        // The kernel still has its event, which must be removed.
        assert!(is_due(&read(false, &moment("a", 7, 1002)), &Retries::default(), 7 * HOUR_NS));
    }
}
