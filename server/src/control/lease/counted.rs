//! The list of leases, and when each of them ends.
//!
//! Owns the list, and what of it must be stored. Plain bookkeeping: never reads a clock, the kernel
//! or the database.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::clock::{Clocks, End, Written, nanoseconds};
use crate::control::Probe;
use crate::store::{CountedLease, LeaseClock};
use kprobed_lang::model::{Lease, ProbeName, ProbeUid};

/// All leases with an end.
#[derive(Debug)]
pub(super) struct Counting {
    /// How long an expired probe is listed.
    keep: Duration,
    /// Stored leases of rows that the start has not processed yet.
    written: HashMap<ProbeUid, LeaseClock>,
    counted: HashMap<ProbeUid, Counted>,
    /// Probes that could not be removed from the kernel, and when the daemon tries again.
    stuck: HashMap<ProbeUid, u64>,
}

/// One lease.
#[derive(Clone, Debug)]
struct Counted {
    name: ProbeName,
    duration: Duration,
    /// As the registry has it: another time means another lease.
    expire: SystemTime,
    end: End,
    /// When the probe was removed from the kernel.
    ended: Option<SystemTime>,
    /// When its row is deleted.
    gone_boot_ns: u64,
    is_written: bool,
}

impl Counted {
    /// Whether its end is known, or has come.
    const fn is_certain(&self) -> bool {
        !self.end.is_provisional || self.ended.is_some()
    }
}

/// The least by which a time of day has changed that is worth a write.
const NOTABLE: Duration = Duration::from_secs(1);

impl Counting {
    pub(super) fn new(keep: Duration, written: HashMap<ProbeUid, LeaseClock>) -> Self {
        Self { keep, written, counted: HashMap::new(), stuck: HashMap::new() }
    }

    /// Takes the lease of a row at the start. `is_left`: the kernel has its event, so that the
    /// probe must still be removed.
    pub(super) fn read(
        &mut self,
        uid: ProbeUid,
        name: &ProbeName,
        (duration, expire): (Duration, SystemTime),
        is_left: bool,
        now: &Clocks<'_>,
    ) {
        let clock = self.written.remove(&uid);
        let (boot_id, end_boot_ns) =
            clock.as_ref().map_or(("", 0), |clock| (clock.boot_id.as_str(), clock.end_boot_ns));
        let end = now.end(&Written { duration, expire, boot_id, end_boot_ns });
        let ended = clock.as_ref().and_then(|clock| clock.ended).filter(|_| !is_left);
        let keep_ns = nanoseconds(self.keep);
        let gone_boot_ns = match ended.and_then(|ended| ended.checked_add(self.keep)) {
            Some(gone) => {
                let end_boot_ns = end_boot_ns.saturating_add(keep_ns);
                now.end(&Written { duration: self.keep, expire: gone, boot_id, end_boot_ns }).boot_ns
            }
            None => end.boot_ns.saturating_add(keep_ns),
        };
        let is_written = clock.is_some_and(|clock| clock.boot_id == now.boot_id && clock.ended == ended);
        let name = name.clone();
        self.counted.insert(uid, Counted { name, duration, expire, end, ended, gone_boot_ns, is_written });
    }

