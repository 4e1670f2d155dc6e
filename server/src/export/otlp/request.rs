//! Export requests of OTLP: resource and scope around encoded records.
//!
//! Owns the bytes around the records. `ExportLogsServiceRequest` and `ExportTraceServiceRequest`
//! have the same fields at the same numbers, and so have their answers: one form is written for
//! both.

use bytes::{BufMut as _, Bytes};
use kprobed_otlp::common::InstrumentationScope;
use kprobed_otlp::logs_service::{ExportLogsPartialSuccess, ExportLogsServiceResponse};
use kprobed_otlp::resource::Resource;
use prost::Message as _;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::answer::{Partial, read};
use super::connection::causes;
use super::protobuf::Protobuf;
use super::records::Part;
use crate::export::{Sent, SinkError};

/// Numbers of fields.
mod field {
    /// Of a request: what is of one resource.
    pub(super) const OF_RESOURCE: u8 = 1;
    /// Of that: the resource, and what is of one scope.
    pub(super) const RESOURCE: u8 = 1;
    pub(super) const OF_SCOPE: u8 = 2;
    /// Of that: the scope. Its records are in the field after it.
    pub(super) const SCOPE: u8 = 1;
}

/// A service of the receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    name: &'static str,
    path: &'static str,
    /// Whether a receiver that lacks it refuses finally: it takes something else.
    may_be_absent: bool,
}

pub(super) const LOGS: Service = Service {
    name: "logs",
    path: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    may_be_absent: false,
};

pub(super) const TRACES: Service = Service {
    name: "traces",
    path: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    may_be_absent: false,
};

/// Spans for a receiver that takes log records.
pub(super) const TRACES_BESIDE_LOGS: Service = Service { may_be_absent: true, ..TRACES };

/// Resource and scope of the records of a chunk.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    resource: Protobuf,
    scope: Protobuf,
}

/// A request: what is before the records, and they.
#[derive(Debug)]
pub(super) struct Export {
    head: Bytes,
    records: Bytes,
}

impl Origin {
    pub(super) fn new(resource: &Resource, scope: &InstrumentationScope) -> Self {
        let (mut of_resource, mut of_scope) = (Protobuf::default(), Protobuf::default());
        of_resource.bytes(field::RESOURCE, &resource.encode_to_vec());
        of_scope.bytes(field::SCOPE, &scope.encode_to_vec());
        Self { resource: of_resource, scope: of_scope }
    }

    /// Records of it, as a request.
    pub(super) fn export(&self, records: Bytes) -> Export {
        let mut of_scope = Protobuf::default();
        of_scope.begin_message(field::OF_SCOPE, self.scope.len() + records.len());
        let length = self.resource.len() + of_scope.len() + self.scope.len() + records.len();
        let mut head = Protobuf::default();
        head.begin_message(field::OF_RESOURCE, length);
        for fields in [&self.resource, &of_scope, &self.scope] {
            head.fields(fields);
        }
        Export { head: head.into_bytes().into(), records }
    }

    /// Bytes of a request around its records, at most.
    pub(super) fn around(&self) -> usize {
        /// A key of one byte and a length of ten.
        const BEGIN: usize = 11;
        2 * BEGIN + self.resource.len() + self.scope.len()
    }
}

/// Sends a part of the records to a service.
///
/// # Errors
/// What the receiver does not take, and may take later.
pub(super) async fn send(
    channel: Channel,
    service: Service,
    request: Request<Export>,
    part: &Part,
) -> Result<Sent, SinkError> {
    let mut client = tonic::client::Grpc::new(channel);
    let unready = |error| SinkError::new(format_args!("export {}", service.name), causes(&error));
    client.ready().await.map_err(unready)?;
    let path = PathAndQuery::from_static(service.path);
    let answer = client.unary(request, path, ExportCodec).await.map(|answer| {
        let ExportLogsPartialSuccess { rejected_log_records, error_message } =
            answer.into_inner().partial_success.unwrap_or_default();
        Partial { rejected: rejected_log_records, message: error_message }
    });
    match answer {
        Err(status) if service.may_be_absent && status.code() == Code::Unimplemented => {
            let reason = format!("the receiver takes log records and no {}", service.name);
            Ok(Sent { dropped: part.items, reason, ..Sent::default() })
        }
        answer => read(service.name, part.items, answer),
    }
}

