//! The ledger: where the events of every probe went.

use std::collections::HashMap;

use super::ControlError;
use super::command::KernelHits;
use super::controller::{Controller, in_kernel};
use crate::model::{Hits, ProbeName, ProbeUid};
use crate::pipeline::{BufferCounts, ProbeCounts, SubscriberCounts};

/// How often a moment is looked for in which nothing is hit while the buffers are read, before it is made.
const QUIET_TRIALS: u32 = 16;

/// Where the counting of a probe began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LedgerBase {
    hits: Hits,
    counts: ProbeCounts,
    buffers_lost: u64,
    shared: bool,
    /// Hits while recording was paused.
    paused: u64,
}

impl LedgerBase {
    /// For a probe that was just defined.
    pub(super) fn new(buffers_lost: u64) -> Self {
        Self { buffers_lost, ..Self::default() }
    }

    /// So many hits were not recorded, since recording was paused.
    pub(super) const fn note_pause(&mut self, hits: u64) {
        self.paused += hits;
    }
}

/// Terms that belong together.
struct Moment {
    hits: KernelHits,
    counts: HashMap<ProbeUid, ProbeCounts>,
    buffers_lost: u64,
}

/// Where the events of one probe or attached event went, since it was defined or since this daemon was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeLedger {
    /// Incarnation.
    pub uid: ProbeUid,
    /// Name.
    pub name: ProbeName,
    /// Hits and misses, by the kernel's count. Absent for an attached event, which the kernel does not count.
    pub hits: Option<Hits>,
    /// Events decoded, and events that could not be.
    pub counts: ProbeCounts,
    /// Hits of which no event was read. Derived; 0 without hits.
    pub not_read: u64,
    /// The part of those that was lost in the buffers, or never got there in a pause. Absent when other probes recorded at the same time and something was lost: the
    /// buffers do not know whose events they lose.
    pub lost: Option<u64>,
    /// Hits while recording was paused, because another probe had to be deleted in place. A part of `lost` where that is known.
    pub paused: u64,
    /// Whether other probes recorded at the same time.
    pub shared: bool,
}

/// All terms, read after everything in the buffers was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// By name.
    pub probes: Vec<ProbeLedger>,
    /// By CPU.
    pub buffers: Vec<BufferCounts>,
    /// By age.
    pub subscribers: Vec<SubscriberCounts>,
    /// Size of each buffer.
    pub buffer_bytes: u64,
    /// No probe was hit while the terms were read.
    pub settled: bool,
}

impl Controller {
    /// What all buffers together have lost so far.
    pub(super) fn buffers_lost(&self) -> u64 {
        self.readers.counts().iter().map(|buffer| buffer.overrun + buffer.refused + buffer.wiped).sum()
    }

    /// From here on everything is counted: what was recorded for an earlier run of the daemon has been read.
    pub(super) fn begin_ledger(&mut self) -> Result<(), ControlError> {
        let mut held = Vec::new();
        let Moment { hits, counts, buffers_lost } = self.moment_when_all_is_read(&mut held)?;
        for probe in self.parts.registry.all() {
            if let Some(live) = self.live.get_mut(&probe.uid) {
                let hits = hits.get(&probe.name).copied().unwrap_or_default();
                let counts = counts.get(&probe.uid).copied().unwrap_or_default();
                live.base = LedgerBase { hits, counts, buffers_lost, shared: false, paused: 0 };
            }
        }
        // A daemon that was killed may have left it off.
        self.parts.instance.set_recording(true)?;
        for name in &held {
            self.parts.instance.set_enabled(name, true)?;
        }
        if !held.is_empty() {
            tracing::warn!(
                probes = held.len(),
                "busy probes were off for a moment, so that counting could begin"
            );
            self.tell_pause();
        }
        self.note_sharing();
        Ok(())
    }

