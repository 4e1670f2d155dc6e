//! The ledger as messages.

use std::time::{Duration, UNIX_EPOCH};

use kprobed_proto::v1;

use super::convert;
use crate::control::{Ledger, ProbeLedger, RecordingProblem, Terms, Trouble};
use crate::history::HistoryCounts;
use crate::pipeline::{BufferCounts, Overflow, SubscriberCounts};

pub(super) fn response(ledger: &Ledger, history: Option<&HistoryCounts>) -> v1::GetLedgerResponse {
    v1::GetLedgerResponse {
        probes: ledger.probes.iter().map(probe).collect(),
        buffers: ledger.buffers.iter().map(|counts| buffer(counts, ledger.buffer_bytes)).collect(),
        subscribers: ledger.subscribers.iter().map(subscriber).collect(),
        settled: ledger.settled,
        spool: history.map(spool),
        problems: ledger.problems.iter().map(problem).collect(),
    }
}

fn problem(problem: &RecordingProblem) -> v1::RecordingProblem {
    let Trouble { reason, hint } = problem.trouble.clone();
    v1::RecordingProblem { probe: problem.name.to_string(), reason, hint }
}

fn probe(probe: &ProbeLedger) -> v1::ProbeLedger {
    let ProbeLedger { uid, name, has_hits, terms } = probe;
    let Terms { hits, counts, not_read, lost, paused, disabled, filtered, own, shared } = *terms;
    v1::ProbeLedger {
        probe: name.to_string(),
        probe_uid: uid.0,
        hits: has_hits.then_some(hits.hits),
        nmissed: hits.nmissed,
        read: counts.read,
        read_span: convert::span(counts.read_span),
        undecodable: counts.undecodable,
        not_read,
        lost,
        filtered,
        loss_is_shared: shared,
        paused,
        disabled,
        own,
    }
}

fn spool(history: &HistoryCounts) -> v1::SpoolLedger {
    let stats = &history.stats;
    let oldest_ns = stats.oldest.map(|(_, wall_ns)| wall_ns);
    v1::SpoolLedger {
        read: history.read,
        stored: history.stored,
        not_stored: history.not_stored,
        available: stats.events,
        expired: history.expired,
        bytes: stats.bytes,
        oldest_time: oldest_ns.map(|ns| convert::timestamp(UNIX_EPOCH + Duration::from_nanos(ns))),
        last_error: stats.last_error.clone().unwrap_or_default(),
    }
}

fn buffer(buffer: &BufferCounts, buffer_bytes: u64) -> v1::BufferLedger {
    v1::BufferLedger {
        cpu: buffer.cpu,
        read: buffer.read,
        read_span: convert::span(buffer.read_span),
        overrun: buffer.overrun,
        overrun_span: convert::span(buffer.overrun_span),
        commit_overrun: buffer.commit_overrun,
        dropped_events: buffer.dropped_events,
        resets: buffer.resets,
        undecodable: buffer.undecodable,
        pages: buffer.pages,
        buffer_bytes,
    }
}

fn subscriber(subscriber: &SubscriberCounts) -> v1::SubscriberLedger {
    let counts = &subscriber.counts;
    let overflow = match subscriber.overflow {
        Overflow::DropOldest => v1::OverflowPolicy::DropOldest,
        Overflow::DropNewest => v1::OverflowPolicy::DropNewest,
        Overflow::Disconnect => v1::OverflowPolicy::Disconnect,
    };
    v1::SubscriberLedger {
        subscriber_id: subscriber.id,
        start_time: Some(convert::timestamp(subscriber.start)),
        read: counts.read,
        not_selected: counts.not_selected,
        filtered: counts.filtered,
        sampled_out: counts.sampled_out,
        limited: counts.limited,
        dropped: counts.dropped,
        dropped_span: convert::span(counts.dropped_span),
        queued: counts.queued,
        delivered: counts.delivered,
        delivered_span: convert::span(counts.delivered_span),
        replayed: counts.replayed,
        expired: counts.expired,
        loss_records: counts.loss_records,
        overflow: overflow.into(),
    }
}
