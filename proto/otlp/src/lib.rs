//! OTLP over gRPC: messages, clients and servers generated from the proto files of
//! [opentelemetry-proto](https://github.com/open-telemetry/opentelemetry-proto) 1.11.0, which are copied
//! unchanged (Apache-2.0).
//!
//! Owns the wire format and nothing else. The proto files are copied because the published crates come
//! with an SDK.
#![forbid(unsafe_code)]

/// A module for each package, in those of the packages around it: generated code finds its neighbours there.
#[allow(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    clippy::clone_on_ref_ptr,
    clippy::disallowed_methods,
    clippy::doc_lazy_continuation,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    rustdoc::all,
    reason = "generated code"
)]
mod packages {
    include!(concat!(env!("OUT_DIR"), "/packages.rs"));
}

pub use packages::opentelemetry::proto::collector::{
    logs::v1 as logs_service, metrics::v1 as metrics_service, trace::v1 as trace_service,
};
pub use packages::opentelemetry::proto::common::v1 as common;
pub use packages::opentelemetry::proto::logs::v1 as logs;
pub use packages::opentelemetry::proto::metrics::v1 as metrics;
pub use packages::opentelemetry::proto::resource::v1 as resource;
pub use packages::opentelemetry::proto::trace::v1 as trace;
