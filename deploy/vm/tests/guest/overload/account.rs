//! The equations of the ledger, and checking them.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{GetLedgerResponse, LossCause, ProbeLedger, SubscriberLedger};

use super::subscriber::{Counts, Subscriber};
use crate::accounting::accounted;
use crate::daemon::DaemonGuest;

/// All terms at a moment at which nothing moves.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) ledger: GetLedgerResponse,
    /// What the kernel itself counts of the buffers since it emptied them last
    /// (kernel/trace/trace.c:tracing_stats_read).
    counted: Buffers,
    /// What the buffers hold.
    entries: u64,
}

/// Sums over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Buffers {
    pub(super) read: u64,
    pub(super) overrun: u64,
    pub(super) commit_overrun: u64,
    pub(super) dropped_events: u64,
    pub(super) undecodable: u64,
}

impl Buffers {
    /// Everything that was recorded, or would have been with more room.
    pub(super) fn all(self) -> u64 {
        self.read + self.overrun + self.commit_overrun + self.dropped_events + self.undecodable
    }

    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            read: self.read - earlier.read,
            overrun: self.overrun - earlier.overrun,
            commit_overrun: self.commit_overrun - earlier.commit_overrun,
            dropped_events: self.dropped_events - earlier.dropped_events,
            undecodable: self.undecodable - earlier.undecodable,
        }
    }
}

impl Terms {
    /// Reads them; nothing may be running that hits a probe.
    pub(super) fn read(guest: &DaemonGuest, ledger: GetLedgerResponse) -> Result<Self> {
        let text = guest.shell(&format!("cat {}/per_cpu/cpu*/stats", guest.instance()?))?;
        let sum = |name: &str| -> u64 {
            let lines = text.lines().filter_map(|line| line.split_once(':'));
            lines
                .filter(|(key, _)| *key == name)
                .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
                .sum()
        };
        let counted = Buffers {
            read: sum("read events"),
            overrun: sum("overrun"),
            commit_overrun: sum("commit overrun"),
            dropped_events: sum("dropped events"),
            undecodable: 0,
        };
        Ok(Self { ledger, counted, entries: sum("entries") })
    }

    pub(super) fn buffers(&self) -> Buffers {
        let mut sums = Buffers::default();
        for buffer in &self.ledger.buffers {
            sums.read += buffer.read;
            sums.overrun += buffer.overrun;
            sums.commit_overrun += buffer.commit_overrun;
            sums.dropped_events += buffer.dropped_events;
            sums.undecodable += buffer.undecodable;
        }
        sums
    }

    pub(super) fn probe(&self, name: &str) -> Result<&ProbeLedger> {
        let found = self.ledger.probes.iter().find(|probe| probe.probe == name);
        found.with_context(|| format!("{name} is not in the ledger"))
    }

    /// Hits of all probes.
    pub(super) fn hits(&self) -> u64 {
        self.ledger.probes.iter().filter_map(|probe| probe.hits).sum()
    }

    /// Hits of all probes while nothing was recorded.
    pub(super) fn paused(&self) -> u64 {
        self.ledger.probes.iter().map(|probe| probe.paused).sum()
    }

