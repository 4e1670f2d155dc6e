//! The ledger: where the hits of every probe went.
//!
//! Owns when its terms are read, so that they belong together, and what is noted in the accounts of
//! probes. Never computes the sums: they are in `account`. Owns also when it is known of all hits that the kernel has
//! counted which part the daemon's own threads have made, and why it is not otherwise. The kernel counts the hits of
//! all tasks together and never records those of the daemon: the ledger has the difference, from its baseline on.
//! Never estimates.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::account::{Account, Losses, Sample, Terms};
use super::controller::Controller;
use super::sample::KernelHits;
use super::{Probe, ProbeState};
use crate::error::Error;
use kprobed_event::PauseReason;
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::{HitProfile, Hits, ProbeName, ProbeUid};
use kprobed_trace::pipeline::{BufferCounts, ProbeCounts, SubscriberCounts};

/// How often the baseline waits for a moment in which nothing is recorded while the buffers are
/// read, before the daemon stops the probes that record.
const QUIET_TRIALS: u32 = 16;

/// How long the daemon reads the ledger again if something was recorded while it was read.
const SETTLING_TIME: Duration = Duration::from_millis(20);

/// Where the hits of one probe went since the baseline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeLedger {
    /// Incarnation.
    pub uid: ProbeUid,
    /// Name.
    pub name: ProbeName,
    /// Whether the kernel counts its hits. Those of an event of the host are not counted: only what
    /// was read is known.
    pub has_hits: bool,
    /// Where they went.
    pub terms: Terms,
}

/// All terms, read after everything in the buffers was.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// By name.
    pub probes: Vec<ProbeLedger>,
    /// By CPU.
    pub buffers: Vec<BufferCounts>,
    /// By age.
    pub subscribers: Vec<SubscriberCounts>,
    /// Size of each buffer.
    pub buffer_bytes: u64,
    /// Whether all terms belong to one moment: nothing was recorded or lost while they were read.
    pub settled: bool,
    /// Probes that are on and do not record what was asked, as their states say.
    pub problems: Vec<Arc<Probe>>,
    /// How often probes were disarmed since the daemon has started, since they cost too much.
    pub trips: u64,
}

/// What was read of the buffers up to one moment.
pub(super) struct Read {
    counts: HashMap<ProbeUid, ProbeCounts>,
    buffers: Vec<BufferCounts>,
}

impl Read {
    fn losses(&self) -> Losses {
        Losses::of(&self.buffers)
    }

    /// Whether no event reached the buffers since an earlier moment.
    fn is_as(&self, earlier: &Self) -> bool {
        let came = |read: &Self| -> Vec<_> {
            read.buffers.iter().map(|buffer| (buffer.cpu, buffer.all(), buffer.resets)).collect()
        };
        came(self) == came(earlier)
    }

    fn sample(&self, uid: ProbeUid, hits: Hits) -> Sample {
        Sample { hits, counts: self.counts.get(&uid).copied().unwrap_or_default(), losses: self.losses() }
    }
}

impl Controller {
    /// Reads everything that was recorded until now.
    fn read_all(&self) -> Read {
        self.readers.drain();
        Read {
            counts: self.live.iter().map(|(uid, live)| (*uid, live.source.counts())).collect(),
            buffers: self.readers.counts(),
        }
    }

    /// What all buffers together have lost so far.
    pub(super) fn losses(&self) -> Losses {
        Losses::of(&self.readers.counts())
    }

    /// From here on everything is counted: what an earlier run of the daemon had recorded has been
    /// read.
    pub(super) fn begin_ledger(&mut self) -> Result<(), Error> {
        let (hits, read, held, since) = self.moment_when_all_is_read()?;
        for probe in self.parts.registry.all() {
            if let Some(live) = self.live.get_mut(&probe.uid) {
                let hits = hits.get(&probe.name).copied().unwrap_or_default();
                let baseline = read.sample(probe.uid, hits);
                live.account = Account::begin(baseline, probe.is_to_record(), !probe.spec.filter.is_empty());
            }
        }
        // A daemon that was killed may have left it off.
        self.parts.instance.set_recording(true)?;
        for name in &held {
            self.switch_own(name, true)?;
        }
        if !held.is_empty() {
            tracing::info!(probes = held.len(), "took the baseline of probes that are hit all the time");
            // The kernel does not count the hits of a probe that is off.
            self.tell_pause(PauseReason::Baseline, since, None);
        }
        self.note_sharing();
        Ok(())
    }

