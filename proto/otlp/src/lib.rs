//! OTLP over gRPC: messages, clients and servers generated from the proto files of
//! [opentelemetry-proto](https://github.com/open-telemetry/opentelemetry-proto) 1.11.0, which are copied
//! unchanged (Apache-2.0).
//!
//! Owns the wire format and nothing else. The proto files are copied because the published crates come
//! with an SDK.
#![forbid(unsafe_code)]

/// The package `opentelemetry`. Generated code finds its neighbours by these paths.
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
mod opentelemetry {
    pub mod proto {
        pub mod collector {
            pub mod logs {
                pub mod v1 {
                    tonic::include_proto!("opentelemetry.proto.collector.logs.v1");
                }
            }
            pub mod metrics {
                pub mod v1 {
                    tonic::include_proto!("opentelemetry.proto.collector.metrics.v1");
                }
            }
            pub mod trace {
                pub mod v1 {
                    tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
                }
            }
        }
        pub mod common {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.common.v1");
            }
        }
        pub mod logs {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.logs.v1");
            }
        }
        pub mod metrics {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.metrics.v1");
            }
        }
        pub mod resource {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.resource.v1");
            }
        }
        pub mod trace {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.trace.v1");
            }
        }
    }
}

pub use opentelemetry::proto::collector::{
    logs::v1 as logs_service, metrics::v1 as metrics_service, trace::v1 as trace_service,
};
pub use opentelemetry::proto::common::v1 as common;
pub use opentelemetry::proto::logs::v1 as logs;
pub use opentelemetry::proto::metrics::v1 as metrics;
pub use opentelemetry::proto::resource::v1 as resource;
pub use opentelemetry::proto::trace::v1 as trace;
