//! Hit counts of a probe, as the kernel counts them.
//!
//! Owns these types. Never reads a counter.

use std::time::SystemTime;

use super::{ProbeName, ProbeUid};

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
