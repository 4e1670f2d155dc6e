//! The ledger: where the events of every probe went.

use super::ControlError;
use super::controller::{Controller, in_kernel};
use crate::model::{Hits, ProbeName, ProbeUid};
use crate::pipeline::{BufferCounts, ProbeCounts, SubscriberCounts};

/// Where the counting of a probe began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LedgerBase {
    hits: Hits,
    counts: ProbeCounts,
    buffers_lost: u64,
    shared: bool,
}

impl LedgerBase {
    /// For a probe that was just defined.
    pub(super) fn new(buffers_lost: u64) -> Self {
        Self { buffers_lost, ..Self::default() }
    }
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
    /// The part of those that was lost in the buffers. Absent when other probes recorded at the same time and something was lost: the
    /// buffers do not know whose events they lose.
    pub lost: Option<u64>,
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

    /// From here on everything is counted: what was recorded for an earlier run of the daemon has been read, and nothing new was let in.
    pub(super) fn begin_ledger(&mut self) -> Result<(), ControlError> {
        let hits = self.kernel_hits()?;
        let buffers_lost = self.buffers_lost();
        for probe in self.parts.registry.all() {
            if let Some(live) = self.live.get_mut(&probe.uid) {
                let hits = hits.get(&probe.name).copied().unwrap_or_default();
                live.base = LedgerBase { hits, counts: live.source.counts(), buffers_lost, shared: false };
            }
        }
        self.note_sharing();
        Ok(())
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
        let after = self.kernel_hits()?;
        let buffers_lost = self.buffers_lost();
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
                        .filter(|lost| !base.shared || *lost == 0),
                    shared: base.shared,
                })
            })
            .collect();
        let settled = probes.iter().all(|probe| before.get(&probe.name) == after.get(&probe.name));
        probes.extend(self.attached_ledger(buffers_lost));
        probes.sort_by(|a, b| a.name.cmp(&b.name));
        let buffer_bytes = self.parts.instance.buffer_kib()? << 10;
        Ok(Ledger { probes, buffers, subscribers: self.parts.hub.counts(), buffer_bytes, settled })
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
                shared: true,
            })
        })
    }
}
