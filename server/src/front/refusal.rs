//! Refusing a connection with a gRPC status.
//!
//! A connection that is only closed looks like a daemon that does not run. So the first call is
//! answered with the reason, for as many clients at a time as there are descriptors set aside;
//! other connections are closed.

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Request;

use super::call_limits::CallLimits;
use kprobed_control::error::Error;

/// Clients that can be refused with a status at the same time.
pub(super) const AT_A_TIME: usize = 32;

/// How long a client may take for its call and the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Answers whatever the client asks first.
pub(super) async fn tell<I>(io: I, refusal: Error, limits: &CallLimits, place: OwnedSemaphorePermit)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |_request: Request<Incoming>| {
        ready(Ok::<_, Infallible>(Status::from(refusal.clone()).into_http::<Body>()))
    });
    let connection = limits.http2(TokioExecutor::new()).serve_connection(TokioIo::new(io), service);
    if tokio::time::timeout(PATIENCE, connection).await.is_err() {
        tracing::debug!("a refused client did not leave");
    }
    drop(place);
}