/// Requests that are encoded already.
#[derive(Debug)]
struct ExportCodec;

/// Puts a request where it is sent from.
#[derive(Debug)]
struct ExportEncoder;

/// The answers are generated classes.
type Answers = ProstCodec<ExportLogsServiceResponse, ExportLogsServiceResponse>;

impl Codec for ExportCodec {
    type Encode = Export;
    type Decode = ExportLogsServiceResponse;
    type Encoder = ExportEncoder;
    type Decoder = <Answers as Codec>::Decoder;

    fn encoder(&mut self) -> ExportEncoder {
        ExportEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        Answers::default().decoder()
    }
}

impl Encoder for ExportEncoder {
    type Item = Export;
    type Error = Status;

    fn encode(&mut self, Export { head, records }: Export, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(head.len() + records.len());
        out.put(head);
        out.put(records);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kprobed_otlp::logs_service::ExportLogsServiceRequest;
    use kprobed_otlp::trace_service::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    };
    use prost::Message;

    use super::*;
    use crate::export::otlp::attribute::{attribute, text};
    use crate::export::otlp::records::Records;
    use crate::export::otlp::resource::scope;

    fn bytes(records: u64, time: u8) -> (Resource, Vec<u8>) {
        let resource = Resource {
            attributes: vec![attribute("host.name", text("x".repeat(300)))],
            ..Resource::default()
        };
        let origin = Origin::new(&resource, &scope(None));
        let mut all = Records::default();
        (0..records).for_each(|number| all.push(true, |out| out.fixed64(time, number)));
        let part = all.parts(usize::MAX).pop().map(|part| part.records).unwrap_or_default();
        let export = origin.export(part.clone());
        assert!(export.head.len() <= origin.around());
        (resource, [export.head, part].concat())
    }

    #[test]
    fn requests_for_logs_are_those_of_the_protocol() {
        for count in [0, 1, 300] {
            let (resource, bytes) = bytes(count, 1);
            let read = ExportLogsServiceRequest::decode(bytes.as_slice()).unwrap();
            assert_eq!(read.resource_logs.len(), 1);
            assert_eq!(read.resource_logs[0].resource, Some(resource));
            let [of_scope] = read.resource_logs[0].scope_logs.as_slice() else { panic!("{read:?}") };
            assert_eq!(of_scope.scope, Some(scope(None)));
            let times: Vec<u64> = of_scope.log_records.iter().map(|record| record.time_unix_nano).collect();
            assert_eq!(times, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn requests_for_spans_are_those_of_the_protocol() {
        let (resource, bytes) = bytes(3, 7);
        let read = ExportTraceServiceRequest::decode(bytes.as_slice()).unwrap();
        assert_eq!(read.resource_spans[0].resource, Some(resource));
        let of_scope = &read.resource_spans[0].scope_spans[0];
        assert_eq!(of_scope.scope, Some(scope(None)));
        let starts: Vec<u64> = of_scope.spans.iter().map(|span| span.start_time_unix_nano).collect();
        assert_eq!(starts, [0, 1, 2]);
        assert_eq!(read.encode_to_vec().len(), bytes.len() - 9, "only the zero is left out");
    }

    #[test]
    fn answers_for_spans_have_the_form_of_those_for_logs() {
        let partial = ExportTracePartialSuccess { rejected_spans: 7, error_message: "why".to_owned() };
        let answer = ExportTraceServiceResponse { partial_success: Some(partial) };
        let read = ExportLogsServiceResponse::decode(answer.encode_to_vec().as_slice()).unwrap();
        let expected = ExportLogsPartialSuccess { rejected_log_records: 7, error_message: "why".to_owned() };
        assert_eq!(read.partial_success, Some(expected));
    }
}
