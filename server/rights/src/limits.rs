//! Limits of a role: how much one principal may hold, or ask for in a second.
//!
//! Owns their names and units. Never counts anything: whoever holds the thing does.

use std::collections::BTreeMap;
use std::fmt;

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// Probes that the principal has made and that are still listed.
    Probes,
    /// Its streaming calls under way, over all of its connections.
    Streams,
    /// Its connections that have made a call.
    Connections,
    /// Definitions that it has judged, explained or looked up in a second.
    ChecksPerSecond,
    /// Seconds that the lease of one of its probes may last. Every probe needs a lease, or a hold.
    LeaseMaxS,
    /// Bytes of the queues of all of its event streams together.
    QueueBytes,
    /// Hosts that one command of its is for, as its client says.
    HostsPerCommand,
    /// Aggregations that the principal has made and that still count.
    Aggregations,
}

impl Limit {
    /// All of them, in the order of messages.
    pub const ALL: [Self; 8] = [
        Self::Probes,
        Self::Streams,
        Self::Connections,
        Self::ChecksPerSecond,
        Self::LeaseMaxS,
        Self::QueueBytes,
        Self::HostsPerCommand,
        Self::Aggregations,
    ];

    /// The name in role files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Probes => "probes",
            Self::Streams => "streams",
            Self::Connections => "connections",
            Self::ChecksPerSecond => "checks_per_second",
            Self::LeaseMaxS => "lease_max_s",
            Self::QueueBytes => "queue_bytes",
            Self::HostsPerCommand => "hosts_per_command",
            Self::Aggregations => "aggregations",
        }
    }

    /// The limit of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.name() == name)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How much a role allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Amount {
    /// At most so much.
    Most(u64),
    /// Any number.
    Unlimited,
}

/// The word for [`Amount::Unlimited`] in role files.
pub(super) const UNLIMITED: &str = "unlimited";

/// The limits that a role states, each with its line in the role file. What it does not state, it says nothing about.
pub type Limits = BTreeMap<Limit, (Amount, usize)>;
