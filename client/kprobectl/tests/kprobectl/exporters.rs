//! Tests of `kprobectl exporters`.

use insta::assert_snapshot;
use kprobed_client::api::ExporterState;

use super::fake::{Ending, Fake, client};

#[tokio::test]
async fn the_library_lists_exporters() {
    let fake = Fake::start(Ending::Open);
    let exporters = client(fake.socket()).await.exporters().await.unwrap();
    let states: Vec<_> =
        exporters.iter().map(|exporter| (exporter.name.as_str(), exporter.state())).collect();
    assert_eq!(states, [("jsonl", ExporterState::Running), ("otlp", ExporterState::Failing)]);
}

#[test]
fn exporters_are_shown_with_their_account_and_their_troubles() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["exporters"]), @"
    exit: 1
    -- stdout
    NAME   DESTINATION                    STATE    READ  = ACKNOWLEDGED  + QUEUED  + DROPPED  + EXPIRED  + NOT SELECTED  CLOSES  FAILURES
    jsonl  /var/log/kprobed/events.jsonl  running    15               8         2          0          1               4  yes            0
    otlp   http://127.0.0.1:4317          failing     ?               3         ?          2          0               0  -              7
    `otlp` fails since 2026-01-31T12:00:00Z: connect to `http://127.0.0.1:4317`: connection refused
      its events wait in the history; the next attempt is at 2026-01-31T12:00:00Z
    the receiver of `otlp` refused events finally, the last time: 2 records had no body
    the place of `otlp` cannot be written down: the disk is full
      events would be sent again after a restart of the daemon
    `otlp` met 1 gaps with an unknown number of missing events
    -- stderr
    ");
    assert_snapshot!(fake.run(&["exporters", "-o", "json"]), @r#"
    exit: 1
    -- stdout
    [
      {
        "name": "jsonl",
        "destination": "/var/log/kprobed/events.jsonl",
        "state": "EXPORTER_STATE_RUNNING",
        "error": "",
        "failing_since": null,
        "failures_in_a_row": "0",
        "retry_time": null,
        "acknowledged_time": "2026-01-31T12:00:00Z",
        "cursor": {
          "boot_id": "boot",
          "epoch": "3",
          "sequence": "13"
        },
        "refusal": "",
        "place_error": "",
        "ledger": {
          "name": "jsonl",
          "start_time": "2026-01-31T12:00:00Z",
          "read": "15",
          "acknowledged": "8",
          "queued": "2",
          "dropped": "0",
          "expired": "1",
          "not_selected": "4",
          "unknown_gaps": "0",
          "failures": "0",
          "closes": true
        }
      },
      {
        "name": "otlp",
        "destination": "http://127.0.0.1:4317",
        "state": "EXPORTER_STATE_FAILING",
        "error": "connect to `http://127.0.0.1:4317`: connection refused",
        "failing_since": "2026-01-31T12:00:00Z",
        "failures_in_a_row": "5",
        "retry_time": "2026-01-31T12:00:00Z",
        "acknowledged_time": null,
        "cursor": null,
        "refusal": "2 records had no body",
        "place_error": "the disk is full",
        "ledger": {
          "name": "otlp",
          "start_time": "2026-01-31T12:00:00Z",
          "read": null,
          "acknowledged": "3",
          "queued": null,
          "dropped": "2",
          "expired": "0",
          "not_selected": "0",
          "unknown_gaps": "1",
          "failures": "7",
          "closes": null
        }
      }
    ]
    -- stderr
    "#);
}
