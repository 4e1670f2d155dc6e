//! Conversion of the ledger to messages.
//!
//! Owns which term becomes which field. Never computes a term.

use std::time::{Duration, UNIX_EPOCH};

use kprobed_proto::v1;

use super::messages;
use kprobed_control::{Ledger, Probe, ProbeLedger, Terms, Trouble};
use kprobed_trace::history::HistoryCounts;
use kprobed_trace::pipeline::{BufferCounts, Overflow, SubscriberCounts};

/// All that is said of an error, or of a damaged file, without the host: that there is one.
const HIDDEN_ERROR: &str = "the history cannot be written; GetHost has the error";
const HIDDEN_FILE: &str = "a file was damaged; GetHost has its name";

/// `shows_host`: whether the destinations of exporters, names of files and the texts of errors are in it.
pub(super) fn response(
    ledger: &Ledger,
    history: Option<&HistoryCounts>,
    exporters: Vec<v1::ExporterLedger>,
    shows_host: bool,
) -> v1::GetLedgerResponse {
    v1::GetLedgerResponse {
        probes: ledger.probes.iter().map(probe).collect(),
        buffers: ledger.buffers.iter().map(|counts| buffer(counts, ledger.buffer_bytes)).collect(),
        subscribers: ledger.subscribers.iter().map(subscriber).collect(),
        settled: ledger.settled,
        spool: history.map(|counts| spool(counts, shows_host)),
        problems: ledger.problems.iter().filter_map(|probe| problem(probe)).collect(),
        exporters: exporters.into_iter().map(|one| exporter(one, shows_host)).collect(),
    }
}

fn problem(probe: &Probe) -> Option<v1::RecordingProblem> {
    let Trouble { code, reason: message, hint } = probe.state.trouble()?.clone();
    Some(v1::RecordingProblem { probe: probe.name.to_string(), reason: code.to_owned(), message, hint })
}

fn probe(probe: &ProbeLedger) -> v1::ProbeLedger {
    let ProbeLedger { uid, name, has_hits, terms } = probe;
    let Terms { hits, counts, not_read, lost, paused, disabled, filtered, own, unexplained, shared } = *terms;
    v1::ProbeLedger {
        probe: name.to_string(),
        probe_uid: uid.0,
        hits: has_hits.then_some(hits.hits),
        nmissed: hits.nmissed,
        read: counts.read,
        read_span: messages::span(counts.read_span),
        undecodable: counts.undecodable,
        not_read,
        lost,
        filtered,
        loss_is_shared: shared,
        paused,
        disabled,
        own,
        unexplained,
    }
}

fn spool(history: &HistoryCounts, shows_host: bool) -> v1::SpoolLedger {
    let stats = &history.stats;
    let of_host = |text: &String, hidden: &str| if shows_host { text.clone() } else { hidden.to_owned() };
    let oldest_ns = stats.oldest.map(|(_, wall_ns)| wall_ns);
    v1::SpoolLedger {
        read: history.read,
        stored: history.stored,
        in_memory: history.in_memory,
        not_stored: history.not_stored,
        available: stats.events,
        expired: history.expired,
        bytes: stats.bytes,
        oldest_time: oldest_ns.map(|ns| (UNIX_EPOCH + Duration::from_nanos(ns)).into()),
        last_error: stats.last_error.as_ref().map(|text| of_host(text, HIDDEN_ERROR)).unwrap_or_default(),
        damaged: stats.damaged.iter().map(|text| of_host(text, HIDDEN_FILE)).collect(),
    }
}

fn buffer(buffer: &BufferCounts, buffer_bytes: u64) -> v1::BufferLedger {
    v1::BufferLedger {
        cpu: buffer.cpu,
        read: buffer.read,
        read_span: messages::span(buffer.read_span),
        overrun: buffer.overrun,
        overrun_span: messages::span(buffer.overrun_span),
        commit_overrun: buffer.commit_overrun,
        dropped_events: buffer.dropped_events,
        resets: buffer.resets,
        undecodable: buffer.undecodable,
        pages: buffer.pages,
        buffer_bytes,
        taken: buffer.taken,
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
        start_time: Some(subscriber.start.into()),
        read: counts.read,
        not_selected: counts.not_selected,
        filtered: counts.filtered,
        sampled_out: counts.sampled_out,
        limited: counts.limited,
        dropped: counts.dropped,
        dropped_span: messages::span(counts.dropped_span),
        queued: counts.queued,
        delivered: counts.delivered,
        delivered_span: messages::span(counts.delivered_span),
        replayed: counts.replayed,
        expired: counts.expired,
        loss_records: counts.loss_records,
        overflow: overflow.into(),
    }
}

