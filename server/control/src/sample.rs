//! Hit counts: the one reader of the kernel's counters of probes, and their samples in the database.
//!
//! Owns which counter belongs to which probe, when samples are taken, and since when they count. Never
//! decides how samples are stored: that is the store.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Probe;
use super::controller::{Controller, ControllerParts};
use crate::error::Error;
use crate::store::{Counted, Counters, HitRetention, StoreError, StoredProbe, Tick, TickOf};
use kprobed_host::kernel::trace_clock_ns;
use kprobed_host::tracefs::{HitCounts, ProfileRow, Tracefs};
use kprobed_lang::model::{HitProfile, Hits, ProbeName, ProbeUid};

/// How far two clocks may differ over a sample: if they differ more, one of them was set, or the
/// host was suspended.
const SAME: Duration = Duration::from_secs(2);

/// How long a sample may spend on rolling up old samples. The next one does the rest.
const ROLL_UP_TIME: Duration = Duration::from_millis(100);

/// A sample is taken that much after its due time, so that no clock shows a time before it.
const BEHIND: Duration = Duration::from_millis(2);

/// What is known between two samples.
#[derive(Debug)]
pub(super) struct Sampler {
    /// What the database knows of the counters. Absent when that could not be read.
    counters: Option<Counters>,
    /// Events that the kernel had when the daemon started: it has counted their hits.
    adopted: HashSet<ProbeUid>,
    /// Since when the counters are known to be watched, by a clock that no one sets.
    since: (SystemTime, Instant),
    /// The last sample could not be stored.
    fails: bool,
    /// When old samples were deleted last.
    forgot: Option<Instant>,
}

impl Sampler {
    /// Must be called before the probes are brought back: afterwards it cannot be seen which of
    /// them the kernel has had all the time.
    pub(super) fn begin(tracefs: &Tracefs, stored: &[StoredProbe]) -> Self {
        let since = (SystemTime::now(), Instant::now());
        let counts = tracefs.hit_counts().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read hit counts");
            HitCounts::default()
        });
        let is_listed = |name, listing| counts.of_listed(name, listing).is_some();
        let adopted =
            stored.iter().filter(|probe| is_listed(&probe.record.name, &probe.record.kernel_listing));
        let adopted = adopted.map(|probe| probe.record.uid).collect();
        Self { counters: None, adopted, since, fails: false, forgot: None }
    }

    /// What the database knows of the counters, read when the first read succeeds.
    async fn counters(&mut self, parts: &ControllerParts) -> Result<&mut Counters, StoreError> {
        let counters = if let Some(counters) = self.counters.take() {
            counters
        } else {
            let (host, adopted) = (&parts.host, &self.adopted);
            let is_counting = |uid| adopted.contains(&uid);
            let counters = parts.store.counters(&host.boot_id, &host.kernel_release, is_counting).await?;
            // The kernel went on counting for probes that it kept: they were watched while there
            // was no daemon.
            let (begun, instant) = self.since;
            if let Some(until) = counters.watched_until().filter(|_| !adopted.is_empty()) {
                let last = until.max(boot_time(begun)).min(begun);
                let away = begun.duration_since(last).unwrap_or_default();
                self.since = instant.checked_sub(away).map_or(self.since, |instant| (last, instant));
            }
            counters
        };
        Ok(self.counters.insert(counters))
    }
}

