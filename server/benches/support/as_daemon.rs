//! Calls of tests and benchmarks that serve a service without the front end.

use tonic::service::interceptor::InterceptorLayer;
use tonic::{Request, Status};

use kprobed_control::auth::Caller;

/// Gives every call the daemon as its caller.
pub(crate) fn as_daemon() -> InterceptorLayer<impl Fn(Request<()>) -> Result<Request<()>, Status> + Clone> {
    InterceptorLayer::new(|mut request: Request<()>| {
        request.extensions_mut().insert(Caller::daemon());
        Ok(request)
    })
}
