//! One gRPC call: counting it, its limits, its deadline, and the threads that serve it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use kprobed_proto::HOSTS_HEADER;
use kprobed_rights::{Limit, Method, Scope};
use tokio::sync::{OnceCell, OwnedSemaphorePermit};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response};
use tower::Service as _;

use super::admission::{Admitted, CallUnderWay};
use super::call_memory::Charge;
use super::connection::Serving;
use super::lane::Lane;
use super::request_body::RequestBody;
use super::resets::Resets;
use crate::auth::Who;
use crate::rpc::{ConnectionId, KeptBytes};
use kprobed_control::auth::{Caller, Operation, Share};
use kprobed_control::error::{Error, Reason};
use kprobed_control::status;

/// The header of a request that may have an id, and of the answer, which has one.
const OPERATION_HEADER: &str = "x-request-id";

/// Streaming calls: they last as long as the client wants.
const STREAMS: [&str; 6] = [
    "/kprobed.v1.AuditService/ReadAudit",
    "/kprobed.v1.EventService/StreamEvents",
    "/kprobed.v1.AggregationService/StreamAggregation",
    "/kprobed.v1.LeaseService/HoldProbes",
    "/kprobed.v1.ProbeService/CheckProbes",
    "/kprobed.v1.ProbeService/WatchProbes",
];

/// What a call holds until its body ends.
#[derive(Debug, Default)]
struct Held {
    /// The place of a stream among those of its principal, and among all.
    stream: Option<(Share, OwnedSemaphorePermit)>,
    /// The place of a stream of health.
    health: Option<OwnedSemaphorePermit>,
    /// What its request takes, if that is still in use.
    request: Option<Arc<Charge>>,
}

/// A body that holds what its call takes until it ends, and the place of the call among those of its connection.
/// Clients accept the size of its trailers.
fn holding(body: Body, held: (CallUnderWay, Held)) -> Body {
    Body::new(body.map_frame(move |mut frame| {
        // It goes into the closure, and is dropped with it.
        let _ = &held;
        if let Some(trailers) = frame.trailers_mut() {
            status::finish(trailers);
        }
        frame
    }))
}

/// The calls of one connection.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    pub(super) serving: Arc<Serving>,
    pub(super) admitted: Arc<Admitted>,
    pub(super) lane: Lane,
    pub(super) connection: ConnectionId,
    pub(super) who: Arc<Who>,
    pub(super) resets: Arc<Resets>,
    /// The place of the connection among those of its principal, since its first call.
    pub(super) place: Arc<OnceCell<Share>>,
}

impl Calls {
    /// Who asks, if its roles allow the method for anything at all. Health is for programs that watch
    /// the daemon, and says nothing but whether it serves.
    async fn authorise(
        &self,
        path: &str,
        headers: &HeaderMap,
        operation: Operation,
    ) -> Result<Option<Caller>, Error> {
        if path.starts_with(HEALTH) {
            return Ok(None);
        }
        let method = Method::at(path).ok_or_else(|| {
            let message =
                format!("the daemon has no method `{path}`: the client may be newer than the daemon");
            Error::new(Reason::NO_SUCH_METHOD, message)
        })?;
        let principal = self.who.principal().await.map_err(Error::internal)?;
        let caller = Caller::new(Arc::clone(principal), method, operation);
        self.serving.rights.require(&caller, None)?;
        self.count(&caller, method).await?;
        if method.scope != Scope::Everybody {
            let hosts = hosts_of_command(headers);
            self.serving.rights.command_for(&caller, hosts)?;
        }
        Ok(Some(caller))
    }

    /// Counts the connection, with its first call, and the check that a call is.
    async fn count(&self, caller: &Caller, method: &Method) -> Result<(), Error> {
        let take = async || self.serving.rights.take(caller, Limit::Connections, 1);
        self.place.get_or_try_init(take).await?;
        if method.is_a_check() { self.serving.rights.check(caller) } else { Ok(()) }
    }

