//! The body of a gRPC response, which holds what its call takes until it ends.
//!
//! Also keeps the size of its trailers within what clients accept.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use tokio::sync::OwnedSemaphorePermit;
use tonic::body::Body;

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

/// A body that holds what its call takes until it ends, and whose trailers clients accept.
pub(super) fn holding(body: Body, held: Held) -> Body {
    Body::new(body.map_frame(move |mut frame| {
        // It goes into the closure, and is dropped with it.
        let _ = &held;
        if let Some(trailers) = frame.trailers_mut() {
            status::finish(trailers);
        }
        frame
    }))
}
