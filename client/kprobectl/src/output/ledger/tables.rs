//! Accounts of the ledger: the columns of each with their meaning, and its sum, which is added up again here and not
//! taken from the daemon.

use std::io;

use kprobed_client::api::{
    BufferLedger, ExporterLedger, ExporterState, OverflowPolicy, ProbeLedger, SpoolLedger, SubscriberLedger,
    TermSpan,
};
use kprobed_client::event::Cursor;
use kprobed_document::json::json;
use prost::Name;
use serde_json::Value;

use crate::output::table::Cell;
use crate::output::terminal::Tone;
use crate::output::{Column, MessageRow};

/// The message of the API, and whether it adds up if there is a sum and all of its terms are known.
pub(super) fn account(message: &impl Name, closes: Option<bool>) -> io::Result<Value> {
    let mut value = json(message)?;
    if let Some(closes) = closes {
        value["closes"] = closes.into();
    }
    Ok(value)
}

/// A term that a probe of an event of the host does not have; for another one, one that may not be known.
fn of_probe(probe: &ProbeLedger, number: Option<u64>) -> Cell {
    if probe.hits.is_none() { Cell::text("").right() } else { Cell::maybe(number) }
}

impl MessageRow for ProbeLedger {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("PROBE", |probe| Cell::text(&probe.probe)),
        Column::new("CLOSES", |probe| Cell::mark(probe_closes(probe))),
        Column::new("HITS", |probe| of_probe(probe, probe.hits)),
        Column::new("= READ", |probe| Cell::number(probe.read)),
        Column::optional("+ UNDECODABLE", |probe| Cell::number(probe.undecodable)),
        Column::<Self>::optional("+ NOT READ", |probe| of_probe(probe, Some(probe.not_read)))
            .meaning("LOST + DISABLED + FILTERED + OWN + UNEXPLAINED"),
        Column::<Self>::optional("LOST", |probe| of_probe(probe, probe.lost))
            .meaning("in buffers, in a pause, or taken by another program"),
        Column::<Self>::optional("DISABLED", |probe| of_probe(probe, Some(probe.disabled)))
            .meaning("while it was off"),
        Column::optional("FILTERED", |probe| of_probe(probe, probe.filtered)),
        Column::<Self>::optional("OWN", |probe| of_probe(probe, probe.own)).meaning("by kprobed itself"),
        Column::<Self>::optional("UNEXPLAINED", |probe| of_probe(probe, probe.unexplained))
            .meaning("what is left since another program has changed what is recorded"),
        Column::<Self>::optional("NMISSED", |probe| of_probe(probe, Some(probe.nmissed)))
            .meaning("skipped by the kernel"),
        Column::wide("PAUSED", |probe| of_probe(probe, Some(probe.paused))),
        Column::wide("FIRST READ", |probe| first(probe.read_span.as_ref())),
        Column::wide("LAST READ", |probe| last(probe.read_span.as_ref())),
    ];
}

impl MessageRow for BufferLedger {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("CPU", |buffer| Cell::number(buffer.cpu.into())),
        Column::new("READ", |buffer| Cell::number(buffer.read)),
        Column::new("OVERRUN", |buffer| Cell::number(buffer.overrun)),
        Column::<Self>::optional("COMMIT OVERRUN", |buffer| Cell::number(buffer.commit_overrun))
            .meaning("writers nested too deep"),
        Column::<Self>::optional("DROPPED EVENTS", |buffer| Cell::number(buffer.dropped_events))
            .meaning("full, overwriting off"),
        Column::<Self>::optional("TAKEN", |buffer| Cell::number(buffer.taken))
            .meaning("read by another program"),
        Column::<Self>::optional("RESETS", |buffer| Cell::number(buffer.resets))
            .meaning("emptied by another program"),
        Column::optional("UNDECODABLE", |buffer| Cell::number(buffer.undecodable)),
        Column::optional("PAGES", |buffer| Cell::number(buffer.pages)),
        Column::wide("BYTES", |buffer| Cell::number(buffer.buffer_bytes)),
        Column::wide("FIRST READ", |buffer| first(buffer.read_span.as_ref())),
        Column::wide("LAST READ", |buffer| last(buffer.read_span.as_ref())),
        Column::wide("FIRST OVERRUN", |buffer| first(buffer.overrun_span.as_ref())),
        Column::wide("LAST OVERRUN", |buffer| last(buffer.overrun_span.as_ref())),
    ];
}