    /// The answer of the service, if the caller may have one, and what it holds.
    async fn answer(
        self,
        mut request: Request<Incoming>,
        operation: Operation,
    ) -> Result<(Response<Body>, Held), Status> {
        if let Some(bytes) = self.serving.call_limits.too_long(request.headers()) {
            let most = self.serving.call_limits.header_bytes;
            let message = format!(
                "the headers of the call have {bytes} bytes, and can have {most} (`listen.max_header_kib`)"
            );
            let error = Error::new(Reason::HEADERS_TOO_LONG, message).with("most", &most);
            return Err(error.fix("send less metadata with the call").into());
        }
        let caller = self.authorise(request.uri().path(), request.headers(), operation).await?;
        let form = Form::of(request.uri().path());
        let mut held = Held::default();
        if let Some(caller) = caller {
            if form != Form::Unary {
                let share = self.serving.rights.take(&caller, Limit::Streams, 1)?;
                held.stream = Some((share, self.serving.call_limits.stream()?));
            }
            request.extensions_mut().insert(caller);
        } else if form != Form::Unary {
            held.health = Some(self.serving.call_memory.health_stream(self.admitted.peer)?);
        }
        if form == Form::Answers {
            let kept = self.serving.call_memory.charge(self.admitted.peer);
            request.extensions_mut().insert(KeptBytes::new(move |bytes| kept.set(bytes)));
        }
        request.extensions_mut().insert(self.connection);
        if STREAMS.contains(&request.uri().path()) {
            self.lane.take_streams();
        }
        // A task that has to wait moves to its lane, and ends if the client has given up: hyper looks
        // for a reset of the stream only then (`H2Stream::poll2`), and ends a body that was cancelled
        // as if it were complete.
        tokio::task::yield_now().await;
        // Refused before anything is done for the call, if there is no room for its answer.
        let answer = Arc::new(self.serving.call_memory.charge(self.admitted.peer));
        answer.set(LEAST_ANSWER_BYTES)?;
        let charge = Arc::new(self.serving.call_memory.charge(self.admitted.peer));
        let within = (form != Form::Requests).then_some(self.serving.call_limits.request_time);
        let request = request.map(|body| {
            RequestBody::new(body, self.serving.call_limits.message_bytes, Arc::clone(&charge), within)
        });
        let (request, making) = if form == Form::Unary && is_large(request.uri().path()) {
            let (parts, body) = request.into_parts();
            // All of the request is here first: a client that is slow to send it keeps no place.
            let whole = Full::new(body.collect().await?.to_bytes()).map_err(|never| match never {});
            let (memory, peer) = (&self.serving.call_memory, self.admitted.peer);
            let places = if parts.uri.path() == GET_HOST { &memory.host_answers } else { &memory.answers };
            let making = places.take(peer).await;
            (Request::from_parts(parts, Body::new(whole)), Some(making))
        } else {
            (request.map(Body::new), None)
        };
        let response = match self.serving.routes.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        if form == Form::Unary {
            // The request is gone with its answer.
            drop(charge);
            let whole = whole(response, answer).await?;
            drop(making);
            return Ok((whole, held));
        }
        held.request = Some(charge);
        Ok((response, held))
    }
}

/// An answer in one piece, charged to the memory of calls for as long as the client does not read it.
async fn whole(response: Response<Body>, charge: Arc<Charge>) -> Result<Response<Body>, Status> {
    let (parts, body) = response.into_parts();
    let whole = body.collect().await?;
    let trailers = whole.trailers().cloned();
    let bytes = whole.to_bytes();
    if bytes.is_empty() && trailers.is_none() {
        // A refusal has its status in the headers. The stream must end with them: other clients than
        // those of this library look for it in trailers if anything follows ("Trailers-Only").
        return Ok(Response::from_parts(parts, Body::empty()));
    }
    charge.keep(bytes.len() as u64);
    let body = Full::new(charge.around(bytes)).map_err(|never| match never {});
    let body = body.with_trailers(std::future::ready(trailers.map(Ok)));
    Ok(Response::from_parts(parts, Body::new(body)))
}

/// What is held for an answer before the call is carried out.
const LEAST_ANSWER_BYTES: u64 = 1 << 10;

/// What `kprobectl doctor` calls. Its answer does not wait for the control thread, as those of probes do.
const GET_HOST: &str = "/kprobed.v1.HostService/GetHost";

/// Whether the answer to a call grows with what the host has: few of them are made at a time. That of GetCaller is as
/// long as the roles of the caller.
fn is_large(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name != "GetCaller"
        && ["List", "Get", "Describe", "Disassemble"].iter().any(|verb| name.starts_with(verb))
}

