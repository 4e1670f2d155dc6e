//! The vocabulary of the domain: names, labels, metadata, identities, counts.
//!
//! Owns plain data. Never does I/O, and knows no protobuf and no SQL, so that every other module
//! can depend on it.

mod host_labels;
mod label;
mod metadata;
mod name;

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

pub use host_labels::{HostLabelError, HostLabels, MAX_HOST_LABELS};
pub use label::{LabelChange, LabelError, LabelSelector, Labels, MAX_LABELS};
pub use metadata::{
    KernelChange, Lease, LeaseTerm, Metadata, MetadataChange, MetadataError, Moment, nanoseconds,
};
pub use name::{Glob, NameError, ProbeName};

/// Identifies one incarnation of a probe: it is the row id in the database, which SQLite never uses
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProbeUid(pub i64);

impl fmt::Display for ProbeUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A state, and since when a probe had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRecord {
    /// The probe.
    pub uid: ProbeUid,
    /// Time since which the probe had it.
    pub time: SystemTime,
    /// Its name, such as `ARMED`.
    pub state: String,
    /// Reason code; empty for none.
    pub reason: String,
    /// Reason for people; empty for none.
    pub message: String,
    /// What to do; may be empty.
    pub hint: String,
}

/// Hits and skipped runs as the kernel counts them since the event was defined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Times the handler ran, whether or not an event was recorded (`kprobe_profile`, second
    /// column).
    pub hits: u64,
    /// Times the kernel skipped the handler (`kprobe_profile`, third column).
    pub nmissed: u64,
}

/// The hit counts of one probe at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HitProfile {
    /// The uid of the probe.
    pub uid: ProbeUid,
    /// Its name at that time.
    pub name: ProbeName,
    /// The boot in which they were counted: the kernel starts from zero after a boot.
    pub boot_id: String,
    /// When the counts were read.
    pub time: SystemTime,
    /// The counts.
    pub hits: Hits,
}
