//! Fake exporter service: one exporter that runs, and one that fails.

use kprobed_client::api::export_service_server::ExportService;
use kprobed_client::api::*;
use tonic::Request;

use super::answers;
use super::services::{Answer, Services};

/// What each of them has in the ledger.
pub(super) fn ledgers() -> Vec<ExporterLedger> {
    let start_time = answers::profile(0, 0).time;
    let running = ExporterLedger {
        name: "jsonl".to_owned(),
        start_time,
        read: Some(15),
        acknowledged: 8,
        queued: Some(2),
        expired: 1,
        not_selected: 4,
        ..Default::default()
    };
    let failing = ExporterLedger {
        name: "otlp".to_owned(),
        start_time,
        acknowledged: 3,
        dropped: 2,
        unknown_gaps: 1,
        failures: 7,
        ..Default::default()
    };
    vec![running, failing]
}

#[tonic::async_trait]
impl ExportService for Services {
    async fn list_exporters(&self, _request: Request<ListExportersRequest>) -> Answer<ListExportersResponse> {
        let time = answers::profile(0, 0).time;
        let mut ledgers = ledgers().into_iter();
        let running = Exporter {
            name: "jsonl".to_owned(),
            destination: "/var/log/kprobed/events.jsonl".to_owned(),
            state: ExporterState::Running.into(),
            acknowledged_time: time,
            cursor: Some(Cursor { boot_id: "boot".to_owned(), epoch: 3, sequence: 13 }),
            ledger: ledgers.next(),
            ..Default::default()
        };
        let failing = Exporter {
            name: "otlp".to_owned(),
            destination: "http://127.0.0.1:4317".to_owned(),
            state: ExporterState::Failing.into(),
            error: "connect to `http://127.0.0.1:4317`: connection refused".to_owned(),
            failing_since: time,
            failures_in_a_row: 5,
            retry_time: time,
            refusal: "2 records had no body".to_owned(),
            place_error: "the disk is full".to_owned(),
            ledger: ledgers.next(),
            ..Default::default()
        };
        Ok(tonic::Response::new(ListExportersResponse { exporters: vec![running, failing] }))
    }
}