    /// Brings the list together with the probes that have a lease.
    pub(super) fn count(&mut self, probes: &[Arc<Probe>], now: &Clocks<'_>) {
        let keep_ns = nanoseconds(self.keep);
        for probe in probes {
            let Some(Lease::Until { duration, expire_time }) = probe.spec.metadata.lease else { continue };
            if self.counted.get(&probe.uid).is_some_and(|known| known.expire == expire_time) {
                continue;
            }
            // The same lease, when only the definition is another one.
            let same = |known: &&Counted| known.name == probe.name && known.expire == expire_time;
            let moved = self.counted.values().find(same).map(|known| known.end);
            // Given just now: the wall clock is not used, since it can be set at any time.
            let end = moved.unwrap_or(End { boot_ns: now.after(duration), is_provisional: false });
            let gone_boot_ns = end.boot_ns.saturating_add(keep_ns);
            let (name, expire) = (probe.name.clone(), expire_time);
            let counted =
                Counted { name, duration, expire, end, ended: None, gone_boot_ns, is_written: false };
            self.counted.insert(probe.uid, counted);
            self.stuck.remove(&probe.uid);
        }
        let is_counted = |probe: &&Arc<Probe>| matches!(probe.spec.metadata.lease, Some(Lease::Until { .. }));
        let counted: HashSet<_> = probes.iter().filter(is_counted).map(|probe| probe.uid).collect();
        self.counted.retain(|uid, _| counted.contains(uid));
        let there: HashSet<_> = probes.iter().map(|probe| probe.uid).collect();
        self.stuck.retain(|uid, _| there.contains(uid));
    }

    /// The wall clock was set. Returns the probes whose lease ends at another time of day now, and
    /// that time.
    pub(super) fn recount(&mut self, now: &Clocks<'_>) -> Vec<(ProbeUid, SystemTime)> {
        let keep_ns = nanoseconds(self.keep);
        let mut changed = Vec::new();
        for (uid, lease) in self.counted.iter_mut().filter(|(_, lease)| lease.ended.is_none()) {
            if lease.end.is_provisional {
                let Counted { duration, expire, .. } = *lease;
                lease.end = now.end(&Written { duration, expire, boot_id: "", end_boot_ns: 0 });
                if lease.end.is_provisional {
                    continue;
                }
                lease.gone_boot_ns = lease.end.boot_ns.saturating_add(keep_ns);
                lease.is_written = false;
            }
            let expire = now.wall_at(lease.end.boot_ns);
            let difference = expire.duration_since(lease.expire).unwrap_or_else(|earlier| earlier.duration());
            if difference >= NOTABLE {
                (lease.expire, lease.is_written) = (expire, false);
                changed.push((*uid, expire));
            }
        }
        changed
    }

    /// Whether the time of a probe is over.
    pub(super) fn is_over(&self, uid: ProbeUid, now_ns: u64) -> bool {
        self.counted.get(&uid).is_some_and(|lease| lease.ended.is_some() || lease.end.boot_ns <= now_ns)
    }

    /// Whether a probe must be removed from the kernel now.
    pub(super) fn is_due(&self, uid: ProbeUid, now_ns: u64) -> bool {
        let over = |lease: &Counted| lease.ended.is_none() && lease.end.boot_ns <= now_ns;
        self.counted.get(&uid).is_some_and(over) && !self.is_stuck(uid, now_ns)
    }

    /// It was removed from the kernel.
    pub(super) fn note_ended(&mut self, uid: ProbeUid, time: SystemTime) {
        self.stuck.remove(&uid);
        if let Some(lease) = self.counted.get_mut(&uid) {
            (lease.ended, lease.is_written) = (Some(time), false);
        }
    }

    /// It could not be removed from the kernel.
    pub(super) fn note_stuck(&mut self, uid: ProbeUid, again_ns: u64) {
        self.stuck.insert(uid, again_ns);
    }

    /// Whether it could not be removed, and is left alone until later.
    pub(super) fn is_stuck(&self, uid: ProbeUid, now_ns: u64) -> bool {
        self.stuck.get(&uid).is_some_and(|again_ns| *again_ns > now_ns)
    }

    /// Makes the probes that could not be removed due now. Returns whether there are any.
    pub(super) fn hurry_stuck(&mut self, now_ns: u64) -> bool {
        self.stuck.values_mut().for_each(|again_ns| *again_ns = (*again_ns).min(now_ns));
        !self.stuck.is_empty()
    }

    /// Whether there are probes whose removal must be tried again.
    pub(super) fn has_stuck(&self, now_ns: u64) -> bool {
        self.stuck.values().any(|again_ns| *again_ns <= now_ns)
    }

