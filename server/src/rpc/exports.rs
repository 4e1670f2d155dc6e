//! `ExportService`: the state of exporters.
//!
//! Owns the messages. Never changes an exporter.

use kprobed_proto::v1;
use kprobed_proto::v1::export_service_server::ExportService;
use tonic::{Request, Response, Status};

use super::start;
use crate::export::{ExporterStatus, Exporters, Phase};
use crate::messages;

/// The service.
#[derive(Debug)]
pub struct ExportServer {
    /// All exporters.
    pub exporters: Exporters,
}

#[tonic::async_trait]
impl ExportService for ExportServer {
    async fn list_exporters(
        &self,
        _request: Request<v1::ListExportersRequest>,
    ) -> Result<Response<v1::ListExportersResponse>, Status> {
        let exporters = self.exporters.statuses().iter().map(message).collect();
        Ok(Response::new(v1::ListExportersResponse { exporters }))
    }
}

fn message(status: &ExporterStatus) -> v1::Exporter {
    let exporter = v1::Exporter {
        name: status.name.to_owned(),
        destination: status.destination.clone(),
        acknowledged_time: status.acknowledged_time.map(messages::timestamp),
        cursor: status.place.as_ref().map(start::message),
        refusal: status.refusal.clone(),
        place_error: status.place_error.clone(),
        ledger: Some(ledger(status)),
        ..Default::default()
    };
    match &status.phase {
        Phase::Starting => v1::Exporter { state: v1::ExporterState::Starting.into(), ..exporter },
        Phase::Running => v1::Exporter { state: v1::ExporterState::Running.into(), ..exporter },
        Phase::Failing { error, since, failures, retry_time } => v1::Exporter {
            state: v1::ExporterState::Failing.into(),
            error: error.clone(),
            failing_since: Some(messages::timestamp(*since)),
            failures_in_a_row: *failures,
            retry_time: Some(messages::timestamp(*retry_time)),
            ..exporter
        },
    }
}

/// The terms of an exporter.
pub(super) fn ledger(status: &ExporterStatus) -> v1::ExporterLedger {
    let terms = &status.account.terms;
    v1::ExporterLedger {
        name: status.name.to_owned(),
        start_time: Some(messages::timestamp(status.start)),
        read: status.read(),
        acknowledged: terms.acknowledged,
        queued: status.queued,
        dropped: terms.dropped,
        expired: terms.expired,
        not_selected: terms.not_selected,
        unknown_gaps: status.account.unknown_gaps,
        failures: status.failures,
    }
}
