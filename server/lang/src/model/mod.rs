//! The vocabulary of the domain: names, labels, metadata, identities, counts.
//!
//! Owns plain data. Never does I/O, and knows no protobuf and no SQL, so that every other module
//! can depend on it.

mod host_labels;
mod label;
mod metadata;
mod name;
mod record;

pub use host_labels::{HostLabelError, HostLabels, MAX_HOST_LABELS};
pub use label::{LabelChange, LabelError, LabelSelector, Labels, MAX_LABELS};
pub use metadata::{
    KernelChange, Lease, LeaseTerm, Metadata, MetadataChange, MetadataError, Moment, nanoseconds,
};
pub use name::{Glob, NameError, ProbeName};
pub use record::{HitProfile, Hits, ProbeUid, StateRecord};