    /// Every equation that holds for the ledger alone.
    pub(super) fn check_closes(&self) -> Result<()> {
        ensure!(self.ledger.settled, "{:?}", self.ledger);
        for probe in &self.ledger.probes {
            let hits = probe.hits.with_context(|| format!("no hits: {probe:?}"))?;
            ensure!(hits == probe.read + probe.undecodable + probe.not_read, "{probe:?}");
            ensure!(probe.undecodable == 0, "{probe:?}");
            // Without losses that are shared everything is known; with them, no more than that
            // there was no filter.
            let known = match probe.lost {
                Some(_) => probe.filtered.is_some(),
                None => probe.own.is_none() && probe.filtered.unwrap_or(0) == 0,
            };
            ensure!(known, "{probe:?}");
            let split = probe.lost.zip(probe.filtered);
            let parts = |(lost, filtered)| lost + probe.disabled + filtered + probe.own.unwrap_or(0);
            ensure!(split.map(parts).is_none_or(|parts| parts == probe.not_read), "{probe:?}");
            ensure!(probe.paused <= probe.lost.unwrap_or(probe.not_read), "{probe:?}");
        }
        let of_probes: u64 = self.ledger.probes.iter().map(|probe| probe.read).sum();
        let buffers = self.buffers();
        // Only the daemon empties the buffers here.
        ensure!(self.ledger.buffers.iter().all(|buffer| buffer.resets == 0), "{:?}", self.ledger);
        ensure!(of_probes <= buffers.read && buffers.undecodable == 0, "{:?}", self.ledger);
        // Nothing is left in the kernel.
        ensure!(self.entries == 0, "{} entries: {:?}", self.entries, self.counted);
        for subscriber in &self.ledger.subscribers {
            ensure!(subscriber.read == accounted(subscriber), "{subscriber:?}");
        }
        let spool = self.ledger.spool.as_ref().context("no history is kept")?;
        ensure!(spool.read == spool.stored + spool.in_memory + spool.not_stored, "{spool:?}");
        ensure!(spool.read == buffers.read, "{spool:?} {buffers:?}");
        ensure!(spool.last_error.is_empty(), "{spool:?}");
        Ok(())
    }

    /// Every equation that holds for what happened between two moments, in which no probe came,
    /// went or changed and `filtered` hits were held back by filters.
    pub(super) fn check_since(&self, before: &Self, filtered: u64) -> Result<Buffers> {
        let buffers = self.buffers().since(before.buffers());
        let hits = self.hits() - before.hits();
        ensure!(hits == buffers.all() + filtered, "{hits} hits, {filtered} filtered, {buffers:?}");
        let of_probes = |terms: &Self| -> u64 { terms.ledger.probes.iter().map(|probe| probe.read).sum() };
        ensure!(of_probes(self) - of_probes(before) == buffers.read, "{buffers:?}");
        // The kernel counts the same.
        let counted = self.counted.since(before.counted);
        ensure!(counted == buffers, "{:?} {:?} {buffers:?}", self.counted, before.counted);
        let spool = |terms: &Self| terms.ledger.spool.as_ref().map_or(0, |spool| spool.read);
        ensure!(spool(self) - spool(before) == buffers.read, "{buffers:?}");
        Ok(buffers)
    }

    /// A subscriber's part.
    pub(super) fn subscriber(&self, counts: &Counts) -> Option<&SubscriberLedger> {
        self.ledger.subscribers.iter().find(|subscriber| Some(subscriber.subscriber_id) == counts.id)
    }
}

/// Whether a subscriber has counted everything that the ledger says it was given, and is not given
/// what it missed any more.
pub(super) fn has_everything(counts: &Counts, ours: &SubscriberLedger) -> bool {
    counts.is_present
        && ours.queued == 0
        && counts.delivered == ours.delivered
        && counts.replayed == ours.replayed
        && counts.loss_records == ours.loss_records
}

/// What a subscriber counted itself is what the ledger says.
pub(super) fn check_subscriber(
    subscriber: &Subscriber,
    counts: &Counts,
    ours: &SubscriberLedger,
) -> Result<()> {
    let name = subscriber.kind.name;
    ensure!(has_everything(counts, ours), "{name}: {counts:?} {ours:?}");
    ensure!(counts.lost(LossCause::SubscriberQueue) == ours.dropped, "{name}: {counts:?} {ours:?}");
    ensure!(counts.lost(LossCause::RateLimit) == ours.limited, "{name}: {counts:?} {ours:?}");
    ensure!(counts.lost(LossCause::Expired) == ours.expired, "{name}: {counts:?} {ours:?}");
    Ok(())
}