impl MessageRow for SubscriberLedger {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("SUBSCRIBER", |subscriber| Cell::number(subscriber.subscriber_id)),
        Column::new("CLOSES", |subscriber| Cell::mark(Some(subscriber_closes(subscriber)))),
        Column::new("READ", |subscriber| Cell::number(subscriber.read)),
        Column::new("= DELIVERED", |subscriber| Cell::number(subscriber.delivered)),
        Column::optional("+ QUEUED", |subscriber| Cell::number(subscriber.queued)),
        Column::<Self>::optional("+ DROPPED", |subscriber| Cell::number(subscriber.dropped))
            .meaning("queue full"),
        Column::<Self>::optional("+ LIMITED", |subscriber| Cell::number(subscriber.limited))
            .meaning("over its rate"),
        Column::optional("+ SAMPLED OUT", |subscriber| Cell::number(subscriber.sampled_out)),
        Column::optional("+ FILTERED", |subscriber| Cell::number(subscriber.filtered)),
        Column::optional("+ NOT SELECTED", |subscriber| Cell::number(subscriber.not_selected)),
        Column::<Self>::optional("REPLAYED", |subscriber| Cell::number(subscriber.replayed))
            .meaning("events of the history, no part of READ"),
        Column::<Self>::optional("EXPIRED", |subscriber| Cell::number(subscriber.expired))
            .meaning("events of the history that are gone, no part of READ"),
        Column::new("SINCE", |subscriber| Cell::time(subscriber.start_time.as_ref())),
        Column::wide("OVERFLOW", |subscriber| Cell::text(overflow(subscriber))),
        Column::wide("LOSS RECORDS", |subscriber| Cell::number(subscriber.loss_records)),
        Column::wide("FIRST DELIVERED", |subscriber| first(subscriber.delivered_span.as_ref())),
        Column::wide("LAST DELIVERED", |subscriber| last(subscriber.delivered_span.as_ref())),
        Column::wide("FIRST DROPPED", |subscriber| first(subscriber.dropped_span.as_ref())),
        Column::wide("LAST DROPPED", |subscriber| last(subscriber.dropped_span.as_ref())),
    ];
}

impl MessageRow for SpoolLedger {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("HISTORY READ", |spool| Cell::number(spool.read)),
        Column::new("CLOSES", |spool| Cell::mark(Some(spool_closes(spool)))),
        Column::new("= STORED", |spool| Cell::number(spool.stored)),
        Column::<Self>::optional("+ IN MEMORY", |spool| Cell::number(spool.in_memory))
            .meaning("until the disk works again"),
        Column::<Self>::optional("+ NOT STORED", |spool| Cell::number(spool.not_stored))
            .meaning("disk full, failing or too slow"),
        Column::<Self>::optional("AVAILABLE", |spool| Cell::number(spool.available)).meaning("on disk now"),
        Column::<Self>::optional("EXPIRED", |spool| Cell::number(spool.expired))
            .meaning("deleted to stay within the limits"),
        Column::optional("BYTES", |spool| Cell::number(spool.bytes)),
        Column::optional("OLDEST", |spool| Cell::time(spool.oldest_time.as_ref())),
    ];
}

