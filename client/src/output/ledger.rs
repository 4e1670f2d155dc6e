//! The account of where every event went.
//!
//! Owns the addition: the terms come from the daemon, the sums are made here again.

use std::io;

use kprobed_client::api::{BufferLedger, GetLedgerResponse, ProbeLedger, SubscriberLedger};
use serde::Serialize;

use super::Output;
use super::style::Tone;
use super::table::{Cell, Table};
use super::time::rfc3339;

/// The account, for programs.
#[derive(Serialize)]
struct LedgerView<'a> {
    settled: bool,
    closes: bool,
    probes: Vec<ProbeView<'a>>,
    buffers: Vec<BufferView>,
    subscribers: Vec<SubscriberView>,
}

#[derive(Serialize)]
struct ProbeView<'a> {
    probe: &'a str,
    probe_uid: i64,
    hits: u64,
    misses: u64,
    read: u64,
    undecodable: u64,
    not_read: u64,
    lost: Option<u64>,
    held_back: Option<u64>,
    loss_is_shared: bool,
    closes: bool,
}

#[derive(Serialize)]
struct BufferView {
    cpu: u32,
    read: u64,
    lost: u64,
    refused: u64,
    undecodable: u64,
    pages: u64,
}

#[derive(Serialize)]
struct SubscriberView {
    subscriber_id: u64,
    start_time: Option<String>,
    read: u64,
    delivered: u64,
    queued: u64,
    dropped: u64,
    not_selected: u64,
    closes: bool,
}

/// Adds without wrapping: a sum that does not fit equals nothing.
fn sum(terms: &[u64]) -> Option<u64> {
    terms.iter().try_fold(0_u64, |sum, term| sum.checked_add(*term))
}

fn probe_closes(probe: &ProbeLedger) -> bool {
    let parts_close = match (probe.lost, probe.held_back) {
        (Some(lost), Some(held_back)) => sum(&[lost, held_back]) == Some(probe.not_read),
        (None, None) => true,
        _ => false,
    };
    parts_close && sum(&[probe.read, probe.undecodable, probe.not_read]) == Some(probe.hits)
}

fn subscriber_closes(subscriber: &SubscriberLedger) -> bool {
    let terms = [subscriber.delivered, subscriber.queued, subscriber.dropped, subscriber.not_selected];
    sum(&terms) == Some(subscriber.read)
}

fn mark(closes: bool) -> Cell {
    if closes { Cell::toned("yes", Tone::Good) } else { Cell::toned("NO", Tone::Bad) }
}

impl Output {
    /// Prints the account, and says whether it closes.
    pub(crate) fn ledger(&mut self, ledger: &GetLedgerResponse) -> io::Result<bool> {
        let closes =
            ledger.probes.iter().all(probe_closes) && ledger.subscribers.iter().all(subscriber_closes);
        let view = LedgerView {
            settled: ledger.settled,
            closes,
            probes: ledger.probes.iter().map(ProbeView::new).collect(),
            buffers: ledger.buffers.iter().map(BufferView::new).collect(),
            subscribers: ledger.subscribers.iter().map(SubscriberView::new).collect(),
        };
        if self.structured(&view)? {
            return Ok(closes);
        }
        self.table(&probes(&ledger.probes))?;
        self.line("")?;
        self.table(&buffers(&ledger.buffers))?;
        self.line("")?;
        self.table(&subscribers(&view.subscribers))?;
        self.line("")?;
        self.line(match (closes, ledger.settled) {
            (true, true) => "the ledger closes, and it is settled",
            (true, false) => "the ledger closes, but it is not settled: probes were hit while it was read",
            (false, true) => "the ledger DOES NOT CLOSE, although it is settled: please report this",
            (false, false) => {
                "the ledger does not close, and it is not settled: probes were hit while it was read"
            }
        })?;
        if ledger.probes.iter().any(|probe| probe.lost.is_none()) {
            self.line(
                "`?`: several probes were recording, and the kernel counts losses for all of them together",
            )?;
        }
        Ok(closes)
    }
}