    /// It has gone.
    pub(super) fn forget(&mut self, uid: ProbeUid) {
        self.counted.remove(&uid);
        self.stuck.remove(&uid);
    }

    /// Probes that were listed for long enough.
    pub(super) fn take_forgotten(&mut self, now_ns: u64) -> Vec<ProbeUid> {
        let is_over = |lease: &Counted| lease.ended.is_some() && lease.gone_boot_ns <= now_ns;
        self.counted.extract_if(|_, lease| is_over(lease)).map(|(uid, _)| uid).collect()
    }

    /// When something is to be done next. `None`: never.
    pub(super) fn next_boot_ns(&self) -> Option<u64> {
        let leases = self.counted.iter().filter(|(uid, _)| !self.stuck.contains_key(uid));
        let ends = leases.map(|(_, lease)| match lease.ended {
            Some(_) => lease.gone_boot_ns,
            None => lease.end.boot_ns,
        });
        ends.chain(self.stuck.values().copied()).min()
    }

    /// The leases to store. An end that is not certain is not stored before it has come.
    pub(super) fn unwritten(&self, boot_id: &str) -> Vec<CountedLease> {
        let unwritten = self.counted.iter().filter(|(_, lease)| !lease.is_written && lease.is_certain());
        let written_so = |(uid, lease): (&ProbeUid, &Counted)| CountedLease {
            uid: *uid,
            clock: LeaseClock {
                boot_id: boot_id.to_owned(),
                end_boot_ns: lease.end.boot_ns,
                ended: lease.ended,
            },
            expire_time: lease.expire,
        };
        unwritten.map(written_so).collect()
    }

    /// Those were stored.
    pub(super) fn note_written(&mut self) {
        for lease in self.counted.values_mut() {
            lease.is_written |= lease.is_certain();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);
    const HOUR_NS: u64 = 3_600_000_000_000;
    const UID: ProbeUid = ProbeUid(1);

    fn wall(hours: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + HOUR * hours
    }

    /// After so many hours of a boot, when the wall clock shows so many since 1970.
    fn clocks(boot_id: &str, up: u64, shown: u32) -> Clocks<'_> {
        Clocks { boot_id, boot_ns: up * HOUR_NS, wall: wall(shown) }
    }

    fn name() -> ProbeName {
        "kprobes/open".parse().unwrap()
    }

    /// A lease of two hours that ends at this hour of the wall clock, stored with or without a
    /// clock.
    fn read(clock: Option<LeaseClock>, expire: u32, is_left: bool, now: &Clocks<'_>) -> Counting {
        let written = clock.map(|clock| (UID, clock)).into_iter().collect();
        let mut counting = Counting::new(HOUR, written);
        counting.read(UID, &name(), (2 * HOUR, wall(expire)), is_left, now);
        counting
    }

    fn clock(boot_id: &str, end: u64, ended: Option<u32>) -> LeaseClock {
        let boot_id = boot_id.to_owned();
        LeaseClock { boot_id, end_boot_ns: end * HOUR_NS, ended: ended.map(wall) }
    }

    #[test]
    fn a_lease_ends_once_and_is_listed_for_a_while() {
        let now = clocks("a", 5, 1000);
        let mut counting = read(Some(clock("a", 7, None)), 1002, true, &now);
        assert_eq!(counting.next_boot_ns(), Some(7 * HOUR_NS));
        assert!(counting.unwritten("a").is_empty(), "it is known already");
        assert!(!counting.is_due(UID, 7 * HOUR_NS - 1) && counting.is_due(UID, 7 * HOUR_NS));
        // The kernel refuses to remove it: the daemon tries again later.
        counting.note_stuck(UID, 8 * HOUR_NS);
        assert!(!counting.is_due(UID, 7 * HOUR_NS) && counting.is_over(UID, 7 * HOUR_NS));
        assert_eq!(counting.next_boot_ns(), Some(8 * HOUR_NS));
        assert!(counting.has_stuck(8 * HOUR_NS) && counting.is_due(UID, 8 * HOUR_NS));
        // Or at once, if a client asks for that.
        assert!(counting.hurry_stuck(7 * HOUR_NS) && counting.is_due(UID, 7 * HOUR_NS));
        counting.note_ended(UID, wall(1003));
        assert!(!counting.is_due(UID, 9 * HOUR_NS) && counting.is_over(UID, 0));
        let written: Vec<_> = counting.unwritten("a").into_iter().map(|lease| lease.clock.ended).collect();
        assert_eq!(written, [Some(wall(1003))]);
        counting.note_written();
        assert!(counting.unwritten("a").is_empty());
        assert!(counting.take_forgotten(8 * HOUR_NS - 1).is_empty());
        assert_eq!(counting.take_forgotten(8 * HOUR_NS), [UID]);
        assert_eq!(counting.next_boot_ns(), None);
    }