fn exporter(exporter: v1::ExporterLedger, shows_host: bool) -> v1::ExporterLedger {
    if shows_host {
        return exporter;
    }
    v1::ExporterLedger {
        destination: String::new(),
        error: String::new(),
        refusal: String::new(),
        place_error: String::new(),
        ..exporter
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use kprobed_control::{ProbeState, samples};
    use kprobed_lang::model::{Hits, ProbeName, ProbeUid};
    use kprobed_trace::pipeline::{ProbeCounts, QueueCounts, Span};
    use kprobed_trace::spool::{BootId, Cursor, SpoolStats};

    const SPAN: Span = Span { first_ns: 1, last_ns: 2 };

    fn full() -> Ledger {
        let terms = Terms {
            hits: Hits { hits: 11, nmissed: 12 },
            counts: ProbeCounts { read: 13, read_span: SPAN, undecodable: 14 },
            not_read: 15,
            lost: Some(16),
            paused: 17,
            disabled: 18,
            filtered: Some(19),
            own: Some(20),
            unexplained: Some(21),
            shared: true,
        };
        let (uid, name) = (ProbeUid(10), ProbeName::new("kprobes", "a").unwrap());
        let buffer = BufferCounts {
            cpu: 1,
            read: 2,
            read_span: SPAN,
            overrun: 3,
            overrun_span: SPAN,
            commit_overrun: 4,
            dropped_events: 5,
            taken: 10,
            resets: 6,
            undecodable: 7,
            pages: 8,
        };
        let counts = QueueCounts {
            read: 1,
            not_selected: 2,
            filtered: 3,
            sampled_out: 4,
            limited: 5,
            dropped: 6,
            dropped_span: SPAN,
            queued: 7,
            delivered: 8,
            delivered_span: SPAN,
            replayed: 9,
            expired: 10,
            loss_records: 11,
        };
        let trouble =
            Trouble { code: "SWITCHED_OFF", reason: "it is off".to_owned(), hint: "switch it on".to_owned() };
        let problem = Probe { state: ProbeState::Drifted(trouble), ..samples::probe(uid.0, "kprobes/a") };
        let (start, overflow) = (UNIX_EPOCH + Duration::from_secs(1), Overflow::DropNewest);
        Ledger {
            probes: vec![ProbeLedger { uid, name, has_hits: true, terms }],
            buffers: vec![buffer],
            subscribers: vec![SubscriberCounts { id: 3, start, overflow, counts }],
            buffer_bytes: 9,
            settled: true,
            problems: vec![Arc::new(problem)],
            trips: 0,
        }
    }

    fn history() -> HistoryCounts {
        let end = Cursor { boot_id: BootId([7; 16]), epoch: 1, sequence: 2 };
        let stats = SpoolStats {
            bytes: 1,
            segments: 2,
            events: 3,
            unwritten_events: 25,
            oldest: Some((end, 4)),
            end,
            expired_events: 5,
            not_stored_events: 6,
            errors: 7,
            last_error: Some("no space".to_owned()),
            failing: true,
            damaged: vec!["a file".to_owned()],
        };
        HistoryCounts { read: 21, stored: 22, in_memory: 25, not_stored: 23, expired: 24, stats }
    }

    fn failing() -> v1::ExporterLedger {
        v1::ExporterLedger {
            name: "otlp".to_owned(),
            acknowledged: 1,
            failures: 7,
            destination: "http://127.0.0.1:4317".to_owned(),
            state: v1::ExporterState::Failing.into(),
            error: "connection refused".to_owned(),
            failures_in_a_row: 5,
            refusal: "no body".to_owned(),
            place_error: "the disk is full".to_owned(),
            dropped_spans: 8,
            ..Default::default()
        }
    }

    /// Every term reaches the message. A field of a message without a line here does not compile.
    #[test]
    fn every_term_arrives() {
        let mut response = response(&full(), Some(&history()), vec![failing()], true);
        let span = Some(v1::TermSpan { first_ns: 1, last_ns: 2 });
        let probe = v1::ProbeLedger {
            probe: "kprobes/a".to_owned(),
            probe_uid: 10,
            hits: Some(11),
            nmissed: 12,
            read: 13,
            read_span: span,
            undecodable: 14,
            not_read: 15,
            lost: Some(16),
            filtered: Some(19),
            loss_is_shared: true,
            paused: 17,
            disabled: 18,
            own: Some(20),
            unexplained: Some(21),
        };
        assert_eq!(response.probes.pop(), Some(probe));
        let buffer = v1::BufferLedger {
            cpu: 1,
            read: 2,
            read_span: span,
            overrun: 3,
            overrun_span: span,
            commit_overrun: 4,
            dropped_events: 5,
            resets: 6,
            undecodable: 7,
            pages: 8,
            buffer_bytes: 9,
            taken: 10,
        };
        assert_eq!(response.buffers.pop(), Some(buffer));
        let subscriber = v1::SubscriberLedger {
            subscriber_id: 3,
            start_time: Some((UNIX_EPOCH + Duration::from_secs(1)).into()),
            read: 1,
            not_selected: 2,
            filtered: 3,
            sampled_out: 4,
            limited: 5,
            dropped: 6,
            dropped_span: span,
            queued: 7,
            delivered: 8,
            delivered_span: span,
            replayed: 9,
            expired: 10,
            loss_records: 11,
            overflow: v1::OverflowPolicy::DropNewest.into(),
        };
        assert_eq!(response.subscribers.pop(), Some(subscriber));
        let spool = v1::SpoolLedger {
            read: 21,
            stored: 22,
            in_memory: 25,
            not_stored: 23,
            available: 3,
            expired: 24,
            bytes: 1,
            oldest_time: Some((UNIX_EPOCH + Duration::from_nanos(4)).into()),
            last_error: "no space".to_owned(),
            damaged: vec!["a file".to_owned()],
        };
        assert_eq!(response.spool, Some(spool));
        let problem = v1::RecordingProblem {
            probe: "kprobes/a".to_owned(),
            reason: "SWITCHED_OFF".to_owned(),
            message: "it is off".to_owned(),
            hint: "switch it on".to_owned(),
        };
        assert_eq!(response.problems.pop(), Some(problem));
        assert_eq!(response.exporters.pop(), Some(failing()));
        assert!(response.settled);
    }

    #[test]
    fn without_the_host_an_exporter_is_its_state_and_its_account() {
        let [shown, hidden] = [true, false].map(|shows| exporter(failing(), shows));
        let texts = String::new;
        let expected = v1::ExporterLedger {
            destination: texts(),
            error: texts(),
            refusal: texts(),
            place_error: texts(),
            ..shown
        };
        assert_eq!(hidden, expected);
        assert_eq!(hidden.state(), v1::ExporterState::Failing);
    }

    #[test]
    fn without_the_host_the_history_has_no_names_of_files() {
        let [shown, hidden] = [true, false].map(|shows| spool(&history(), shows));
        let expected = v1::SpoolLedger {
            last_error: HIDDEN_ERROR.to_owned(),
            damaged: vec![HIDDEN_FILE.to_owned()],
            ..shown
        };
        assert_eq!(hidden, expected);
    }

    /// Every term says where it was measured.
    #[test]
    fn every_term_is_documented() {
        let text = include_str!("../../../proto/kprobed/v1/event_service.proto");
        for (message, measured) in [
            ("ProbeLedger", true),
            ("BufferLedger", true),
            ("SubscriberLedger", false),
            ("SpoolLedger", false),
        ] {
            let start = text.find(&format!("\nmessage {message} {{\n")).unwrap();
            let body = text[start..].split("\n}\n").next().unwrap();
            let (mut comment, mut fields) = (String::new(), 0);
            for line in body.lines().skip(2).map(str::trim) {
                if line.starts_with("//") {
                    comment.push_str(line);
                    comment.push(' ');
                } else {
                    fields += 1;
                    assert!(!comment.is_empty(), "`{line}` of {message} is not documented");
                    // Names, sizes and flags are not terms.
                    let is_term =
                        line.contains("uint64") && !line.contains("_bytes") && !line.contains("pages");
                    let origin = comment.contains("Measured: ") || comment.contains("Derived");
                    assert!(!measured || !is_term || origin, "`{line}` of {message} does not say its origin");
                    comment.clear();
                }
            }
            assert!(fields >= 8, "{message} has {fields} fields");
        }
    }
}