/// Calls that last as long as the client wants, and serve programs rather than the work of the daemon:
/// they stay among the control calls.
const WATCHES: [&str; 2] =
    ["/grpc.health.v1.Health/Watch", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"];

/// Calls whose requests are a stream.
const REQUESTS: [&str; 2] =
    ["/kprobed.v1.ProbeService/CheckProbes", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"];

/// How many messages a call has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// One request and one answer.
    Unary,
    /// One request and any number of answers.
    Answers,
    /// Any number of both.
    Requests,
}

impl Form {
    fn of(path: &str) -> Self {
        if REQUESTS.contains(&path) {
            Self::Requests
        } else if STREAMS.contains(&path) || WATCHES.contains(&path) {
            Self::Answers
        } else {
            Self::Unary
        }
    }
}

/// The service that answers whether the daemon serves.
const HEALTH: &str = "/grpc.health.v1.Health/";

impl hyper::service::Service<Request<Incoming>> for Calls {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (call, unanswered) = (self.admitted.call(), self.resets.begin());
        let deadline = deadline(request.headers());
        let given = request.headers().get(OPERATION_HEADER).and_then(|value| value.to_str().ok());
        let operation = Operation::of(given);
        let answer = self.clone().answer(request, operation.clone());
        Box::pin(async move {
            let answered = match deadline {
                // What was begun for the caller ends with the call.
                Some(deadline) => tokio::time::timeout(deadline, answer).await.unwrap_or_else(|_elapsed| {
                    let message =
                        format!("the call took longer than the {deadline:?} that the client gave it");
                    Err(Error::new(Reason::DEADLINE, message).into())
                }),
                None => answer.await,
            };
            unanswered.answered();
            let (mut response, held) =
                answered.unwrap_or_else(|refused| (refused.into_http(), Held::default()));
            status::finish(response.headers_mut());
            if let Ok(value) = HeaderValue::from_str(operation.as_str()) {
                response.headers_mut().insert(OPERATION_HEADER, value);
            }
            Ok(response.map(|body| holding(body, (call, held))))
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

/// How many hosts a client asks for the same thing, as it says; 1 if it does not. What is no number is more than any
/// limit. A guard against a pattern that matches a whole fleet, and not against an attacker, who can ask each host for
/// itself.
fn hosts_of_command(headers: &HeaderMap) -> u64 {
    let Some(value) = headers.get(HOSTS_HEADER) else { return 1 };
    value.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use kprobed_proto::FILE_DESCRIPTOR_SET;
    use prost::Message as _;

    use super::*;

    #[test]
    fn what_cannot_be_read_is_more_than_any_limit() {
        let of = |text: &str| {
            hosts_of_command(&HeaderMap::from_iter([(
                HOSTS_HEADER.parse().unwrap(),
                HeaderValue::from_bytes(text.as_bytes()).unwrap(),
            )]))
        };
        assert_eq!([of("480"), of("1"), of("0")], [480, 1, 0]);
        assert!(["", "-1", "many", "\u{ff}", "99999999999999999999"].iter().all(|text| of(text) == u64::MAX));
        assert_eq!(hosts_of_command(&HeaderMap::new()), 1);
    }

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

    /// An answer with a list can be as long as the host has such things.
    #[test]
    fn answers_that_grow_with_the_host_are_few() {
        let files = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let (mut checked, mut others) = (0, Vec::new());
        for file in files.file.iter().filter(|file| file.package() == "kprobed.v1") {
            for method in file.service.iter().flat_map(|service| &service.method) {
                let answer = method.output_type().rsplit('.').next().unwrap_or_default();
                let messages = files.file.iter().flat_map(|file| &file.message_type);
                let mut fields =
                    messages.filter(|message| message.name() == answer).flat_map(|found| &found.field);
                let has_list =
                    fields.any(|field| field.label() == prost_types::field_descriptor_proto::Label::Repeated);
                if has_list && !method.server_streaming() {
                    checked += 1;
                    if !is_large(method.name()) {
                        others.push(method.name().to_owned());
                    }
                }
            }
        }
        // These are about what is in the request, or about one function or probe, or the caller; changes have their
        // turns.
        let known =
            ["AdoptProbe", "ApplyProbes", "CheckAccess", "CheckProbe", "GetCaller", "ReconcileProbes"];
        others.sort_unstable();
        assert_eq!(others, known);
        assert!(checked > 10, "{checked}");
    }

    #[test]
    fn the_host_is_a_method() {
        assert_eq!(Method::at(GET_HOST).map(|method| method.path), Some(GET_HOST));
        assert!(is_large(GET_HOST), "other programs make as many probes as they like");
    }

    #[test]
    fn every_call_that_streams_is_a_stream() {
        let files = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let (mut streams, mut requests) = (Vec::new(), Vec::new());
        for file in &files.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    if method.client_streaming() {
                        requests.push(path.clone());
                    }
                    if method.server_streaming() {
                        streams.push(path);
                    }
                }
            }
        }
        streams.sort_unstable();
        let mut known = STREAMS.to_vec();
        known.sort_unstable();
        assert_eq!(streams, known);
        let requests: Vec<_> = requests.iter().map(String::as_str).collect();
        assert_eq!(requests, [REQUESTS[0]]);
    }
}
