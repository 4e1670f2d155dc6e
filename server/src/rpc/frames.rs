//! Zero-copy column streams over gRPC.
//!
//! Owns how messages that are already serialised become a response: tonic would copy each of them
//! into a buffer of its own, for each of its subscribers; here the connection gets the bytes that
//! all of them share. Never serialises an event. Everything else of the service is tonic's.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http_body::{Body, Frame};
use kprobed_proto::encoded::StreamEventsResponse;
use kprobed_proto::encoded::event_service_server::{EventService as _, EventServiceServer};
use kprobed_proto::v1::StreamEventsRequest;
use tokio_stream::{Empty, Stream};
use tonic::codegen::http;
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::Service;

use super::EventServer;
use super::events::Responses;
use kprobed_control::error::Error;

const STREAM_EVENTS: &str = "/kprobed.v1.EventService/StreamEvents";

/// Smaller messages are copied after their header, which is cheaper than a frame of their own.
const COPIED_BYTES: usize = 1 << 10;

/// `EventService`, with column streams that are sent without a copy.
#[derive(Clone, Debug)]
pub struct EventRoutes {
    server: Arc<EventServer>,
    others: EventServiceServer<EventServer>,
}

impl EventRoutes {
    /// For a router.
    pub fn new(server: EventServer) -> Self {
        let server = Arc::new(server);
        Self { others: EventServiceServer::from_arc(Arc::clone(&server)), server }
    }
}

impl NamedService for EventRoutes {
    const NAME: &'static str = EventServiceServer::<EventServer>::NAME;
}

impl Service<http::Request<tonic::body::Body>> for EventRoutes {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::<http::Request<tonic::body::Body>>::poll_ready(&mut self.others, context)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        if request.uri().path() != STREAM_EVENTS {
            return self.others.call(request);
        }
        let begin = StartStream { server: Arc::clone(&self.server), stream: Arc::default() };
        let begun = Arc::clone(&begin.stream);
        Box::pin(async move {
            let response = Grpc::new(ProstCodec::default()).server_streaming(begin, request).await;
            let stream = begun.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(match stream {
                Some(stream) => response.map(|_empty| tonic::body::Body::new(Frames::new(stream))),
                // The request was refused; the response says why.
                None => response,
            })
        })
    }
}

/// Begins a stream as tonic does, and keeps it.
struct StartStream {
    server: Arc<EventServer>,
    stream: Arc<Mutex<Option<Responses<StreamEventsResponse>>>>,
}

impl ServerStreamingService<StreamEventsRequest> for StartStream {
    type Response = StreamEventsResponse;
    type ResponseStream = Empty<Result<StreamEventsResponse, Status>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<StreamEventsRequest>) -> Self::Future {
        let (server, stream) = (Arc::clone(&self.server), Arc::clone(&self.stream));
        Box::pin(async move {
            let response = server.stream_events(request).await?;
            Ok(response.map(|begun| {
                *stream.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
                tokio_stream::empty()
            }))
        })
    }
}

/// The body of a response: length-prefixed messages, followed by the status (the gRPC over HTTP2
/// protocol, "Responses").
struct Frames<S> {
    stream: S,
    /// The message that follows the header that was sent.
    message: Option<Bytes>,
    is_over: bool,
}

impl<S> Frames<S> {
    const fn new(stream: S) -> Self {
        Self { stream, message: None, is_over: false }
    }

    fn begin(&mut self, message: Bytes) -> Result<Bytes, Status> {
        let length = u32::try_from(message.len())
            .map_err(|_too_long| Error::internal("a message has more than 4 GiB"))?;
        let is_copied = message.len() <= COPIED_BYTES;
        let mut begin = BytesMut::with_capacity(if is_copied { message.len().saturating_add(5) } else { 5 });
        begin.put_u8(0);
        begin.put_u32(length);
        if is_copied {
            begin.extend_from_slice(&message);
        } else {
            self.message = Some(message);
        }
        Ok(begin.freeze())
    }

    fn end(&mut self, status: &Status) -> Result<Frame<Bytes>, Status> {
        self.is_over = true;
        let mut trailers = http::HeaderMap::new();
        status.add_header(&mut trailers)?;
        Ok(Frame::trailers(trailers))
    }
}

impl<S> Body for Frames<S>
where
    S: Stream<Item = Result<StreamEventsResponse, Status>> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(match ready!(Pin::new(&mut self.stream).poll_next(context)) {
            Some(Ok(response)) => match self.begin(response.into()) {
                Ok(begin) => Ok(Frame::data(begin)),
                Err(status) => self.end(&status),
            },
            Some(Err(status)) => self.end(&status),
            None => self.end(&Status::ok("")),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use kprobed_trace::feed::FeedError;

    use super::*;
    use crate::rpc::start;

    /// All frames: data as one text, and the trailers.
    fn frames(messages: Vec<Result<Bytes, Status>>) -> (Vec<u8>, Vec<usize>, http::HeaderMap) {
        let stream = tokio_stream::iter(messages.into_iter().map(|message| message.map(Into::into)));
        let mut frames = Frames::new(stream);
        let (mut data, mut lengths) = (Vec::new(), Vec::new());
        let mut context = Context::from_waker(std::task::Waker::noop());
        loop {
            let Poll::Ready(frame) = Pin::new(&mut frames).poll_frame(&mut context) else {
                panic!("it waits")
            };
            match frame.unwrap().unwrap().into_data() {
                Ok(bytes) => {
                    lengths.push(bytes.len());
                    data.extend(bytes);
                }
                Err(frame) => {
                    assert!(frames.is_end_stream());
                    return (data, lengths, frame.into_trailers().unwrap());
                }
            }
        }
    }

    #[test]
    fn messages_have_their_length_before_them() {
        let large = Bytes::from(vec![9; 3000]);
        let (data, lengths, trailers) = frames(vec![Ok(Bytes::from_static(b"abc")), Ok(large.clone())]);
        assert_eq!(data[..13], *b"\0\0\0\0\x03abc\0\0\0\x0b\xb8");
        assert_eq!(data[13..], large);
        assert_eq!(lengths, [8, 5, 3000], "a small one is one frame with its header");
        assert_eq!(trailers["grpc-status"], "0");
    }

    #[test]
    fn the_last_thing_is_why_it_ended() {
        let (data, _, trailers) =
            frames(vec![Err(Status::from(start::ended(FeedError::Overflowed { sequence: 7 })))]);
        assert!(data.is_empty());
        let message = trailers["grpc-message"].to_str().unwrap();
        assert!(trailers["grpc-status"] == "8" && message.ends_with("position%207"), "{trailers:?}");
        assert!(trailers.contains_key("grpc-status-details-bin"), "the reason goes with it: {trailers:?}");
    }
}
