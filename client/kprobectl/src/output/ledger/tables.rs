//! Tables of the ledger, with a legend of their columns.

use kprobed_client::api::{
    BufferLedger, ExporterLedger, ExporterState, OverflowPolicy, ProbeLedger, SpoolLedger, SubscriberLedger,
    TermSpan,
};
use kprobed_client::event::Cursor;

use super::sums::{exporter_closes, probe_closes, spool_closes, subscriber_closes};
use crate::output::style::Tone;
use crate::output::table::{Cell, Table};
use crate::output::time::rfc3339;

/// Under the table of probes.
pub(super) const PROBE_LEGEND: &str = "LOST: in buffers or a pause; DISABLED: while it was off; OWN: by kprobed itself; NMISSED: skipped by the kernel";

/// Under the table of buffers.
pub(super) const BUFFER_LEGEND: &str = "COMMIT OVERRUN: writers nested too deep; DROPPED EVENTS: full, overwriting off; RESETS: emptied by another program";

/// Under the table of subscribers.
pub(super) const SUBSCRIBER_LEGEND: &str =
    "DROPPED: queue full; LIMITED: over its rate; REPLAYED, EXPIRED: events of the history, no part of READ";

/// Under the table of the history.
pub(super) const HISTORY_LEGEND: &str = "IN MEMORY: until the disk works again; NOT STORED: disk full, failing or too slow; AVAILABLE: on disk now; EXPIRED: deleted to stay within the limits";

/// A term that an attached event does not have; for a probe, one that may not be known.
fn of_probe(attached: bool, number: Option<u64>) -> Cell {
    if attached { Cell::text("").right() } else { Cell::maybe(number) }
}

pub(super) fn probes(probes: &[ProbeLedger], wide: bool) -> Table {
    let mut headings = vec![
        "PROBE",
        "HITS",
        "= READ",
        "+ UNDECODABLE",
        "+ NOT READ",
        "(LOST",
        "+ DISABLED",
        "+ FILTERED",
        "+ OWN)",
        "NMISSED",
        "CLOSES",
    ];
    if wide {
        headings.extend(["PAUSED", "FIRST READ", "LAST READ"]);
    }
    let mut table = Table::new(&headings);
    for probe in probes {
        let attached = probe.hits.is_none();
        let mut cells = vec![
            Cell::text(&probe.probe),
            of_probe(attached, probe.hits),
            Cell::number(probe.read),
            Cell::number(probe.undecodable),
            of_probe(attached, Some(probe.not_read)),
            of_probe(attached, probe.lost),
            of_probe(attached, Some(probe.disabled)),
            of_probe(attached, probe.filtered),
            of_probe(attached, probe.own),
            of_probe(attached, Some(probe.nmissed)),
            Cell::mark(probe_closes(probe)),
        ];
        if wide {
            cells.push(of_probe(attached, Some(probe.paused)));
            cells.extend(span(probe.read_span.as_ref()));
        }
        table.row(cells);
    }
    table
}

pub(super) fn buffers(buffers: &[BufferLedger], wide: bool) -> Table {
    let mut headings =
        vec!["CPU", "READ", "OVERRUN", "COMMIT OVERRUN", "DROPPED EVENTS", "RESETS", "UNDECODABLE", "PAGES"];
    if wide {
        headings.extend(["BYTES", "FIRST READ", "LAST READ", "FIRST OVERRUN", "LAST OVERRUN"]);
    }
    let mut table = Table::new(&headings);
    for buffer in buffers {
        let mut cells = vec![
            Cell::number(buffer.cpu.into()),
            Cell::number(buffer.read),
            Cell::number(buffer.overrun),
            Cell::number(buffer.commit_overrun),
            Cell::number(buffer.dropped_events),
            Cell::number(buffer.resets),
            Cell::number(buffer.undecodable),
            Cell::number(buffer.pages),
        ];
        if wide {
            cells.push(Cell::number(buffer.buffer_bytes));
            cells.extend(span(buffer.read_span.as_ref()));
            cells.extend(span(buffer.overrun_span.as_ref()));
        }
        table.row(cells);
    }
    table
}

