//! The account of where every event went.
//!
//! Owns the addition: the terms come from the daemon, the sums are made here again.

use std::io;

use kprobed_client::api::{
    BufferLedger, GetLedgerResponse, OverflowPolicy, ProbeLedger, SpoolLedger, SubscriberLedger, TermSpan,
};
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
    /// `null`: no history is kept.
    spool: Option<SpoolView<'a>>,
}

/// When a term was counted for the first and the last time, on the trace clock.
#[derive(Clone, Copy, Serialize)]
struct SpanView {
    first_ns: u64,
    last_ns: u64,
}

#[derive(Serialize)]
struct ProbeView<'a> {
    probe: &'a str,
    probe_uid: i64,
    /// `null` for an attached event, whose hits nobody counts.
    hits: Option<u64>,
    misses: u64,
    read: u64,
    read_span: SpanView,
    undecodable: u64,
    not_read: u64,
    lost: Option<u64>,
    filtered: Option<u64>,
    /// Hits while recording was paused, a part of `lost` where that is known.
    paused: u64,
    loss_is_shared: bool,
    /// `null` where there is no sum.
    closes: Option<bool>,
}

#[derive(Serialize)]
struct BufferView {
    cpu: u32,
    read: u64,
    read_span: SpanView,
    overrun: u64,
    overrun_span: SpanView,
    refused: u64,
    wiped: u64,
    undecodable: u64,
    pages: u64,
    buffer_bytes: u64,
}

#[derive(Serialize)]
struct SubscriberView {
    subscriber_id: u64,
    start_time: Option<String>,
    overflow: &'static str,
    read: u64,
    not_selected: u64,
    filtered: u64,
    sampled_out: u64,
    limited: u64,
    dropped: u64,
    dropped_span: SpanView,
    queued: u64,
    delivered: u64,
    delivered_span: SpanView,
    replayed: u64,
    expired: u64,
    loss_records: u64,
    closes: bool,
}

#[derive(Serialize)]
struct SpoolView<'a> {
    read: u64,
    stored: u64,
    not_stored: u64,
    available: u64,
    expired: u64,
    bytes: u64,
    oldest_time: Option<String>,
    last_error: Option<&'a str>,
    closes: bool,
}

/// Adds without wrapping: a sum that does not fit equals nothing.
fn sum(terms: &[u64]) -> Option<u64> {
    terms.iter().try_fold(0_u64, |sum, term| sum.checked_add(*term))
}

/// `None` for an attached event: there is nothing to add up to.
fn probe_closes(probe: &ProbeLedger) -> Option<bool> {
    let hits = probe.hits?;
    let parts_close = match (probe.lost, probe.filtered) {
        (Some(lost), Some(filtered)) => sum(&[lost, filtered]) == Some(probe.not_read),
        (None, None) => true,
        _ => false,
    };
    Some(parts_close && sum(&[probe.read, probe.undecodable, probe.not_read]) == Some(hits))
}

fn subscriber_closes(subscriber: &SubscriberLedger) -> bool {
    let terms = [
        subscriber.not_selected,
        subscriber.filtered,
        subscriber.sampled_out,
        subscriber.limited,
        subscriber.dropped,
        subscriber.queued,
        subscriber.delivered,
    ];
    sum(&terms) == Some(subscriber.read)
}

fn spool_closes(spool: &SpoolLedger) -> bool {
    sum(&[spool.stored, spool.not_stored]) == Some(spool.read)
}

fn overflow(policy: OverflowPolicy) -> &'static str {
    match policy {
        OverflowPolicy::DropOldest | OverflowPolicy::Unspecified => "drop-oldest",
        OverflowPolicy::DropNewest => "drop-newest",
        OverflowPolicy::Disconnect => "disconnect",
    }
}

fn mark(closes: Option<bool>) -> Cell {
    match closes {
        Some(true) => Cell::toned("yes", Tone::Good),
        Some(false) => Cell::toned("NO", Tone::Bad),
        None => Cell::text(""),
    }
}

impl Output {
    /// Prints the account, and says whether it closes.
    pub(crate) fn ledger(&mut self, ledger: &GetLedgerResponse) -> io::Result<bool> {
        let closes = ledger.probes.iter().all(|probe| probe_closes(probe) != Some(false))
            && ledger.subscribers.iter().all(subscriber_closes)
            && ledger.spool.iter().all(spool_closes);
        let view = LedgerView {
            settled: ledger.settled,
            closes,
            probes: ledger.probes.iter().map(ProbeView::new).collect(),
            buffers: ledger.buffers.iter().map(BufferView::new).collect(),
            subscribers: ledger.subscribers.iter().map(SubscriberView::new).collect(),
            spool: ledger.spool.as_ref().map(SpoolView::new),
        };
        if self.structured(&view)? {
            return Ok(closes);
        }
        let wide = self.is_wide();
        self.table(&probes(&view.probes, wide))?;
        self.line("")?;
        self.table(&buffers(&view.buffers, wide))?;
        self.line("")?;
        self.table(&subscribers(&view.subscribers, wide))?;
        self.line("")?;
        if let Some(spool) = &view.spool {
            self.table(&spools(spool))?;
            if let Some(error) = spool.last_error {
                self.line(&format!("the last error of the history: {error}"))?;
            }
            self.line("")?;
        }
        self.line(match (closes, ledger.settled) {
            (true, true) => "the ledger closes, and it is settled",
            (true, false) => "the ledger closes, but it is not settled: probes were hit while it was read",
            (false, true) => "the ledger DOES NOT CLOSE, although it is settled: please report this",
            (false, false) => {
                "the ledger does not close, and it is not settled: probes were hit while it was read"
            }
        })?;
        if ledger.probes.iter().any(|probe| probe.hits.is_some() && probe.lost.is_none()) {
            self.line(
                "`?`: several probes were recording, and the kernel counts losses for all of them together",
            )?;
        }
        Ok(closes)
    }
}