/// When the host was booted, by the clock that counts while it sleeps: nothing was counted before,
/// whatever a clock shows that was set.
fn boot_time(now: SystemTime) -> SystemTime {
    now.checked_sub(Duration::from_nanos(trace_clock_ns())).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// How long it is until the next sample: they are taken at multiples of the interval since 1970, so
/// that none is cut by the end of a minute.
pub(super) fn until_next(interval: Duration, now: SystemTime) -> Duration {
    let passed = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let into = passed.as_nanos() % interval.as_nanos().max(1);
    interval.saturating_sub(Duration::from_nanos(u64::try_from(into).unwrap_or_default())) + BEHIND
}

/// Since when the counters are watched, if the last look was at `last`: since then, unless the
/// clock was set or the host was asleep. Otherwise the time that the daemon has run since counts.
fn watched_since(last: SystemTime, now: SystemTime, run: Duration) -> SystemTime {
    let since = now.checked_sub(run).unwrap_or(SystemTime::UNIX_EPOCH);
    let apart = since.duration_since(last).unwrap_or_else(|error| error.duration());
    if apart <= SAME { last } else { since }
}

/// Hits by the name of the probe.
pub(super) type KernelHits = HashMap<ProbeName, Hits>;

impl Controller {
    /// The kernel's counts of the probes that it has. Events of others can have the same name.
    pub(super) fn read_hits(&self) -> Result<Vec<(Arc<Probe>, Hits)>, Error> {
        let counts = self.tracefs().hit_counts()?;
        let of_probe =
            |row: ProfileRow<'_>| Some((self.parts.registry.listed(row.name, row.listing)?, row.hits));
        Ok(counts.rows().filter_map(of_probe).collect())
    }

    /// The same by name.
    pub(super) fn kernel_hits(&self) -> Result<KernelHits, Error> {
        Ok(self.read_hits()?.into_iter().map(|(probe, hits)| (probe.name.clone(), hits)).collect())
    }

    /// The same for clients, in the order of names.
    pub(super) fn hit_profiles(&self) -> Result<Vec<HitProfile>, Error> {
        let time = SystemTime::now();
        let profile = |(probe, hits): (Arc<Probe>, Hits)| {
            let boot_id = self.parts.host.boot_id.clone();
            HitProfile { uid: probe.uid, name: probe.name.clone(), boot_id, time, hits }
        };
        let mut profiles: Vec<_> = self.read_hits()?.into_iter().map(profile).collect();
        profiles.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(profiles)
    }

    /// Stores the hit counts that have changed since the last sample, and rolls up old ones. With
    /// `at_once` it also stores that nothing has changed.
    pub(super) async fn sample(&mut self, at_once: bool) {
        let profiles = match self.hit_profiles() {
            Ok(profiles) => profiles,
            Err(error) => return tracing::warn!(%error, "cannot read hit counts"),
        };
        self.store_tick(&profiles, TickOf::All, at_once).await;
        self.roll_up().await;
    }

    /// The hits that the kernel has counted of an event until now do not belong to the probe that
    /// it has become.
    pub(super) async fn leave_out(&mut self, uid: ProbeUid, until_now: Hits) {
        match self.sampler.counters(&self.parts).await {
            Ok(counters) => counters.begin_at(uid, until_now),
            Err(error) => self.note_outcome(Err(error)),
        }
    }

    /// Stores what has changed of these hit counts.
    pub(super) async fn store_tick(&mut self, profiles: &[HitProfile], of: TickOf, at_once: bool) {
        let (time, instant) = (SystemTime::now(), Instant::now());
        let created = |uid| self.parts.registry.by_uid(uid).map(|probe| probe.create_time);
        let counted = |profile: &HitProfile| Counted {
            uid: profile.uid,
            name: profile.name.clone(),
            hits: profile.hits,
            created: created(profile.uid).unwrap_or(SystemTime::UNIX_EPOCH),
        };
        let counts = profiles.iter().map(counted).collect();
        let outcome = async {
            // Reading the counters may say since when they are watched.
            self.sampler.counters(&self.parts).await?;
            let (last, since) = self.sampler.since;
            let since = watched_since(last, time, instant.duration_since(since));
            let tick = Tick { since, time, counts, of };
            let counters = self.sampler.counters(&self.parts).await?;
            self.parts.store.add_tick(counters, &tick, at_once).await
        };
        let outcome = outcome.await;
        if outcome.is_ok() && of == TickOf::All {
            self.sampler.since = (time, instant);
        }
        self.note_outcome(outcome);
    }

    fn note_outcome(&mut self, outcome: Result<(), StoreError>) {
        match outcome {
            Ok(()) if std::mem::take(&mut self.sampler.fails) => tracing::info!("stores hit counts again"),
            Ok(()) => {}
            // Once: the next sample will fail in the same way.
            Err(error) if !self.sampler.fails => {
                self.sampler.fails = true;
                tracing::warn!(%error, "cannot store hit counts");
            }
            Err(error) => tracing::debug!(%error, "cannot store hit counts"),
        }
    }

    async fn roll_up(&mut self) {
        /// Time after which probes and boots are deleted that have no samples left.
        const FORGET: Duration = Duration::from_hours(24);
        let (now, begun) = (SystemTime::now(), Instant::now());
        let keep: HitRetention = self.parts.hit_retention;
        let mut outcome = Ok(true);
        while matches!(outcome, Ok(true)) && begun.elapsed() < ROLL_UP_TIME {
            outcome = self.parts.store.roll_up(now, &keep).await;
        }
        let mut outcome = outcome.map(drop);
        if outcome.is_ok() && self.sampler.forgot.is_none_or(|forgot| forgot.elapsed() >= FORGET) {
            outcome = self.parts.store.forget_old(now, &keep).await;
            self.sampler.forgot = Some(begun);
        }
        if let Err(error) = outcome {
            tracing::warn!(%error, "cannot roll up hit counts");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
    }

    #[test]
    fn samples_are_taken_at_multiples_of_their_interval() {
        let minute = Duration::from_mins(1);
        for (now, expected) in [(0, 60_000), (1, 59_999), (59_999, 1), (60_002, 59_998), (3_600_000, 60_000)]
        {
            assert_eq!(until_next(minute, at(now)), Duration::from_millis(expected) + BEHIND, "{now}");
        }
    }

    #[test]
    fn only_the_time_in_which_the_daemon_ran_is_watched() {
        let (minute, last) = (Duration::from_mins(1), at(1_000_000));
        assert_eq!(watched_since(last, last + minute, minute), last);
        assert_eq!(watched_since(last, last + minute + SAME, minute), last, "clocks are not that exact");
        // It was asleep for an hour, and ran for a minute.
        let now = last + Duration::from_hours(1);
        assert_eq!(watched_since(last, now, minute), now - minute);
        // The clock was set back by an hour.
        let now = at(900_000);
        assert_eq!(watched_since(last, now, minute), now - minute);
    }
}
