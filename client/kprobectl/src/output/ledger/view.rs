//! The ledger as JSON and YAML.

use kprobed_client::api::{
    BufferLedger, OverflowPolicy, ProbeLedger, RecordingProblem, SpoolLedger, SubscriberLedger, TermSpan,
};
use serde::Serialize;

use super::sums::{probe_closes, spool_closes, subscriber_closes};
use crate::output::exporters::ExporterTerms;
use crate::output::time::rfc3339;

/// The ledger, as JSON and YAML.
#[derive(Serialize)]
pub(super) struct LedgerView<'a> {
    pub(super) settled: bool,
    pub(super) closes: bool,
    pub(super) probes: Vec<ProbeView<'a>>,
    pub(super) buffers: Vec<BufferView>,
    pub(super) subscribers: Vec<SubscriberView>,
    /// `null`: no history is kept.
    pub(super) spool: Option<SpoolView<'a>>,
    pub(super) exporters: Vec<ExporterTerms<'a>>,
    pub(super) problems: Vec<ProblemView<'a>>,
}

/// A probe that is on and does not record what was asked.
#[derive(Serialize)]
pub(super) struct ProblemView<'a> {
    pub(super) probe: &'a str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
    pub(super) hint: &'a str,
}

/// When a term was counted for the first and the last time, on the trace clock.
#[derive(Clone, Copy, Serialize)]
pub(super) struct SpanView {
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
}

#[derive(Serialize)]
pub(super) struct ProbeView<'a> {
    pub(super) probe: &'a str,
    pub(super) probe_uid: i64,
    /// `null` for an attached event, whose hits the kernel does not count.
    pub(super) hits: Option<u64>,
    pub(super) nmissed: u64,
    pub(super) read: u64,
    pub(super) read_span: SpanView,
    pub(super) undecodable: u64,
    pub(super) not_read: u64,
    /// `null`: not known.
    pub(super) lost: Option<u64>,
    pub(super) paused: u64,
    pub(super) disabled: u64,
    /// `null`: not known. It includes `own` if that is `null` and this is not.
    pub(super) filtered: Option<u64>,
    pub(super) own: Option<u64>,
    pub(super) loss_is_shared: bool,
    /// `null` if there is no sum.
    pub(super) closes: Option<bool>,
}

#[derive(Serialize)]
pub(super) struct BufferView {
    pub(super) cpu: u32,
    pub(super) read: u64,
    pub(super) read_span: SpanView,
    pub(super) overrun: u64,
    pub(super) overrun_span: SpanView,
    pub(super) commit_overrun: u64,
    pub(super) dropped_events: u64,
    pub(super) resets: u64,
    pub(super) undecodable: u64,
    pub(super) pages: u64,
    pub(super) buffer_bytes: u64,
}

#[derive(Serialize)]
pub(super) struct SubscriberView {
    pub(super) subscriber_id: u64,
    pub(super) start_time: Option<String>,
    pub(super) overflow: &'static str,
    pub(super) read: u64,
    pub(super) not_selected: u64,
    pub(super) filtered: u64,
    pub(super) sampled_out: u64,
    pub(super) limited: u64,
    pub(super) dropped: u64,
    pub(super) dropped_span: SpanView,
    pub(super) queued: u64,
    pub(super) delivered: u64,
    pub(super) delivered_span: SpanView,
    pub(super) replayed: u64,
    pub(super) expired: u64,
    pub(super) loss_records: u64,
    pub(super) closes: bool,
}

#[derive(Serialize)]
pub(super) struct SpoolView<'a> {
    pub(super) read: u64,
    pub(super) stored: u64,
    pub(super) in_memory: u64,
    pub(super) not_stored: u64,
    pub(super) available: u64,
    pub(super) expired: u64,
    pub(super) bytes: u64,
    pub(super) oldest_time: Option<String>,
    pub(super) last_error: Option<&'a str>,
    pub(super) closes: bool,
}

fn overflow(policy: OverflowPolicy) -> &'static str {
    match policy {
        OverflowPolicy::DropOldest | OverflowPolicy::Unspecified => "drop-oldest",
        OverflowPolicy::DropNewest => "drop-newest",
        OverflowPolicy::Disconnect => "disconnect",
    }
}

impl SpanView {
    pub(super) fn new(span: Option<&TermSpan>) -> Self {
        span.map_or(Self { first_ns: 0, last_ns: 0 }, |span| Self {
            first_ns: span.first_ns,
            last_ns: span.last_ns,
        })
    }
}

impl<'a> ProbeView<'a> {
    pub(super) fn new(probe: &'a ProbeLedger) -> Self {
        Self {
            probe: &probe.probe,
            probe_uid: probe.probe_uid,
            hits: probe.hits,
            nmissed: probe.nmissed,
            read: probe.read,
            read_span: SpanView::new(probe.read_span.as_ref()),
            undecodable: probe.undecodable,
            not_read: probe.not_read,
            lost: probe.lost,
            paused: probe.paused,
            disabled: probe.disabled,
            filtered: probe.filtered,
            own: probe.own,
            loss_is_shared: probe.loss_is_shared,
            closes: probe_closes(probe),
        }
    }
}

impl<'a> ProblemView<'a> {
    pub(super) fn new(problem: &'a RecordingProblem) -> Self {
        Self {
            probe: &problem.probe,
            reason: &problem.reason,
            message: &problem.message,
            hint: &problem.hint,
        }
    }
}

impl BufferView {
    pub(super) fn new(buffer: &BufferLedger) -> Self {
        Self {
            cpu: buffer.cpu,
            read: buffer.read,
            read_span: SpanView::new(buffer.read_span.as_ref()),
            overrun: buffer.overrun,
            overrun_span: SpanView::new(buffer.overrun_span.as_ref()),
            commit_overrun: buffer.commit_overrun,
            dropped_events: buffer.dropped_events,
            resets: buffer.resets,
            undecodable: buffer.undecodable,
            pages: buffer.pages,
            buffer_bytes: buffer.buffer_bytes,
        }
    }
}

impl SubscriberView {
    pub(super) fn new(subscriber: &SubscriberLedger) -> Self {
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
    pub(super) fn new(spool: &'a SpoolLedger) -> Self {
        Self {
            read: spool.read,
            stored: spool.stored,
            in_memory: spool.in_memory,
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