    #[test]
    fn the_wall_clock_is_believed_when_it_is_set() {
        // After a reboot, in 1970: it lasts two hours from the boot, and nothing of that is stored.
        let mut counting = read(Some(clock("a", 7, None)), 1002, false, &clocks("b", 1, 0));
        assert_eq!(counting.next_boot_ns(), Some(2 * HOUR_NS));
        assert!(counting.unwritten("b").is_empty());
        assert!(counting.recount(&clocks("b", 1, 5)).is_empty(), "still before the lease was given");
        assert!(counting.recount(&clocks("b", 1, 1001)).is_empty(), "it ends when it was said to");
        assert_eq!(counting.next_boot_ns(), Some(2 * HOUR_NS));
        assert_eq!(counting.unwritten("b").len(), 1);
        // From here on it is counted by this boot, whatever the wall clock shows.
        for shown in [3, 5000] {
            let now = clocks("b", 1, shown);
            assert_eq!(counting.recount(&now), [(UID, wall(shown + 1))]);
            assert_eq!(counting.unwritten("b")[0].expire_time, wall(shown + 1));
            assert_eq!(counting.next_boot_ns(), Some(2 * HOUR_NS));
            assert!(counting.recount(&now).is_empty());
        }
    }

    /// Otherwise each start would end it once more, with an entry of the audit log each time.
    #[test]
    fn an_end_that_has_come_is_stored_although_it_was_not_certain() {
        let mut counting = read(Some(clock("a", 7, None)), 1002, false, &clocks("b", 1, 0));
        counting.note_ended(UID, wall(2));
        assert_eq!(counting.unwritten("b")[0].clock.ended, Some(wall(2)));
        counting.note_written();
        assert!(counting.unwritten("b").is_empty());
    }

    #[test]
    fn what_has_ended_stays_so() {
        let ended = || Some(clock("a", 7, Some(1002)));
        // In 1970 as well: otherwise it would come back.
        let counting = read(ended(), 1002, false, &clocks("b", 1, 0));
        assert!(counting.is_over(UID, 0) && !counting.is_due(UID, u64::MAX));
        assert_eq!(counting.next_boot_ns(), Some(HOUR_NS), "it is listed for an hour of this boot at most");
        let mut counting = read(ended(), 1002, false, &clocks("b", 1, 1003));
        assert_eq!(counting.take_forgotten(HOUR_NS), [UID]);
        let counting = read(ended(), 1002, false, &clocks("a", 7, 900));
        assert_eq!(counting.next_boot_ns(), Some(8 * HOUR_NS));
        // The kernel still has its event, which must be removed.
        assert!(read(ended(), 1002, true, &clocks("a", 7, 1002)).is_due(UID, 7 * HOUR_NS));
        // Only the row was stored: the wall clock decides.
        assert!(read(None, 1002, true, &clocks("a", 7, 1002)).is_due(UID, 7 * HOUR_NS));
        assert_eq!(read(None, 1002, true, &clocks("a", 7, 1001)).next_boot_ns(), Some(8 * HOUR_NS));
    }
}
