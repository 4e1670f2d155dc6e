//! One gRPC call: counting it, its deadline, and the threads that serve it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use kprobed_rights::Method;
use tonic::Status;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::service::Routes;
use tower::Service as _;

use super::admission::Admitted;
use super::body::CallBody;
use super::lane::Lane;
use crate::auth::{Caller, OPERATION_HEADER, Operation, Rights, Who};
use crate::rpc::{ConnectionId, status};

/// Streaming calls: they last as long as the client wants.
const STREAMS: [&str; 7] = [
    "/kprobed.v1.AuditService/ReadAudit",
    "/kprobed.v1.EventService/StreamEvents",
    "/kprobed.v1.EventService/StreamEventRows",
    "/kprobed.v1.AggregationService/StreamAggregation",
    "/kprobed.v1.LeaseService/HoldProbes",
    "/kprobed.v1.ProbeService/CheckProbes",
    "/kprobed.v1.ProbeService/WatchProbes",
];

/// All gRPC services.
#[derive(Clone, Debug)]
pub(super) struct Services(Routes);

impl Services {
    pub(super) fn new(routes: Routes) -> Self {
        Self(routes.prepare())
    }
}

/// The services, for one connection.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    pub(super) services: Services,
    pub(super) admitted: Arc<Admitted>,
    pub(super) lane: Lane,
    pub(super) connection: ConnectionId,
    pub(super) who: Arc<Who>,
    pub(super) rights: Arc<Rights>,
}

impl Calls {
    /// Who asks, if its roles allow the method for anything at all. Health is for programs that watch
    /// the daemon, and says nothing but whether it serves.
    async fn authorise(&self, path: &str, operation: Operation) -> Result<Option<Caller>, Status> {
        if path.starts_with(HEALTH) {
            return Ok(None);
        }
        let method = Method::at(path).ok_or_else(|| status::no_method(path))?;
        let principal = self.who.principal().await.map_err(|error| status::internal(&error.to_string()))?;
        let caller = Caller::new(Arc::clone(principal), method, operation);
        match self.rights.require(&caller, None) {
            Ok(_rule) => Ok(Some(caller)),
            Err(denied) => Err(status::denied(&denied)),
        }
    }

    /// The answer of the service, if the caller may have one.
    async fn answer(
        mut self,
        mut request: Request<Incoming>,
        operation: Operation,
    ) -> Result<Response<tonic::body::Body>, Infallible> {
        match self.authorise(request.uri().path(), operation).await {
            Ok(Some(caller)) => drop(request.extensions_mut().insert(caller)),
            Ok(None) => {}
            Err(refused) => return Ok(refused.into_http()),
        }
        request.extensions_mut().insert(self.connection);
        if STREAMS.contains(&request.uri().path()) {
            self.lane.take_streams();
        }
        // A task that has to wait moves to its lane, and ends if the client has given up: hyper looks
        // for a reset of the stream only then (`H2Stream::poll2`), and ends a body that was cancelled
        // as if it were complete.
        tokio::task::yield_now().await;
        self.services.0.call(request.map(tonic::body::Body::new)).await
    }
}

/// The service that answers whether the daemon serves.
const HEALTH: &str = "/grpc.health.v1.Health/";

impl hyper::service::Service<Request<Incoming>> for Calls {
    type Response = Response<CallBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let call = self.admitted.call();
        let deadline = deadline(request.headers());
        let operation = Operation::of(request.headers());
        let answer = self.clone().answer(request, operation.clone());
        Box::pin(async move {
            let response = match deadline {
                // What was begun for the caller ends with the call.
                Some(deadline) => match tokio::time::timeout(deadline, answer).await {
                    Ok(response) => response,
                    Err(_elapsed) => Ok(status::too_late(deadline).into_http()),
                },
                None => answer.await,
            };
            let mut response = response?;
            status::fit_headers(response.headers_mut());
            if let Some(value) = operation.header() {
                response.headers_mut().insert(OPERATION_HEADER, value);
            }
            Ok(response.map(|body| CallBody::new(body, Some(call))))
        })
    }
}

/// How long the client waits (the gRPC over HTTP2 protocol, "Timeout"). A malformed header
/// counts as absent.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.is_empty() || number.len() > 8 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use kprobed_proto::FILE_DESCRIPTOR_SET;
    use prost::Message as _;

    use super::*;

    #[test]
    fn deadlines_are_read() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            deadline(&headers)
        };
        assert_eq!(read("30S"), Some(Duration::from_secs(30)));
        assert_eq!(read("99999999H"), Some(Duration::from_hours(99_999_999)));
        assert_eq!(read("250m"), Some(Duration::from_millis(250)));
        assert_eq!((read("7u"), read("7n")), (Some(Duration::from_micros(7)), Some(Duration::from_nanos(7))));
        assert_eq!(read("2M"), Some(Duration::from_mins(2)));
        for bad in ["", "S", "30", "-3S", "123456789S", "3 S", "3X"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(deadline(&HeaderMap::new()), None);
    }

    #[test]
    fn every_call_that_streams_is_a_stream() {
        let files = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let mut streams = Vec::new();
        for file in &files.file {
            for service in &file.service {
                for method in service.method.iter().filter(|method| method.server_streaming()) {
                    streams.push(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
                }
            }
        }
        streams.sort_unstable();
        let mut known = STREAMS.to_vec();
        known.sort_unstable();
        assert_eq!(streams, known);
    }
}
