//! The body of a gRPC response, which counts its call as under way until it ends.
//!
//! Also keeps the size of its trailers within what clients accept.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use super::admission::CallUnderWay;
use crate::rpc::status;

/// A body with its call.
pub(super) struct CallBody {
    inner: tonic::body::Body,
    _call: Option<CallUnderWay>,
}

impl CallBody {
    pub(super) const fn new(inner: tonic::body::Body, call: Option<CallUnderWay>) -> Self {
        Self { inner, _call: call }
    }
}

impl Body for CallBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        Poll::Ready(frame.map(|frame| {
            frame.map(|mut frame| {
                if let Some(trailers) = frame.trailers_mut() {
                    status::fit_headers(trailers);
                }
                frame
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
