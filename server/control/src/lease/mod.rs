//! Leases: probes that expire.
//!
//! Owns when a lease ends and what happens then. The daemon removes the probe from the kernel, even
//! if the disk fails: what a client asked to be temporary must not go on costing the host because a
//! disk is full, and nothing needs to be written for it, since the end of the lease is in the
//! database from the beginning. The probe stays listed for some time, so that a client that misses
//! it sees why; then its row is deleted. A probe that is held by a connection is deleted. Never
//! wakes up without leases: see [`alarm`]. A lease counts CLOCK_BOOTTIME within a boot; over a reboot
//! the wall clock decides (see [`Moment`]).

mod alarm;
mod ends;
mod hold;

pub use hold::{Hold, Holds};

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use self::alarm::BootAlarm;
use self::ends::{in_this_boot, is_due, is_forgotten, is_stuck, next_boot_ns, waits};
use super::audited;
use super::command::UpdateRequest;
use super::controller::{Controller, ControllerParts};
use super::job::Job;
use super::judge::{Grounds, Work, each};
use super::own;
use super::probe::{Probe, ProbeState, Trouble, to_the_second};
use crate::error::{Error, Reason};
use crate::store::Record;
use kprobed_host::kernel::trace_clock_ns;
use kprobed_lang::model::{Lease, LeaseTerm, MetadataChange, Moment, ProbeUid};

/// Probes that are removed between two commands of clients: as with deletions, a busy instance is
/// replaced once for all of them.
const AT_ONCE: usize = 256;

/// From here the pause doubles after which the daemon tries again to remove a probe that another program uses.
const PAUSE: Duration = Duration::from_secs(15);

/// Why a probe that was held is deleted.
const HOLD_ENDED: &str = "the client that held it has gone";

/// All leases.
#[derive(Debug)]
pub(super) struct Leases {
    alarm: BootAlarm,
    holds: Arc<Holds>,
    boot_id: Arc<str>,
    /// How long an expired probe is listed.
    keep: Duration,
    /// Probes with a lease of another boot, whose end in this one is not stored yet. If the daemon dies before it is,
    /// its next start goes by the wall clock.
    recounted: BTreeSet<ProbeUid>,
}

impl Leases {
    /// No leases yet.
    pub(super) fn new(parts: &ControllerParts) -> Result<Self, Error> {
        Ok(Self {
            alarm: BootAlarm::new()
                .map_err(|error| Error::new(Reason::NO_TIMER, format!("cannot make a timer: {error}")))?,
            holds: Arc::clone(&parts.holds),
            boot_id: parts.host.boot_id.as_str().into(),
            keep: parts.lease_keep,
            recounted: BTreeSet::new(),
        })
    }

    /// Whether a probe must be in the kernel as far as its lease goes: it has not ended, and no client held it whose
    /// connection has. It is counted by this boot from here on. `is_left`: the kernel has its event.
    pub(super) fn is_wanted_at_start(&mut self, record: &mut Record, is_left: bool) -> bool {
        let now = self.now();
        if is_left {
            // It is taken out of the kernel once more.
            record.lease_ended = None;
        }
        match &mut record.spec.metadata.lease {
            None => true,
            Some(Lease::Held { .. }) => false,
            Some(Lease::Until { duration, end }) => {
                let has_ended = record.lease_ended == Some(end.wall);
                let now_ends = in_this_boot((*duration, &*end), has_ended.then_some(self.keep), &now);
                if now_ends != *end {
                    self.recounted.insert(record.uid);
                    *end = now_ends;
                }
                !has_ended && end.boot_ns > now.boot_ns
            }
        }
    }

    /// Waits until there is something to do.
    ///
    /// # Cancel safety
    /// Nothing is missed when the future is dropped.
    pub(super) async fn woken(&self) {
        let woken = tokio::select! {
            rung = self.alarm.rung() => rung,
            () = self.holds.some_ended() => Ok(()),
        };
        if let Err(error) = woken {
            tracing::error!(%error, "cannot wait for the end of leases: they end with the next change of a probe");
            std::future::pending::<()>().await;
        }
    }

    /// Reads the clocks.
    pub(super) fn now(&self) -> Moment {
        let boot_id = Arc::clone(&self.boot_id);
        Moment { wall: SystemTime::now(), boot_id, boot_ns: trace_clock_ns() }
    }
}

impl Controller {
    /// Replaces the key of a hold by its name, which other clients may see.
    pub(super) fn with_hold(&self, mut change: MetadataChange) -> Result<MetadataChange, Error> {
        if let Some(Some(LeaseTerm::Held(key))) = &mut change.lease {
            *key = self.leases.holds.name_of(key).ok_or_else(|| {
                let message = "there is no such hold: it has ended, or the daemon never gave out this key";
                Error::new(Reason::NO_SUCH_HOLD, message).field("lease.holder")
            })?;
        }
        Ok(change)
    }

    /// Does what is due, and sets the alarm for what is due next.
    pub(super) async fn attend_leases(&mut self) {
        self.end_holds().await;
        self.end_leases().await;
        self.forget_expired().await;
        self.count_leases().await;
    }