pub(super) fn subscribers(subscribers: &[SubscriberLedger], wide: bool) -> Table {
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
            Cell::text(rfc3339(subscriber.start_time.as_ref()).unwrap_or_default()),
            Cell::number(subscriber.read),
            Cell::number(subscriber.delivered),
            Cell::number(subscriber.queued),
            Cell::number(subscriber.dropped),
            Cell::number(subscriber.limited),
            Cell::number(subscriber.sampled_out),
            Cell::number(subscriber.filtered),
            Cell::number(subscriber.not_selected),
            Cell::mark(Some(subscriber_closes(subscriber))),
            Cell::number(subscriber.replayed),
            Cell::number(subscriber.expired),
        ];
        if wide {
            cells.extend([Cell::text(overflow(subscriber)), Cell::number(subscriber.loss_records)]);
            cells.extend(span(subscriber.delivered_span.as_ref()));
            cells.extend(span(subscriber.dropped_span.as_ref()));
        }
        table.row(cells);
    }
    table
}

pub(super) fn spools(spool: &SpoolLedger) -> Table {
    let mut table = Table::new(&[
        "HISTORY READ",
        "= STORED",
        "+ IN MEMORY",
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
        Cell::number(spool.in_memory),
        Cell::number(spool.not_stored),
        Cell::mark(Some(spool_closes(spool))),
        Cell::number(spool.available),
        Cell::number(spool.expired),
        Cell::number(spool.bytes),
        Cell::text(rfc3339(spool.oldest_time.as_ref()).unwrap_or_default()),
    ]);
    table
}

/// Under the table of exporters.
pub(super) const EXPORTER_LEGEND: &str = "QUEUED: in the history; DROPPED: refused finally; EXPIRED: gone from the history; FAILURES: attempts, no part of READ";

pub(super) fn exporters(exporters: &[ExporterLedger], wide: bool) -> Table {
    let mut headings = vec![
        "EXPORTER",
        "DESTINATION",
        "STATE",
        "READ",
        "= ACKNOWLEDGED",
        "+ QUEUED",
        "+ DROPPED",
        "+ EXPIRED",
        "+ NOT SELECTED",
        "CLOSES",
        "FAILURES",
    ];
    if wide {
        headings.extend(["ACKNOWLEDGED AT", "CURSOR"]);
    }
    let mut table = Table::new(&headings);
    for exporter in exporters {
        let (state, tone) = match exporter.state() {
            ExporterState::Starting => ("starting", Tone::Doubtful),
            ExporterState::Running => ("running", Tone::Good),
            ExporterState::Failing => ("failing", Tone::Bad),
            ExporterState::Unspecified => ("unknown", Tone::Plain),
        };
        let mut cells = vec![
            Cell::text(&exporter.name),
            Cell::text(&exporter.destination),
            Cell::toned(state, tone),
            Cell::maybe(exporter.read),
            Cell::number(exporter.acknowledged),
            Cell::maybe(exporter.queued),
            Cell::number(exporter.dropped),
            Cell::number(exporter.expired),
            Cell::number(exporter.not_selected),
            Cell::mark(exporter_closes(exporter)),
            Cell::number(exporter.failures),
        ];
        if wide {
            let cursor = exporter.cursor.clone().map(|cursor| Cursor::from(cursor).to_string());
            cells.push(Cell::text(rfc3339(exporter.acknowledged_time.as_ref()).unwrap_or_default()));
            cells.push(Cell::text(cursor.unwrap_or_default()));
        }
        table.row(cells);
    }
    table
}

fn overflow(subscriber: &SubscriberLedger) -> &'static str {
    match subscriber.overflow() {
        OverflowPolicy::DropOldest | OverflowPolicy::Unspecified => "drop-oldest",
        OverflowPolicy::DropNewest => "drop-newest",
        OverflowPolicy::Disconnect => "disconnect",
    }
}

/// When a term was counted for the first and the last time, in seconds of the trace clock, as
/// `observe --time trace` shows them.
fn span(span: Option<&TermSpan>) -> [Cell; 2] {
    let span = span.copied().unwrap_or_default();
    [span.first_ns, span.last_ns].map(|ns| {
        let text = match ns {
            0 => String::new(),
            ns => format!("{}.{:06}", ns / 1_000_000_000, ns % 1_000_000_000 / 1_000),
        };
        Cell::text(text).right()
    })
}
