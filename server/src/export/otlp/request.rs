//! Export requests of OTLP: resource and scope around log records, spans and metrics.

use kprobed_otlp::common::InstrumentationScope;
use kprobed_otlp::logs::{LogRecord, ResourceLogs, ScopeLogs};
use kprobed_otlp::logs_service::ExportLogsServiceRequest;
use kprobed_otlp::logs_service::logs_service_client::LogsServiceClient;
use kprobed_otlp::metrics::{Metric, ResourceMetrics, ScopeMetrics};
use kprobed_otlp::metrics_service::ExportMetricsServiceRequest;
use kprobed_otlp::metrics_service::metrics_service_client::MetricsServiceClient;
use kprobed_otlp::resource::Resource;
use kprobed_otlp::trace::{ResourceSpans, ScopeSpans, Span};
use kprobed_otlp::trace_service::ExportTraceServiceRequest;
use kprobed_otlp::trace_service::trace_service_client::TraceServiceClient;
use prost::Message;
use tonic::Status;
use tonic::transport::Channel;

use super::answer::Partial;
use super::connection::Connection;

/// Resource and scope of the records of a chunk.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) resource: Resource,
    pub(super) scope: InstrumentationScope,
}

impl Origin {
    /// Bytes of a request around its records, at most.
    pub(super) fn around(&self) -> usize {
        /// A key of one byte and a length of ten.
        const BEGIN: usize = 11;
        4 * BEGIN + self.resource.encoded_len() + self.scope.encoded_len()
    }
}

/// A record that a service of the receiver takes.
pub(super) trait Signal: Message + Clone {
    /// The service, as messages name it.
    const NAME: &'static str;

    /// Sends records of one origin to the service.
    async fn export(
        way: (&Connection, Channel),
        origin: Origin,
        records: Vec<Self>,
    ) -> Result<Partial, Status>;
}

impl Signal for LogRecord {
    const NAME: &'static str = "logs";

    async fn export(
        (connection, channel): (&Connection, Channel),
        Origin { resource, scope }: Origin,
        log_records: Vec<Self>,
    ) -> Result<Partial, Status> {
        let scope_logs = vec![ScopeLogs { scope: Some(scope), log_records, ..ScopeLogs::default() }];
        let of_resource = ResourceLogs { resource: Some(resource), scope_logs, ..ResourceLogs::default() };
        let request = ExportLogsServiceRequest { resource_logs: vec![of_resource] };
        let answer = LogsServiceClient::new(channel).export(connection.request(request)).await?;
        let partial = answer.into_inner().partial_success.unwrap_or_default();
        Ok(Partial { rejected: partial.rejected_log_records, message: partial.error_message })
    }
}

impl Signal for Span {
    const NAME: &'static str = "traces";

    async fn export(
        (connection, channel): (&Connection, Channel),
        Origin { resource, scope }: Origin,
        spans: Vec<Self>,
    ) -> Result<Partial, Status> {
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
        let of_resource = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
        let request = ExportTraceServiceRequest { resource_spans: vec![of_resource] };
        let answer = TraceServiceClient::new(channel).export(connection.request(request)).await?;
        let partial = answer.into_inner().partial_success.unwrap_or_default();
        Ok(Partial { rejected: partial.rejected_spans, message: partial.error_message })
    }
}

impl Signal for Metric {
    const NAME: &'static str = "metrics";

    async fn export(
        (connection, channel): (&Connection, Channel),
        Origin { resource, scope }: Origin,
        metrics: Vec<Self>,
    ) -> Result<Partial, Status> {
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }];
        let of_resource =
            ResourceMetrics { resource: Some(resource), scope_metrics, ..ResourceMetrics::default() };
        let request = ExportMetricsServiceRequest { resource_metrics: vec![of_resource] };
        let answer = MetricsServiceClient::new(channel).export(connection.request(request)).await?;
        let partial = answer.into_inner().partial_success.unwrap_or_default();
        Ok(Partial { rejected: partial.rejected_data_points, message: partial.error_message })
    }
}