    /// Takes note of leases that were given, renewed or removed.
    pub(super) async fn count_leases(&mut self) {
        let probes = self.parts.registry.leased();
        let Leases { alarm, keep, recounted, .. } = &mut self.leases;
        let unwritten: Vec<_> =
            probes.iter().filter(|probe| recounted.contains(&probe.uid)).map(|probe| &probe.record).collect();
        match self.parts.store.note(&unwritten).await {
            Ok(()) => recounted.clear(),
            // Tried again with the next change.
            Err(error) => tracing::warn!(%error, "cannot write down how leases are counted"),
        }
        if let Err(error) = alarm.set(next_boot_ns(&probes, *keep, &self.retries)) {
            tracing::error!(%error, "cannot set the alarm for the end of leases");
        }
    }

    /// Deletes the probes whose hold has ended.
    async fn end_holds(&mut self) {
        let ended = self.leases.holds.take_ended();
        let now_ns = self.leases.now().boot_ns;
        let mut probes = self.parts.registry.leased();
        if !ended && !probes.iter().any(|probe| is_stuck(probe)) {
            return;
        }
        let open = self.leases.holds.open();
        probes.retain(|probe| match &probe.spec.metadata.lease {
            Some(Lease::Held { holder }) => !open.contains(holder) && !waits(probe, &self.retries, now_ns),
            _ => false,
        });
        if probes.len() > AT_ONCE {
            // The rest as soon as others had their turn.
            probes.truncate(AT_ONCE);
            self.leases.holds.look_again();
        }
        // When that cannot be written, the next start does the same: it knows no hold of another
        // run.
        let held = |probe| {
            let reason = HOLD_ENDED.to_owned();
            (probe, None, Trouble { code: "HOLD_ENDED", reason, hint: String::new() })
        };
        self.end(probes.into_iter().map(held).collect()).await;
    }

    /// Removes probes from the kernel whose lease has ended.
    async fn end_leases(&mut self) {
        let now = self.leases.now();
        let mut probes = self.parts.registry.leased();
        probes.retain(|probe| is_due(probe, &self.retries, now.boot_ns));
        // The alarm rings for the others at once.
        probes.truncate(AT_ONCE);
        let over = probes.into_iter().filter_map(|probe| {
            let (end, trouble) = expired(&probe, &now)?;
            Some((probe, Some(end), trouble))
        });
        self.end(over.collect()).await;
    }

    /// Takes probes out of the kernel whose time is over. Each is listed as expired if its lease has an end, and is
    /// deleted otherwise.
    async fn end(&mut self, over: Vec<(Arc<Probe>, Option<SystemTime>, Trouble)>) {
        let probes: Vec<_> = over.iter().map(|(probe, ..)| Arc::clone(probe)).collect();
        let mut works = self.taking_out_of_use(&probes).await;
        for (work, (probe, end, trouble)) in works.iter_mut().zip(&over) {
            work.entry = Some(Arc::new(audited::entry_of_end(&probe.record, &trouble.reason)));
            work.forgets = end.is_none();
            if end.is_some() {
                work.job.probe = as_expired(probe, trouble.clone());
                work.job.probe.record.lease_ended = *end;
            }
        }
        for ((probe, end, trouble), outcome) in over.iter().zip(self.change(each(works)).await) {
            match (outcome, end) {
                (Ok(_), Some(_)) => tracing::info!(probe = %probe.name, reason = trouble.reason, "expired"),
                (Ok(_), None) => tracing::info!(probe = %probe.name, "deleted: {HOLD_ENDED}"),
                (Err(error), _) => self.mark_stuck(probe, trouble, &error),
            }
        }
    }

    /// Removes the rows of probes that were listed as expired for long enough.
    async fn forget_expired(&mut self) {
        let now_ns = self.leases.now().boot_ns;
        let mut works = Vec::new();
        for probe in self.parts.registry.leased() {
            if is_forgotten(&probe, self.leases.keep, now_ns) {
                tracing::info!(probe = %probe.name, "deleted: its lease ended some time ago");
                works.push(Work { insists: true, ..Work::taking_out(&probe, None, None) });
            }
        }
        for outcome in self.change(each(works)).await {
            if let Err(error) = outcome {
                tracing::warn!(%error, "cannot delete a probe whose lease has ended");
            }
        }
    }