    /// A moment at which everything that was recorded is read. It comes by itself when nothing is hit while the buffers are read to their end.
    /// For probes that are hit all the time it has to be made: they are switched off, and then count no hits either, and put into `held`.
    fn moment_when_all_is_read(&self, held: &mut Vec<ProbeName>) -> Result<Moment, ControlError> {
        let mut trials = 0_u32;
        loop {
            let before = self.kernel_hits()?;
            self.readers.drain();
            // Before the hits are looked at again: what is read after this was hit after it, and is not in these.
            let counts = self.live.iter().map(|(uid, live)| (*uid, live.source.counts())).collect();
            let buffers_lost = self.buffers_lost();
            let hits = self.kernel_hits()?;
            let is_hot = |name: &ProbeName| {
                before.get(name).map(|before| before.hits) != hits.get(name).map(|hits| hits.hits)
            };
            let probes = self.parts.registry.all();
            let ours = probes.iter().filter(|probe| self.live.contains_key(&probe.uid));
            // One that is off here and still counts is switched on by somebody else too.
            let hot = ours.filter(|probe| is_hot(&probe.name) && !held.contains(&probe.name));
            let hot: Vec<_> = hot.map(|probe| probe.name.clone()).collect();
            if hot.is_empty() {
                return Ok(Moment { hits, counts, buffers_lost });
            }
            trials += 1;
            if trials > QUIET_TRIALS {
                for name in &hot {
                    self.parts.instance.set_enabled(name, false)?;
                }
                held.extend(hot);
            }
        }
    }

    /// When several probes or attached events record at a time, none of them can tell its own losses any more.
    pub(super) fn note_sharing(&mut self) {
        let enabled: Vec<_> = self
            .parts
            .registry
            .all()
            .into_iter()
            .filter(|probe| probe.enabled && in_kernel(&probe.state))
            .map(|probe| probe.uid)
            .collect();
        if enabled.len() + self.recording_attached() > 1 {
            for uid in enabled {
                if let Some(live) = self.live.get_mut(&uid) {
                    live.base.shared = true;
                }
            }
        }
    }

    pub(super) fn ledger(&self) -> Result<Ledger, ControlError> {
        let before = self.kernel_hits()?;
        self.readers.drain();
        let buffers = self.readers.counts();
        let buffers_lost = self.buffers_lost();
        let subscribers = self.parts.hub.counts();
        let mut probes: Vec<_> = self
            .parts
            .registry
            .all()
            .into_iter()
            .filter_map(|probe| {
                let live = self.live.get(&probe.uid)?;
                let now = before.get(&probe.name)?;
                let counts = live.source.counts();
                let base = &live.base;
                let hits = Hits {
                    hits: now.hits.saturating_sub(base.hits.hits),
                    misses: now.misses.saturating_sub(base.hits.misses),
                };
                let counts = ProbeCounts {
                    read: counts.read.saturating_sub(base.counts.read),
                    read_span: counts.read_span,
                    undecodable: counts.undecodable.saturating_sub(base.counts.undecodable),
                };
                Some(ProbeLedger {
                    uid: probe.uid,
                    name: probe.name.clone(),
                    hits: Some(hits),
                    counts,
                    not_read: hits.hits.saturating_sub(counts.read + counts.undecodable),
                    lost: Some(buffers_lost.saturating_sub(base.buffers_lost))
                        .filter(|lost| !base.shared || *lost == 0)
                        .map(|lost| lost + base.paused),
                    paused: base.paused,
                    shared: base.shared,
                })
            })
            .collect();
        // Behind all other terms: what was hit before this and is not in them would show.
        let after = self.kernel_hits()?;
        let settled = probes.iter().all(|probe| before.get(&probe.name) == after.get(&probe.name));
        probes.extend(self.attached_ledger(buffers_lost));
        probes.sort_by(|a, b| a.name.cmp(&b.name));
        let buffer_bytes = self.parts.instance.buffer_kib()? << 10;
        Ok(Ledger { probes, buffers, subscribers, buffer_bytes, settled })
    }

    /// What is known of attached events: only what was read.
    fn attached_ledger(&self, buffers_lost: u64) -> impl Iterator<Item = ProbeLedger> {
        self.attached_events().into_iter().filter_map(move |event| {
            Some(ProbeLedger {
                uid: event.uid,
                name: event.name,
                hits: None,
                counts: event.source?.counts(),
                not_read: 0,
                lost: (buffers_lost == 0).then_some(0),
                paused: 0,
                shared: true,
            })
        })
    }
}