fn probes(probes: &[ProbeLedger]) -> Table {
    let mut table = Table::new(&[
        "PROBE",
        "HITS",
        "= READ",
        "+ UNDECODABLE",
        "+ NOT READ",
        "(LOST",
        "+ HELD BACK)",
        "MISSES",
        "CLOSES",
    ]);
    for probe in probes {
        table.row(vec![
            Cell::text(&probe.probe),
            Cell::number(probe.hits),
            Cell::number(probe.read),
            Cell::number(probe.undecodable),
            Cell::number(probe.not_read),
            Cell::maybe(probe.lost),
            Cell::maybe(probe.held_back),
            Cell::number(probe.misses),
            mark(probe_closes(probe)),
        ]);
    }
    table
}

fn buffers(buffers: &[BufferLedger]) -> Table {
    let mut table = Table::new(&["CPU", "READ", "LOST", "(REFUSED)", "UNDECODABLE", "PAGES"]);
    for buffer in buffers {
        table.row(vec![
            Cell::number(buffer.cpu.into()),
            Cell::number(buffer.read),
            Cell::number(buffer.lost),
            Cell::number(buffer.refused),
            Cell::number(buffer.undecodable),
            Cell::number(buffer.pages),
        ]);
    }
    table
}

fn subscribers(subscribers: &[SubscriberView]) -> Table {
    let mut table = Table::new(&[
        "SUBSCRIBER",
        "SINCE",
        "READ",
        "= DELIVERED",
        "+ QUEUED",
        "+ DROPPED",
        "+ NOT SELECTED",
        "CLOSES",
    ]);
    for subscriber in subscribers {
        table.row(vec![
            Cell::number(subscriber.subscriber_id),
            Cell::text(subscriber.start_time.clone().unwrap_or_default()),
            Cell::number(subscriber.read),
            Cell::number(subscriber.delivered),
            Cell::number(subscriber.queued),
            Cell::number(subscriber.dropped),
            Cell::number(subscriber.not_selected),
            mark(subscriber.closes),
        ]);
    }
    table
}

impl<'a> ProbeView<'a> {
    fn new(probe: &'a ProbeLedger) -> Self {
        Self {
            probe: &probe.probe,
            probe_uid: probe.probe_uid,
            hits: probe.hits,
            misses: probe.misses,
            read: probe.read,
            undecodable: probe.undecodable,
            not_read: probe.not_read,
            lost: probe.lost,
            held_back: probe.held_back,
            loss_is_shared: probe.loss_is_shared,
            closes: probe_closes(probe),
        }
    }
}

impl BufferView {
    fn new(buffer: &BufferLedger) -> Self {
        Self {
            cpu: buffer.cpu,
            read: buffer.read,
            lost: buffer.lost,
            refused: buffer.refused,
            undecodable: buffer.undecodable,
            pages: buffer.pages,
        }
    }
}

impl SubscriberView {
    fn new(subscriber: &SubscriberLedger) -> Self {
        Self {
            subscriber_id: subscriber.subscriber_id,
            start_time: rfc3339(subscriber.start_time.as_ref()),
            read: subscriber.read,
            delivered: subscriber.delivered,
            queued: subscriber.queued,
            dropped: subscriber.dropped,
            not_selected: subscriber.not_selected,
            closes: subscriber_closes(subscriber),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        let good = ProbeLedger { hits: 10, read: 6, undecodable: 1, not_read: 3, ..Default::default() };
        assert!(probe_closes(&good));
        assert!(probe_closes(&ProbeLedger { lost: Some(1), held_back: Some(2), ..good.clone() }));
        assert!(!probe_closes(&ProbeLedger { lost: Some(1), held_back: Some(1), ..good.clone() }));
        assert!(!probe_closes(&ProbeLedger { lost: Some(3), ..good.clone() }));
        assert!(!probe_closes(&ProbeLedger { hits: 11, ..good.clone() }));
        assert!(!probe_closes(&ProbeLedger { read: u64::MAX, ..good }), "no wrapping");
        let subscriber = SubscriberLedger {
            read: 10,
            delivered: 5,
            queued: 2,
            dropped: 2,
            not_selected: 1,
            ..Default::default()
        };
        assert!(subscriber_closes(&subscriber));
        assert!(!subscriber_closes(&SubscriberLedger { dropped: 3, ..subscriber }));
    }
}
