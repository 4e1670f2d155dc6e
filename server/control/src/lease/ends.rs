//! Ends of leases: which have come, which are to be carried out, and when the next one comes.
//!
//! Owns what is known of a lease besides the record of its probe. Plain bookkeeping: never reads a
//! clock, the kernel or the database.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::retries::Retries;
use crate::{Probe, ProbeState};
use kprobed_lang::model::{Lease, Moment, ProbeUid, nanoseconds};

/// The ends of all leases. All times are in nanoseconds of CLOCK_BOOTTIME of this boot.
#[derive(Debug)]
pub(super) struct Ends {
    /// How long an expired probe is listed.
    keep: Duration,
    /// Leases that have ended: their probes were taken out of the kernel. Each with its end, since a
    /// renewed lease has another one.
    ended: HashMap<ProbeUid, u64>,
}

impl Ends {
    pub(super) fn new(keep: Duration) -> Self {
        Self { keep, ended: HashMap::new() }
    }

    /// Takes the lease of a row at the start. Returns its end in this boot. `has_ended`: the probe was
    /// taken out of the kernel.
    pub(super) fn read(
        &mut self,
        uid: ProbeUid,
        (duration, end): (Duration, &Moment),
        has_ended: bool,
        now: &Moment,
    ) -> Moment {
        if !has_ended {
            return end.in_boot_of(now, duration);
        }
        // It goes on to be listed for as long as it would have been, and not longer.
        let gone = end.after(self.keep).in_boot_of(now, self.keep);
        let boot_ns = gone.boot_ns.saturating_sub(nanoseconds(self.keep));
        self.ended.insert(uid, boot_ns);
        Moment { wall: end.wall, boot_ns, ..gone }
    }

    /// Whether the probe was taken out of the kernel since its lease has ended.
    fn has_ended(&self, probe: &Probe) -> bool {
        end_ns(probe).is_some_and(|end_ns| self.ended.get(&probe.uid) == Some(&end_ns))
    }

    /// Whether the time of a probe is over.
    pub(super) fn is_over(&self, probe: &Probe, now_ns: u64) -> bool {
        self.has_ended(probe) || end_ns(probe).is_some_and(|end_ns| end_ns <= now_ns)
    }

    /// Whether a probe must be removed from the kernel now.
    pub(super) fn is_due(&self, probe: &Probe, retries: &Retries, now_ns: u64) -> bool {
        self.is_over(probe, now_ns) && !self.has_ended(probe) && !waits(probe, retries, now_ns)
    }

    /// It was removed from the kernel.
    pub(super) fn note_ended(&mut self, probe: &Probe) {
        if let Some(end_ns) = end_ns(probe) {
            self.ended.insert(probe.uid, end_ns);
        }
    }

    /// It has gone.
    pub(super) fn forget(&mut self, uid: ProbeUid) {
        self.ended.remove(&uid);
    }

    /// Whether a probe was listed for long enough.
    pub(super) fn is_forgotten(&self, probe: &Probe, now_ns: u64) -> bool {
        self.has_ended(probe) && self.gone_ns(probe).is_some_and(|gone_ns| gone_ns <= now_ns)
    }

    fn gone_ns(&self, probe: &Probe) -> Option<u64> {
        Some(end_ns(probe)?.saturating_add(nanoseconds(self.keep)))
    }

    /// Forgets what is about other probes than those that have a lease, or about leases that were
    /// renewed since.
    pub(super) fn keep_only(&mut self, leased: &[Arc<Probe>]) {
        let leased: HashMap<_, _> = leased.iter().map(|probe| (probe.uid, end_ns(probe))).collect();
        self.ended.retain(|uid, end_ns| leased.get(uid) == Some(&Some(*end_ns)));
    }

