//! Reading of a host: its counters and health at one moment.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// A reading of a host. Counters are absent if the host does not know them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reading {
    /// Boot id: counters of different boots are not comparable.
    pub(crate) boot_id: String,
    /// When the daemon was started, in milliseconds since 1970.
    pub(crate) daemon_start_ms: u64,
    /// Absent if the host does not report it.
    pub(crate) spent: Option<Spent>,
    /// Checks of the host that fail.
    pub(crate) failed_checks: BTreeSet<String>,
    /// By name, those that the roll-out is about.
    pub(crate) probes: BTreeMap<String, ProbeReading>,
    /// By name, other probes that the host has disarmed for a budget that they share, with the reason.
    pub(crate) others_tripped: BTreeMap<String, String>,
}

/// What the daemon has used since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spent {
    /// Processor time, user and system, in nanoseconds.
    pub(crate) processor_ns: u64,
    /// Its uptime in nanoseconds.
    pub(crate) uptime_ns: u64,
}

/// A probe at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProbeReading {
    pub(crate) uid: i64,
    pub(crate) etag: String,
    pub(crate) enabled: bool,
    /// Whether its state is as requested.
    pub(crate) is_as_wanted: bool,
    /// Whether the host has disarmed it for its cost.
    pub(crate) is_tripped: bool,
    /// Its state, with the reason.
    pub(crate) state: String,
    /// When the kernel's counters were read, in milliseconds since 1970.
    pub(crate) counted_ms: Option<u64>,
    pub(crate) hits: Option<u64>,
    pub(crate) misses: Option<u64>,
    /// Hits as the ledger has them.
    pub(crate) ledger_hits: Option<u64>,
    /// Events of it that were lost. Absent if the ledger does not know this probe's part.
    pub(crate) lost: Option<u64>,
}