    /// The kernel's counts and what was read, at a moment at which everything that was recorded is
    /// read. If nothing is recorded while the buffers are read to their end, the counts of read
    /// events before and after the kernel's counts are equal, and that is such a moment. For probes
    /// that record all the time the daemon makes one: it switches them off, so that the kernel does
    /// not count their hits either. Returns them too, and since when they are off, if there are any.
    fn moment_when_all_is_read(&self) -> Result<(KernelHits, Read, Vec<ProbeName>, Instant), Error> {
        let (mut held, mut since) = (Vec::<ProbeName>::new(), Instant::now());
        let mut trials = 0_u32;
        let mut hits_before = self.kernel_hits()?;
        let mut before = self.read_all();
        loop {
            let hits = self.kernel_hits()?;
            let read = self.read_all();
            let has_lost = read.losses() != before.losses();
            let is_hot = |probe: &Probe| {
                let count = |hits: &KernelHits| hits.get(&probe.name).map(|hits| hits.hits);
                // The buffers do not show whose events they lose.
                let may_have_lost = has_lost && count(&hits) != count(&hits_before);
                read.counts.get(&probe.uid) != before.counts.get(&probe.uid) || may_have_lost
            };
            let probes = self.parts.registry.all();
            // What was read of an event of the host is all that is known of it.
            let counted = probes.iter().filter(|probe| probe.kind != ProbeKind::Event);
            let ours = counted.filter(|probe| self.live.contains_key(&probe.uid));
            // One that was off and was still read had events from before.
            let hot = ours.filter(|probe| is_hot(probe) && !held.contains(&probe.name));
            let hot: Vec<_> = hot.map(|probe| probe.name.clone()).collect();
            if hot.is_empty() {
                return Ok((hits, read, held, since));
            }
            trials += 1;
            if trials > QUIET_TRIALS {
                if held.is_empty() {
                    since = Instant::now();
                }
                for name in &hot {
                    self.switch_own(name, false)?;
                }
                held.extend(hot);
            }
            (hits_before, before) = (hits, read);
        }
    }

    /// When several probes record at a time, or one with its call stacks, which the kernel counts as events, the losses
    /// cannot be assigned to one of them.
    pub(super) fn note_sharing(&mut self) {
        let enabled = self.parts.registry.recording();
        if enabled.len() > 1 || enabled.iter().any(|probe| probe.spec.stack) {
            for uid in enabled.iter().map(|probe| probe.uid) {
                if let Some(live) = self.live.get_mut(&uid) {
                    live.account.shared = true;
                }
            }
        }
    }

    /// How often the kernel has counted a hit of a probe until now.
    pub(super) fn hits_of(&self, name: &ProbeName) -> Option<u64> {
        match self.kernel_hits() {
            Ok(hits) => hits.get(name).map(|hits| hits.hits),
            Err(error) => {
                tracing::warn!(probe = %name, %error, "cannot read the hits of a probe that is switched");
                None
            }
        }
    }

    pub(super) fn ledger(&mut self) -> Result<Ledger, Error> {
        // Every pause of the daemon ends within the command that needs it: if the instance does not
        // record now, another program has changed it.
        let enabled = self.parts.registry.enabled();
        let observed = self.observer.observe(&enabled);
        let found: Vec<_> = enabled.iter().map(|probe| Arc::new(observed.shown(probe))).collect();
        // Others wait for something that they have to wait for.
        let is_a_problem = |probe: &&Arc<Probe>| {
            matches!(probe.state, ProbeState::Drifted(_) | ProbeState::Failed(_) | ProbeState::Tripped(_))
        };
        let problems = found.iter().filter(is_a_problem).cloned().collect();
        let written = self.written_by_others();
        let suspects = self.suspect(&found, &observed.switches, &written);
        let (probes, read, settled) = self.accounts()?;
        self.tell_interference(&suspects, &probes, settled);
        let subscribers = self.parts.hub.counts();
        let buffer_bytes = self.parts.instance.buffer_kib()? << 10;
        let trips = self.budget.trips;
        Ok(Ledger { probes, buffers: read.buffers, subscribers, buffer_bytes, settled, problems, trips })
    }