    /// When something is to be done next. `None`: never.
    pub(super) fn next_boot_ns(&self, leased: &[Arc<Probe>], retries: &Retries) -> Option<u64> {
        let again_ns = |probe: &Probe| retries.next_ns(probe.uid).filter(|_| is_stuck(probe));
        let next = |probe: &Arc<Probe>| match again_ns(probe) {
            Some(again_ns) => Some(again_ns),
            None if self.has_ended(probe) => self.gone_ns(probe),
            None => end_ns(probe),
        };
        leased.iter().filter_map(next).min()
    }
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
fn end_ns(probe: &Probe) -> Option<u64> {
    match &probe.spec.metadata.lease {
        Some(Lease::Until { end, .. }) => Some(end.boot_ns),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
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

    /// A lease of two hours that ends 7 hours after boot `a`, at hour 1002 of the wall clock, as a start finds it.
    fn read(has_ended: bool, now: &Moment) -> (Ends, Arc<Probe>) {
        let mut ends = Ends::new(HOUR);
        let end = ends.read(UID, (2 * HOUR, &moment("a", 7, 1002)), has_ended, now);
        (ends, leased(end))
    }

    #[test]
    fn a_lease_ends_once_and_is_listed_for_a_while() {
        let (mut ends, probe) = read(false, &moment("a", 5, 1000));
        let mut retries = Retries::default();
        let next =
            |ends: &Ends, retries: &Retries, probe| ends.next_boot_ns(std::slice::from_ref(probe), retries);
        assert_eq!(next(&ends, &retries, &probe), Some(7 * HOUR_NS));
        let is_due = |ends: &Ends, retries: &Retries, at| ends.is_due(&probe, retries, at);
        assert!(!is_due(&ends, &retries, 7 * HOUR_NS - 1) && is_due(&ends, &retries, 7 * HOUR_NS));
        // It was repaired a moment ago, which does not hold its end up.
        retries.note(UID, 7 * HOUR_NS, HOUR);
        assert!(is_due(&ends, &retries, 7 * HOUR_NS));
        retries.forget(UID);
        // The kernel refuses to remove it: the daemon tries again later.
        let trouble = Trouble { code: "LEASE_ENDED", reason: String::new(), hint: String::new() };
        let stuck = Arc::new(Probe { state: ProbeState::Expired(trouble), ..Probe::clone(&probe) });
        retries.note(UID, 7 * HOUR_NS, Duration::from_secs(15));
        let again_ns = 7 * HOUR_NS + 30_000_000_000;
        assert!(!ends.is_due(&stuck, &retries, again_ns - 1) && ends.is_over(&stuck, 7 * HOUR_NS));
        assert_eq!(next(&ends, &retries, &stuck), Some(again_ns));
        assert!(ends.is_due(&stuck, &retries, again_ns));
        // Or at once, if a client asks for that.
        retries.forget(UID);
        assert!(ends.is_due(&stuck, &retries, 7 * HOUR_NS));
        ends.note_ended(&probe);
        assert!(!is_due(&ends, &retries, 9 * HOUR_NS) && ends.is_over(&probe, 0));
        assert_eq!(next(&ends, &retries, &probe), Some(8 * HOUR_NS));
        assert!(!ends.is_forgotten(&probe, 8 * HOUR_NS - 1) && ends.is_forgotten(&probe, 8 * HOUR_NS));
        ends.forget(UID);
        assert!(is_due(&ends, &retries, 7 * HOUR_NS), "nothing is known of it any more");
        assert_eq!(ends.next_boot_ns(&[], &retries), None);
    }

    #[test]
    fn a_renewed_lease_has_not_ended() {
        let (mut ends, probe) = read(false, &moment("a", 5, 1000));
        ends.note_ended(&probe);
        let renewed = leased(moment("a", 9, 1004));
        assert!(
            !ends.is_over(&renewed, 8 * HOUR_NS) && ends.is_due(&renewed, &Retries::default(), 9 * HOUR_NS)
        );
        ends.keep_only(std::slice::from_ref(&renewed));
        assert!(!ends.is_over(&probe, 0), "the first one is forgotten");
    }

    #[test]
    fn over_a_reboot_the_wall_clock_decides() {
        for (shown, end) in [(1000, 3), (1001, 2), (1002, 1), (2000, 1), (0, 3)] {
            let (ends, probe) = read(false, &moment("b", 1, shown));
            assert_eq!(
                ends.next_boot_ns(std::slice::from_ref(&probe), &Retries::default()),
                Some(end * HOUR_NS),
                "{shown}"
            );
            assert_eq!(ends.is_due(&probe, &Retries::default(), HOUR_NS), end == 1);
        }
    }

    #[test]
    fn what_has_ended_stays_so() {
        // In 1970 as well: otherwise it would come back.
        let (ends, probe) = read(true, &moment("b", 1, 0));
        assert!(ends.is_over(&probe, 0) && !ends.is_due(&probe, &Retries::default(), u64::MAX));
        let next = ends.next_boot_ns(std::slice::from_ref(&probe), &Retries::default());
        assert_eq!(next, Some(2 * HOUR_NS), "it is listed for an hour more at most");
        let (ends, probe) = read(true, &moment("b", 1, 1003));
        assert!(ends.is_forgotten(&probe, HOUR_NS));
        let (ends, probe) = read(true, &moment("a", 7, 900));
        assert_eq!(ends.next_boot_ns(std::slice::from_ref(&probe), &Retries::default()), Some(8 * HOUR_NS));
        // The kernel still has its event, which must be removed.
        let (ends, probe) = read(false, &moment("a", 7, 1002));
        assert!(ends.is_due(&probe, &Retries::default(), 7 * HOUR_NS));
    }
}
