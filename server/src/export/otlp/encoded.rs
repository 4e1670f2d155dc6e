//! Log records as bytes, and the request that holds them.
//!
//! On the wire it is an `ExportLogsServiceRequest`. The length of a message is computed anew for every message around it; a record that is
//! encoded when it is made has its own no more than once.

use bytes::Bytes;
use kprobed_otlp::common::InstrumentationScope;
use kprobed_otlp::logs::LogRecord;
use kprobed_otlp::logs_service::{ExportLogsPartialSuccess, ExportLogsServiceResponse};
use kprobed_otlp::resource::Resource;
use prost::Message;
use tonic::Request;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use super::answer::{Partial, read};
use super::connection::causes;
use super::log_record;
use crate::export::{Sent, SinkError};

const EXPORT: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";

/// A log record.
#[derive(Clone, Debug)]
pub(super) struct Record {
    bytes: Bytes,
    pub(super) is_event: bool,
}

impl From<LogRecord> for Record {
    fn from(record: LogRecord) -> Self {
        Self { bytes: record.encode_to_vec().into(), is_event: log_record::is_event(&record) }
    }
}

impl Record {
    pub(super) fn encoded_len(&self) -> usize {
        self.bytes.len()
    }
}

/// `ExportLogsServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Logs {
    #[prost(message, repeated, tag = "1")]
    resource_logs: Vec<OfResource>,
}

/// `ResourceLogs`.
#[derive(Clone, PartialEq, Message)]
struct OfResource {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_logs: Vec<OfScope>,
}

/// `ScopeLogs`.
#[derive(Clone, PartialEq, Message)]
struct OfScope {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    log_records: Vec<Bytes>,
}

impl Logs {
    pub(super) fn new(resource: Resource, scope: InstrumentationScope, records: Vec<Record>) -> Self {
        let log_records = records.into_iter().map(|record| record.bytes).collect();
        let of_scope = OfScope { scope: Some(scope), log_records };
        Self { resource_logs: vec![OfResource { resource: Some(resource), scope_logs: vec![of_scope] }] }
    }
}

/// Sends a request with so many events.
pub(super) async fn export(channel: Channel, request: Request<Logs>, events: u64) -> Result<Sent, SinkError> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| SinkError::new("export logs", causes(&error)))?;
    let codec = ProstCodec::<Logs, ExportLogsServiceResponse>::default();
    let answer = client.unary(request, PathAndQuery::from_static(EXPORT), codec).await.map(|answer| {
        let ExportLogsPartialSuccess { rejected_log_records, error_message } =
            answer.into_inner().partial_success.unwrap_or_default();
        Partial { rejected: rejected_log_records, message: error_message }
    });
    read("logs", events, answer)
}

#[cfg(test)]
mod tests {
    use kprobed_otlp::logs_service::ExportLogsServiceRequest;

    use super::*;
    use crate::export::otlp::resource::scope;
    use crate::export::otlp::value::{attribute, unsigned};

    #[test]
    fn the_bytes_are_those_of_the_protocol() {
        let record = |number| LogRecord {
            time_unix_nano: number,
            event_name: "kprobed.event".to_owned(),
            attributes: vec![attribute("kprobed.sequence", unsigned(number))],
            ..LogRecord::default()
        };
        let resource = Resource { attributes: vec![attribute("a", unsigned(1))], ..Resource::default() };
        let records: Vec<Record> = (1..4).map(|number| record(number).into()).collect();
        assert!(records.iter().all(|one| one.is_event));
        let bytes = Logs::new(resource.clone(), scope(None), records).encode_to_vec();
        let read = ExportLogsServiceRequest::decode(bytes.as_slice()).unwrap();
        assert_eq!(read.resource_logs.len(), 1);
        assert_eq!(read.resource_logs[0].resource, Some(resource));
        let of_scope = &read.resource_logs[0].scope_logs[0];
        assert_eq!(of_scope.scope, Some(scope(None)));
        assert_eq!(of_scope.log_records, (1..4).map(record).collect::<Vec<_>>());
        assert_eq!(read.encode_to_vec(), bytes);
    }
}