impl MessageRow for ExporterLedger {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("EXPORTER", |exporter| Cell::text(&exporter.name)),
        Column::new("STATE", |exporter| exporter_state(exporter).into()),
        Column::new("CLOSES", |exporter| Cell::mark(exporter_closes(exporter))),
        Column::new("READ", |exporter| Cell::maybe(exporter.read)),
        Column::new("= ACKNOWLEDGED", |exporter| Cell::number(exporter.acknowledged)),
        Column::<Self>::optional("+ QUEUED", |exporter| Cell::maybe(exporter.queued))
            .meaning("in the history"),
        Column::<Self>::optional("+ DROPPED", |exporter| Cell::number(exporter.dropped))
            .meaning("refused finally"),
        Column::<Self>::optional("+ EXPIRED", |exporter| Cell::number(exporter.expired))
            .meaning("gone from the history"),
        Column::optional("+ NOT SELECTED", |exporter| Cell::number(exporter.not_selected)),
        Column::<Self>::optional("FAILURES", |exporter| Cell::number(exporter.failures))
            .meaning("attempts, no part of READ"),
        Column::new("DESTINATION", |exporter| Cell::text(&exporter.destination)),
        Column::wide("ACKNOWLEDGED AT", |exporter| Cell::time(exporter.acknowledged_time.as_ref())),
        Column::wide("CURSOR", |exporter| {
            let cursor = exporter.cursor.clone().map(|cursor| Cursor::from(cursor).to_string());
            Cell::text(cursor.unwrap_or_default())
        }),
    ];
}

/// The word for what an exporter is doing, and its colour.
pub(crate) fn exporter_state(exporter: &ExporterLedger) -> (&'static str, Tone) {
    match exporter.state() {
        ExporterState::Starting => ("starting", Tone::Doubtful),
        ExporterState::Running => ("running", Tone::Good),
        ExporterState::Failing => ("failing", Tone::Bad),
        ExporterState::Unspecified => ("unknown", Tone::Plain),
    }
}

fn overflow(subscriber: &SubscriberLedger) -> &'static str {
    match subscriber.overflow() {
        OverflowPolicy::DropOldest | OverflowPolicy::Unspecified => "drop-oldest",
        OverflowPolicy::DropNewest => "drop-newest",
        OverflowPolicy::Disconnect => "disconnect",
    }
}

/// When a term was counted for the first time.
fn first(span: Option<&TermSpan>) -> Cell {
    seconds(span.map(|span| span.first_ns))
}

/// When a term was counted for the last time.
fn last(span: Option<&TermSpan>) -> Cell {
    seconds(span.map(|span| span.last_ns))
}

/// Seconds of the trace clock, as `observe --time trace` shows them.
fn seconds(ns: Option<u64>) -> Cell {
    let text =
        ns.filter(|ns| *ns > 0).map(|ns| format!("{}.{:06}", ns / 1_000_000_000, ns % 1_000_000_000 / 1_000));
    Cell::text(text.unwrap_or_default()).right()
}

/// Adds without wrapping: a sum that does not fit equals nothing.
fn sum(terms: &[u64]) -> Option<u64> {
    terms.iter().try_fold(0_u64, |sum, term| sum.checked_add(*term))
}

/// `None` for an event of the host: there is nothing to add up to.
pub(super) fn probe_closes(probe: &ProbeLedger) -> Option<bool> {
    let hits = probe.hits?;
    let known = [probe.lost, Some(probe.disabled), probe.filtered, probe.own, probe.unexplained];
    let known: Vec<_> = known.into_iter().flatten().collect();
    let parts_close = match (probe.lost, probe.filtered) {
        // The daemon's own hits are part of FILTERED if they are not counted apart.
        (Some(lost), _) if probe.filtered.is_some() || probe.unexplained.is_some() => {
            probe.paused <= lost && sum(&known) == Some(probe.not_read)
        }
        // What is not known is the rest. Without a filter it is known that none held anything back.
        (_, None | Some(0)) if probe.own.is_none() => sum(&known).is_some_and(|sum| sum <= probe.not_read),
        _ => false,
    };
    Some(parts_close && sum(&[probe.read, probe.undecodable, probe.not_read]) == Some(hits))
}

