//! Messages, clients and servers of the gRPC API `kprobed.v1`, generated from `proto/kprobed/v1/*.proto`.
//!
//! Owns the wire format and nothing else: no validation, no logic. Server and client library both depend
//! on it, and never on each other.

pub mod encoded;

/// Version 1 of the API.
#[allow(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    clippy::clone_on_ref_ptr,
    clippy::disallowed_methods,
    missing_docs,
    unused_qualifications,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("kprobed.v1");
}

/// Serialised `google.protobuf.FileDescriptorSet` of the API, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Domain of every `google.rpc.ErrorInfo` that the daemon sends.
pub const ERROR_DOMAIN: &str = "kprobed";

/// Header of a request with the number of hosts that one command of a client is for. Absent: it is for
/// one.
pub const HOSTS_HEADER: &str = "kprobed-hosts";