    /// The current hit counts of all probes that the kernel has, by name, with the daemon's own part. Of
    /// a probe whose part is known, both belong to one moment.
    pub(super) fn counted_hits(&mut self) -> Result<Vec<CountedHits>, Error> {
        let ledger = self.ledger()?;
        let with_hits = ledger.probes.iter().filter(|of_probe| of_probe.has_hits);
        let terms: HashMap<_, _> = with_hits.map(|of_probe| (of_probe.uid, &of_probe.terms)).collect();
        let counted = |profile: HitProfile| {
            let uid = profile.uid;
            let mut counted = CountedHits { profile, own: Err(EARLIER) };
            if let Some((terms, live)) = terms.get(&uid).zip(self.live.get(&uid)) {
                let before = live.account.baseline.hits;
                counted.own = own_of_all(terms, before);
                let Hits { hits, nmissed } = terms.hits;
                counted.profile.hits = Hits { hits: before.hits + hits, nmissed: before.nmissed + nmissed };
            }
            counted
        };
        Ok(self.hit_profiles()?.into_iter().map(counted).collect())
    }

    /// The accounts of all probes, what was read, and whether both are of one moment.
    pub(super) fn accounts(&self) -> Result<(Vec<ProbeLedger>, Read, bool), Error> {
        let begun = Instant::now();
        let mut before = self.read_all();
        let (hits, read, settled) = loop {
            let hits = self.kernel_hits()?;
            let read = self.read_all();
            let settled = read.is_as(&before);
            if settled || begun.elapsed() >= SETTLING_TIME {
                break (hits, read, settled);
            }
            before = read;
        };
        let ledger_of = |probe: &Arc<Probe>| {
            let live = self.live.get(&probe.uid)?;
            let has_hits = probe.kind != ProbeKind::Event;
            let terms = if has_hits {
                live.account.terms(&read.sample(probe.uid, *hits.get(&probe.name)?))
            } else {
                // Of an event of the host only what was read of it is known.
                let lost = (read.losses() == Losses::default()).then_some(0);
                Terms { counts: live.source.counts(), lost, shared: true, ..Terms::default() }
            };
            Some(ProbeLedger { uid: probe.uid, name: probe.name.clone(), has_hits, terms })
        };
        let probes = self.parts.registry.all().iter().filter_map(ledger_of).collect();
        Ok((probes, read, settled))
    }
}

/// Why own hits are not known: the kernel drops both without a trace.
const FILTER: &str = "the probe has or had a filter, and the kernel does not tell its own hits from those that the \
                      filter held back";

/// They could be lost events.
const LOST: &str = "buffers lost events while several probes recorded, or another program emptied one, and the kernel \
                    does not count that by probe";

/// They could be hits that were not recorded.
const UNEXPLAINED: &str =
    "another program has changed what the daemon's instance records, and the kernel counted on";

/// Nothing was recorded, of no one.
const NOT_RECORDED: &str =
    "the probe was off, or recording was paused, for some of its hits, and the kernel counted on";

/// They are older than the ledger.
const EARLIER: &str =
    "some of its hits are older than what the daemon accounts for: from before its start, or its adoption";

/// The hits of a probe, and the daemon's own part of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedHits {
    /// What the kernel has counted.
    pub profile: HitProfile,
    /// The part by the daemon's own threads; or why it is not known.
    pub own: Result<u64, &'static str>,
}

/// The own part of all hits, by the terms of the ledger and what was counted before it began.
fn own_of_all(terms: &Terms, before: Hits) -> Result<u64, &'static str> {
    if before.hits > 0 {
        return Err(EARLIER);
    }
    match (terms.own, terms.lost, terms.filtered) {
        // Its own hits are among those, in an unknown number.
        (Some(_), ..) if terms.disabled > 0 || terms.paused > 0 => Err(NOT_RECORDED),
        (Some(own), ..) => Ok(own),
        (None, None, _) => Err(LOST),
        (None, Some(_), Some(_)) => Err(FILTER),
        (None, Some(_), None) => Err(UNEXPLAINED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_is_of_all_hits_or_not_known() {
        let terms = Terms { lost: Some(2), filtered: Some(0), own: Some(3), ..Terms::default() };
        let none = Hits::default();
        assert_eq!(own_of_all(&terms, none), Ok(3));
        let missed = Hits { hits: 0, nmissed: 4 };
        assert_eq!(own_of_all(&terms, missed), Ok(3), "a skipped run is no hit");
        let before = Hits { hits: 1, nmissed: 0 };
        assert_eq!(own_of_all(&terms, before), Err(EARLIER));
        for (other, why) in [
            (Terms { own: None, filtered: Some(9), ..terms }, FILTER),
            (Terms { own: None, lost: None, ..terms }, LOST),
            (Terms { own: None, filtered: None, ..terms }, UNEXPLAINED),
            (Terms { disabled: 1, ..terms }, NOT_RECORDED),
            (Terms { paused: 1, ..terms }, NOT_RECORDED),
        ] {
            assert_eq!(own_of_all(&other, none), Err(why), "{other:?}");
        }
    }
}