/// A term that an attached event does not have, or one that may not be known.
fn of_probe(attached: bool, number: Option<u64>) -> Cell {
    if attached { Cell::text("").right() } else { Cell::maybe(number) }
}

fn probes(probes: &[ProbeView<'_>], wide: bool) -> Table {
    let mut headings = vec![
        "PROBE",
        "HITS",
        "= READ",
        "+ UNDECODABLE",
        "+ NOT READ",
        "(LOST",
        "+ FILTERED)",
        "MISSES",
        "CLOSES",
    ];
    if wide {
        headings.extend(["PAUSED", "FIRST READ", "LAST READ"]);
    }
    let mut table = Table::new(&headings);
    for probe in probes {
        let attached = probe.hits.is_none();
        let mut cells = vec![
            Cell::text(probe.probe),
            of_probe(attached, probe.hits),
            Cell::number(probe.read),
            Cell::number(probe.undecodable),
            of_probe(attached, Some(probe.not_read)),
            of_probe(attached, probe.lost),
            of_probe(attached, probe.filtered),
            of_probe(attached, Some(probe.misses)),
            mark(probe.closes),
        ];
        if wide {
            cells.push(of_probe(attached, Some(probe.paused)));
            cells.extend(probe.read_span.cells());
        }
        table.row(cells);
    }
    table
}

fn buffers(buffers: &[BufferView], wide: bool) -> Table {
    let mut headings = vec!["CPU", "READ", "OVERRUN", "REFUSED", "WIPED", "UNDECODABLE", "PAGES"];
    if wide {
        headings.extend(["BYTES", "FIRST READ", "LAST READ", "FIRST OVERRUN", "LAST OVERRUN"]);
    }
    let mut table = Table::new(&headings);
    for buffer in buffers {
        let mut cells = vec![
            Cell::number(buffer.cpu.into()),
            Cell::number(buffer.read),
            Cell::number(buffer.overrun),
            Cell::number(buffer.refused),
            Cell::number(buffer.wiped),
            Cell::number(buffer.undecodable),
            Cell::number(buffer.pages),
        ];
        if wide {
            cells.push(Cell::number(buffer.buffer_bytes));
            cells.extend(buffer.read_span.cells());
            cells.extend(buffer.overrun_span.cells());
        }
        table.row(cells);
    }
    table
}

fn subscribers(subscribers: &[SubscriberView], wide: bool) -> Table {
    let mut headings = vec![
        "SUBSCRIBER",
        "SINCE",
        "READ",
        "= DELIVERED",
        "+ QUEUED",
        "+ DROPPED",
        "+ LIMITED",
        "+ SAMPLED OUT",
        "+ FILTERED",
        "+ NOT SELECTED",
        "CLOSES",
        "REPLAYED",
        "EXPIRED",
    ];
    if wide {
        headings.extend(["OVERFLOW", "LOSS RECORDS", "FIRST DELIVERED", "LAST DELIVERED"]);
        headings.extend(["FIRST DROPPED", "LAST DROPPED"]);
    }
    let mut table = Table::new(&headings);
    for subscriber in subscribers {
        let mut cells = vec![
            Cell::number(subscriber.subscriber_id),
            Cell::text(subscriber.start_time.clone().unwrap_or_default()),
            Cell::number(subscriber.read),
            Cell::number(subscriber.delivered),
            Cell::number(subscriber.queued),
            Cell::number(subscriber.dropped),
            Cell::number(subscriber.limited),
            Cell::number(subscriber.sampled_out),
            Cell::number(subscriber.filtered),
            Cell::number(subscriber.not_selected),
            mark(Some(subscriber.closes)),
            Cell::number(subscriber.replayed),
            Cell::number(subscriber.expired),
        ];
        if wide {
            cells.extend([Cell::text(subscriber.overflow), Cell::number(subscriber.loss_records)]);
            cells.extend(subscriber.delivered_span.cells());
            cells.extend(subscriber.dropped_span.cells());
        }
        table.row(cells);
    }
    table
}

fn spools(spool: &SpoolView<'_>) -> Table {
    let mut table = Table::new(&[
        "HISTORY READ",
        "= STORED",
        "+ NOT STORED",
        "CLOSES",
        "AVAILABLE",
        "EXPIRED",
        "BYTES",
        "OLDEST",
    ]);
    table.row(vec![
        Cell::number(spool.read),
        Cell::number(spool.stored),
        Cell::number(spool.not_stored),
        mark(Some(spool.closes)),
        Cell::number(spool.available),
        Cell::number(spool.expired),
        Cell::number(spool.bytes),
        Cell::text(spool.oldest_time.clone().unwrap_or_default()),
    ]);
    table
}

impl SpanView {
    fn new(span: Option<&TermSpan>) -> Self {
        span.map_or(Self { first_ns: 0, last_ns: 0 }, |span| Self {
            first_ns: span.first_ns,
            last_ns: span.last_ns,
        })
    }

    /// Seconds of the trace clock, as `observe --time trace` shows them.
    fn cells(self) -> [Cell; 2] {
        [self.first_ns, self.last_ns].map(|ns| {
            let text = match ns {
                0 => String::new(),
                ns => format!("{}.{:06}", ns / 1_000_000_000, ns % 1_000_000_000 / 1_000),
            };
            Cell::text(text).right()
        })
    }
}

impl<'a> ProbeView<'a> {
    fn new(probe: &'a ProbeLedger) -> Self {
        Self {
            probe: &probe.probe,
            probe_uid: probe.probe_uid,
            hits: probe.hits,
            misses: probe.misses,
            read: probe.read,
            read_span: SpanView::new(probe.read_span.as_ref()),
            undecodable: probe.undecodable,
            not_read: probe.not_read,
            lost: probe.lost,
            filtered: probe.filtered,
            paused: probe.paused,
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
            read_span: SpanView::new(buffer.read_span.as_ref()),
            overrun: buffer.overrun,
            overrun_span: SpanView::new(buffer.overrun_span.as_ref()),
            refused: buffer.refused,
            wiped: buffer.wiped,
            undecodable: buffer.undecodable,
            pages: buffer.pages,
            buffer_bytes: buffer.buffer_bytes,
        }
    }
}

impl SubscriberView {
    fn new(subscriber: &SubscriberLedger) -> Self {
        Self {
            subscriber_id: subscriber.subscriber_id,
            start_time: rfc3339(subscriber.start_time.as_ref()),
            overflow: overflow(subscriber.overflow()),
            read: subscriber.read,
            not_selected: subscriber.not_selected,
            filtered: subscriber.filtered,
            sampled_out: subscriber.sampled_out,
            limited: subscriber.limited,
            dropped: subscriber.dropped,
            dropped_span: SpanView::new(subscriber.dropped_span.as_ref()),
            queued: subscriber.queued,
            delivered: subscriber.delivered,
            delivered_span: SpanView::new(subscriber.delivered_span.as_ref()),
            replayed: subscriber.replayed,
            expired: subscriber.expired,
            loss_records: subscriber.loss_records,
            closes: subscriber_closes(subscriber),
        }
    }
}

impl<'a> SpoolView<'a> {
    fn new(spool: &'a SpoolLedger) -> Self {
        Self {
            read: spool.read,
            stored: spool.stored,
            not_stored: spool.not_stored,
            available: spool.available,
            expired: spool.expired,
            bytes: spool.bytes,
            oldest_time: rfc3339(spool.oldest_time.as_ref()),
            last_error: Some(spool.last_error.as_str()).filter(|error| !error.is_empty()),
            closes: spool_closes(spool),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        let closes = |probe: ProbeLedger| probe_closes(&probe);
        let good = ProbeLedger { hits: Some(10), read: 6, undecodable: 1, not_read: 3, ..Default::default() };
        assert_eq!(closes(good.clone()), Some(true));
        assert_eq!(closes(ProbeLedger { lost: Some(1), filtered: Some(2), ..good.clone() }), Some(true));
        assert_eq!(closes(ProbeLedger { lost: Some(1), filtered: Some(1), ..good.clone() }), Some(false));
        assert_eq!(closes(ProbeLedger { lost: Some(3), ..good.clone() }), Some(false));
        assert_eq!(closes(ProbeLedger { hits: Some(11), ..good.clone() }), Some(false));
        assert_eq!(closes(ProbeLedger { read: u64::MAX, ..good.clone() }), Some(false), "no wrapping");
        assert_eq!(closes(ProbeLedger { hits: None, ..good }), None, "an attached event");
        let subscriber = SubscriberLedger {
            read: 28,
            not_selected: 1,
            filtered: 2,
            sampled_out: 3,
            limited: 4,
            dropped: 5,
            queued: 6,
            delivered: 7,
            replayed: 99,
            expired: 99,
            ..Default::default()
        };
        assert!(subscriber_closes(&subscriber), "what is replayed is no part of the sum");
        assert!(!subscriber_closes(&SubscriberLedger { limited: 3, ..subscriber }));
        let spool = SpoolLedger { read: 5, stored: 3, not_stored: 2, ..Default::default() };
        assert!(spool_closes(&spool) && !spool_closes(&SpoolLedger { stored: 4, ..spool }));
    }
}
