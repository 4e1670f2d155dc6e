//! The body of a gRPC response, which holds what its call takes until it ends.
//!
//! Also keeps the size of its trailers within what clients accept.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use tokio::sync::OwnedSemaphorePermit;

use super::admission::CallUnderWay;
use super::call_memory::Charge;
use kprobed_control::auth::Share;
use kprobed_control::status;

/// What a call holds until its body ends.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Its place among the calls of its connection.
    #[expect(dead_code, reason = "it counts until it is dropped")]
    pub(super) call: Option<CallUnderWay>,
    /// The place of a stream among those of its principal, and among all.
    pub(super) stream: Option<(Share, OwnedSemaphorePermit)>,
    /// The place of a stream of health.
    pub(super) health: Option<OwnedSemaphorePermit>,
    /// What its request takes, if that is still in use.
    pub(super) request: Option<Arc<Charge>>,
}

/// A body with its call.
pub(super) struct CallBody {
    inner: tonic::body::Body,
    _held: Held,
}

impl CallBody {
    pub(super) const fn new(inner: tonic::body::Body, held: Held) -> Self {
        Self { inner, _held: held }
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
                    status::finish(trailers);
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