pub(super) fn subscriber_closes(subscriber: &SubscriberLedger) -> bool {
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

pub(super) fn spool_closes(spool: &SpoolLedger) -> bool {
    sum(&[spool.stored, spool.in_memory, spool.not_stored]) == Some(spool.read)
}

/// `None` while a term is not known.
pub(super) fn exporter_closes(exporter: &ExporterLedger) -> Option<bool> {
    let (read, queued) = (exporter.read?, exporter.queued?);
    let terms = [exporter.acknowledged, queued, exporter.dropped, exporter.expired, exporter.not_selected];
    Some(sum(&terms) == Some(read))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        let closes = |probe: ProbeLedger| probe_closes(&probe);
        let good = ProbeLedger { hits: Some(10), read: 6, undecodable: 1, not_read: 3, ..Default::default() };
        let parts = |lost, disabled, filtered, own| {
            closes(ProbeLedger { lost, disabled, filtered, own, ..good.clone() })
        };
        assert_eq!(closes(good.clone()), Some(true), "nothing is known of the parts");
        assert_eq!(parts(Some(1), 0, Some(2), None), Some(true), "a probe with a filter");
        assert_eq!(parts(Some(1), 0, Some(1), None), Some(false));
        assert_eq!(parts(Some(1), 1, Some(0), Some(1)), Some(true), "a probe without a filter");
        assert_eq!(parts(Some(1), 0, Some(0), Some(1)), Some(false));
        assert_eq!(parts(None, 1, Some(0), None), Some(true), "losses are shared");
        assert_eq!(parts(None, 4, Some(0), None), Some(false), "more than was not read");
        assert_eq!(parts(None, 0, Some(1), None), Some(false), "derived from what is not known");
        assert_eq!(parts(None, 0, Some(0), Some(1)), Some(false), "derived from what is not known");
        assert_eq!(parts(Some(3), 0, None, None), Some(true), "somebody else switched recording off");
        assert_eq!(parts(Some(4), 0, None, None), Some(false));
        let changed =
            |lost, unexplained| closes(ProbeLedger { lost, unexplained, disabled: 1, ..good.clone() });
        assert_eq!(changed(Some(1), Some(1)), Some(true), "another program changed what is recorded");
        assert_eq!(changed(Some(1), Some(0)), Some(false), "a rest that nothing explains is missing");
        assert_eq!(changed(None, None), Some(true), "and losses are shared");
        let paused = ProbeLedger { lost: Some(1), filtered: Some(2), paused: 2, ..good.clone() };
        assert_eq!(closes(paused), Some(false), "a pause is a part of what was lost");
        assert_eq!(closes(ProbeLedger { hits: Some(11), ..good.clone() }), Some(false));
        assert_eq!(closes(ProbeLedger { read: u64::MAX, ..good.clone() }), Some(false), "no wrapping");
        assert_eq!(closes(ProbeLedger { hits: None, ..good }), None, "an event of the host");
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
        let spool = SpoolLedger { read: 6, stored: 3, in_memory: 1, not_stored: 2, ..Default::default() };
        assert!(spool_closes(&spool) && !spool_closes(&SpoolLedger { stored: 4, ..spool }));
        let exporter = ExporterLedger {
            read: Some(15),
            acknowledged: 1,
            queued: Some(2),
            dropped: 3,
            expired: 4,
            not_selected: 5,
            unknown_gaps: 99,
            failures: 99,
            ..Default::default()
        };
        assert_eq!(exporter_closes(&exporter), Some(true));
        assert_eq!(exporter_closes(&ExporterLedger { queued: None, ..exporter.clone() }), None);
        assert_eq!(exporter_closes(&ExporterLedger { dropped: 2, ..exporter }), Some(false));
    }
}
