//! Tests that the page of the documentation explains every term of the ledger.

use kprobed_client::api::{
    BufferLedger, Cursor, ProbeLedger, RecordingProblem, SpoolLedger, SubscriberLedger, TermSpan,
};
use prost_types::Timestamp;

use super::*;

/// A ledger in which every field has a value.
fn full() -> GetLedgerResponse {
    let (span, time) = (Some(TermSpan::default()), Some(Timestamp::default()));
    let none = Some(0);
    GetLedgerResponse {
        exporters: vec![ExporterLedger {
            read: none,
            queued: none,
            start_time: time,
            failing_since: time,
            retry_time: time,
            acknowledged_time: time,
            cursor: Some(Cursor::default()),
            ..Default::default()
        }],
        probes: vec![ProbeLedger {
            hits: none,
            lost: none,
            filtered: none,
            own: none,
            unexplained: none,
            read_span: span,
            ..Default::default()
        }],
        buffers: vec![BufferLedger { read_span: span, overrun_span: span, ..Default::default() }],
        subscribers: vec![SubscriberLedger {
            start_time: time,
            dropped_span: span,
            delivered_span: span,
            ..Default::default()
        }],
        settled: true,
        spool: Some(SpoolLedger { oldest_time: time, ..Default::default() }),
        problems: Vec::new(),
    }
}

#[test]
fn a_probe_that_does_not_record_is_not_settled() {
    let well = full();
    assert_eq!(conclusion(true, &well), "the ledger closes, and it is settled");
    let unexplained = ProbeLedger { unexplained: Some(1), ..Default::default() };
    let changed = GetLedgerResponse { probes: vec![unexplained], ..well.clone() };
    assert!(conclusion(true, &changed).contains("not every hit is explained"));
    let ill = GetLedgerResponse { problems: vec![RecordingProblem::default()], ..well };
    assert!(conclusion(true, &ill).contains("not every probe that is on records"));
    assert!(conclusion(false, &ill).contains("DOES NOT CLOSE"));
}

/// The part of the page about one table.
fn section(heading: &str) -> String {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/docs/reference/ledger.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    rest.split("\n## ").next().unwrap().to_owned()
}

fn headings<T: Row>() -> Vec<&'static str> {
    T::COLUMNS.iter().map(Column::term).collect()
}

#[test]
fn every_column_is_on_the_page() {
    for (heading, columns) in [
        ("Probes", headings::<ProbeLedger>()),
        ("Buffers", headings::<BufferLedger>()),
        ("Subscribers", headings::<SubscriberLedger>()),
        ("History", headings::<SpoolLedger>()),
        ("Exporters", headings::<ExporterLedger>()),
    ] {
        let section = section(heading);
        assert!(columns.len() > 5, "{columns:?}");
        for column in columns {
            if !["PROBE", "CLOSES"].contains(&column) {
                assert!(section.contains(column), "`{column}` is not explained in: {section}");
            }
        }
    }
}

#[test]
fn every_name_for_programs_is_on_the_page() {
    let view = ledger_json(&full(), true).unwrap();
    for (name, heading) in [
        ("probes", "Probes"),
        ("buffers", "Buffers"),
        ("subscribers", "Subscribers"),
        ("spool", "History"),
        ("exporters", "Exporters"),
    ] {
        let section = section(heading);
        let row = view.get(name).map(|rows| rows.get(0).unwrap_or(rows)).unwrap();
        for term in row.as_object().unwrap().keys() {
            if !["probe", "probe_uid", "closes"].contains(&term.as_str()) {
                assert!(section.contains(&format!("`{term}`")), "`{term}` of {name} is not in: {section}");
            }
        }
    }
}

#[test]
fn what_is_not_known_is_explained() {
    let note = |change: fn(&mut GetLedgerResponse)| {
        let mut ledger = full();
        change(&mut ledger);
        notes(&ledger)
    };
    assert_eq!(note(|_| ()), [""; 0]);
    assert_eq!(note(|ledger| ledger.probes[0].hits = None), [""; 0], "an event of the host");
    let [shared] = note(|ledger| (ledger.probes[0].lost, ledger.probes[0].own) = (None, None))[..] else {
        panic!("not one note")
    };
    assert!(shared.contains("several probes"), "{shared}");
    let reset = |ledger: &mut GetLedgerResponse| {
        (ledger.probes[0].lost, ledger.probes[0].own, ledger.buffers[0].resets) = (None, None, 1);
    };
    assert!(note(reset)[0].contains("emptied a buffer"));
    assert!(note(|ledger| ledger.probes[0].own = None)[0].contains("had a filter"));
    let silenced = |ledger: &mut GetLedgerResponse| {
        let probe = &mut ledger.probes[0];
        (probe.filtered, probe.own, probe.unexplained) = (None, None, Some(3));
    };
    assert!(note(silenced)[0].contains("has changed what is recorded"));
}
