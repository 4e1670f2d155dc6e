//! Tests that help and legend explain every term of the ledger.

use std::collections::BTreeSet;

use kprobed_client::api::{BufferLedger, ProbeLedger, RecordingProblem, SpoolLedger, SubscriberLedger};
use serde_json::Value;

use super::*;
use crate::command::ledger::AFTER_LONG_HELP as LEDGER_HELP;
use crate::output::style::Style;
use crate::output::table::Page;

fn full() -> GetLedgerResponse {
    GetLedgerResponse {
        exporters: vec![ExporterLedger::default()],
        probes: vec![ProbeLedger { hits: Some(0), ..Default::default() }],
        buffers: vec![BufferLedger::default()],
        subscribers: vec![SubscriberLedger::default()],
        settled: true,
        spool: Some(SpoolLedger::default()),
        problems: Vec::new(),
    }
}

#[test]
fn a_probe_that_does_not_record_is_not_settled() {
    let well = full();
    assert_eq!(conclusion(true, &well), "the ledger closes, and it is settled");
    let ill = GetLedgerResponse { problems: vec![RecordingProblem::default()], ..well };
    assert!(conclusion(true, &ill).contains("not every probe that is on records"));
    assert!(conclusion(false, &ill).contains("DOES NOT CLOSE"));
}

/// The part of the help about one table.
fn section(heading: &str) -> &'static str {
    let start = LEDGER_HELP.find(heading).unwrap();
    let rest = &LEDGER_HELP[start..];
    rest.split("\n\n").next().unwrap()
}

#[test]
fn every_column_is_in_the_help() {
    let ledger = full();
    for (heading, table) in [
        ("Probes: ", tables::probes(&ledger.probes, true)),
        ("Buffers, ", tables::buffers(&ledger.buffers, true)),
        ("Subscribers: ", tables::subscribers(&ledger.subscribers, true)),
        ("History [", tables::spools(ledger.spool.as_ref().unwrap())),
        ("Exporters [", tables::exporters(&ledger.exporters, true)),
    ] {
        let (section, text) = (section(heading), table.render(Page::endless(Style::new(false))).0);
        let columns: Vec<_> = text.lines().next().unwrap().split("  ").map(str::trim).collect();
        assert!(columns.len() > 5, "{columns:?}");
        for column in columns.iter().filter(|column| !column.is_empty()) {
            let column = column.trim_matches(|c: char| "=+() ".contains(c));
            if !["PROBE", "CLOSES"].contains(&column) {
                assert!(section.contains(column), "`{column}` is not explained in: {section}");
            }
        }
    }
}

#[test]
fn every_name_for_programs_is_in_the_help() {
    let ledger = full();
    let Value::Object(view) = serde_json::to_value(LedgerView::new(&ledger, true)).unwrap() else {
        panic!("no object")
    };
    for (name, heading) in [
        ("probes", "Probes: "),
        ("buffers", "Buffers, "),
        ("subscribers", "Subscribers: "),
        ("spool", "History ["),
        ("exporters", "Exporters ["),
    ] {
        let section = section(heading);
        let explained: BTreeSet<_> = section
            .split('[')
            .skip(1)
            .filter_map(|rest| rest.split(']').next())
            .flat_map(|names| names.split(", "))
            .collect();
        let row = view.get(name).map(|rows| rows.get(0).unwrap_or(rows)).unwrap();
        for term in row.as_object().unwrap().keys() {
            if !["probe", "probe_uid", "closes"].contains(&term.as_str()) {
                assert!(explained.contains(term.as_str()), "`{term}` of {name} is not in: {section}");
            }
        }
    }
}

#[test]
fn what_is_not_known_is_explained() {
    let note = |change: fn(&mut GetLedgerResponse)| {
        let mut ledger = full();
        let known =
            ProbeLedger { lost: Some(0), filtered: Some(0), own: Some(0), ..ledger.probes[0].clone() };
        ledger.probes = vec![known];
        change(&mut ledger);
        notes(&ledger)
    };
    assert_eq!(note(|_| ()), [""; 0]);
    assert_eq!(note(|ledger| ledger.probes[0].hits = None), [""; 0], "an attached event");
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
        (ledger.probes[0].filtered, ledger.probes[0].own) = (None, None);
    };
    assert!(note(silenced)[0].contains("switched recording off"));
}