    /// What takes probes out of the kernel that are not to be there any more, with the aggregations that count them.
    /// What each is then is not said.
    pub(super) async fn taking_out_of_use(&mut self, probes: &[Arc<Probe>]) -> Vec<Work> {
        if probes.is_empty() {
            return Vec::new();
        }
        for probe in probes {
            self.delete_aggregations_of(&probe.name, "a probe of it is removed").await;
        }
        let mut profiles = self.profiles_by_uid().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the last hits of probes that go");
            HashMap::new()
        });
        let work = |probe: &Arc<Probe>| {
            let (after, profile) = (Some(Probe::clone(probe)), profiles.remove(&probe.uid));
            Work { insists: true, ..Work::taking_out(probe, after, profile) }
        };
        probes.iter().map(work).collect()
    }

    /// A probe that could not be removed from the kernel: it is at least switched off, and its
    /// removal is tried again.
    fn mark_stuck(&mut self, probe: &Probe, trouble: &Trouble, error: &Error) {
        tracing::warn!(probe = %probe.name, %error, "cannot take a probe out whose time is over");
        let switched = self.switch_own(&probe.name, false);
        if let Err(error) = &switched {
            tracing::warn!(probe = %probe.name, %error, "cannot switch it off either");
        }
        self.parts.registry.put(as_expired(probe, still_there(trouble, error, switched.err().as_ref())));
        if !is_stuck(probe) {
            // What was repaired before is another matter.
            self.retries.forget(probe.uid);
        }
        self.retries.note(probe.uid, self.leases.now().boot_ns, PAUSE);
    }

    /// Ends all holds: the daemon stops, and what they hold must not outlive it.
    pub(super) async fn end_all_holds(&mut self) {
        self.leases.holds.close();
        while self.leases.holds.has_ended() {
            self.end_holds().await;
        }
    }

    /// How an expired probe is changed: a lease that begins now brings it back. Fields that only
    /// the row has can be changed as always.
    pub(super) fn judge_expired(
        &self,
        probe: &Probe,
        wanted: Probe,
        request: &UpdateRequest,
        grounds: &mut Grounds<'_>,
    ) -> Result<Job, Error> {
        if request.metadata.lease.is_none() {
            if request.is_about_the_row_alone() {
                return Ok(Job::change(wanted, Vec::new()));
            }
            return Err(Error::lease_ended(&probe.name));
        }
        if let Some(own) = &probe.own {
            // It could not be removed, and cannot be defined a second time.
            own::require(self.tracefs().presence(own)?, &probe.name)?;
            return Err(Error::in_use(&probe.name));
        }
        self.define_anew(wanted, grounds)
    }
}

/// A probe whose time is over.
fn as_expired(probe: &Probe, trouble: Trouble) -> Probe {
    let state_time = Some(SystemTime::now());
    Probe { state: ProbeState::Expired(trouble), state_time, left_alone: None, ..Probe::clone(probe) }
}

/// The trouble of a probe whose time is over and that the kernel did not let go, for this reason, nor switched off, for
/// that one.
fn still_there(trouble: &Trouble, error: &Error, switch: Option<&Error>) -> Trouble {
    let reason = match switch {
        None => format!("{}, and it is still in the kernel, switched off: {error}", trouble.reason),
        Some(switch) => format!(
            "{}, and it is still in the kernel: {error}; whether it records is not known, since it could not be switched off: {switch}",
            trouble.reason
        ),
    };
    let hint = "the daemon tries again after 30 seconds and then less often, and with `kprobectl doctor --repair --force` at once";
    Trouble { code: trouble.code, reason, hint: hint.to_owned() }
}

/// The trouble of a probe whose lease has ended, and its end as it is stored. Absent if it has no such
/// lease.
pub(super) fn expired(probe: &Probe, now: &Moment) -> Option<(SystemTime, Trouble)> {
    let Some(Lease::Until { duration, end }) = &probe.spec.metadata.lease else { return None };
    let time = to_the_second(end.wall_seen_from((now.wall, now.boot_ns)));
    let trouble = Trouble {
        code: "LEASE_ENDED",
        reason: format!("its lease of {} ended at {time}", brief(*duration)),
        hint: format!("`kprobectl update {} --renew` brings it back", probe.name),
    };
    Some((end.wall, trouble))
}

/// A duration as the command line accepts it, such as `1h30m`, without fractions of a second.
fn brief(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts =
        [(seconds / 86_400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    let text = parts.map(|(count, unit)| format!("{count}{unit}")).collect::<Vec<_>>().concat();
    if text.is_empty() { format!("{}ms", duration.as_millis()) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_that_stays_is_called_switched_off_only_if_it_is() {
        let trouble = Trouble { code: "HOLD_ENDED", reason: HOLD_ENDED.to_owned(), hint: String::new() };
        let busy = Error::in_use("a/b");
        assert!(busy.hint().contains("/instances/*/events/a/b/enable"), "{}", busy.hint());
        let off = still_there(&trouble, &busy, None);
        assert!(off.reason.contains("still in the kernel, switched off: `a/b` is in use"), "{}", off.reason);
        let refused = Error::new(Reason::TRACEFS, "no such device");
        let on = still_there(&trouble, &busy, Some(&refused));
        assert!(!on.reason.contains("switched off: `a/b`"), "{}", on.reason);
        assert!(on.reason.ends_with("it could not be switched off: no such device"), "{}", on.reason);
    }

    #[test]
    fn durations_are_written_as_they_are_read() {
        for (seconds, text) in [(1, "1s"), (90, "1m30s"), (7200, "2h"), (90_061, "1d1h1m1s"), (0, "0ms")] {
            assert_eq!(brief(Duration::from_secs(seconds)), text);
        }
    }
}
