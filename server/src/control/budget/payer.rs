//! Payers: who pays for a hit, and how much each may spend.
//!
//! Owns which budgets a probe belongs to. A further kind, such as an owner, is a further variant
//! here: nothing else needs to know of it.

use std::fmt;
use std::time::Duration;

use kprobed_lang::model::{ProbeName, ProbeUid};

/// Budgets, in nanoseconds of processor time a second, and how they are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetSettings {
    /// Of each probe. Absent for none.
    pub probe_ns_per_s: Option<u64>,
    /// Of all probes of a group together. Absent for none.
    pub group_ns_per_s: Option<u64>,
    /// Of all probes of the host together. Absent for none.
    pub host_ns_per_s: Option<u64>,
    /// How long a probe stays disarmed, doubled each time. Absent: until a client enables it.
    pub rearm_after: Option<Duration>,
    /// Whether it is measured what a hit takes.
    pub calibrate: bool,
}

/// What a budget is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Payer {
    /// One probe.
    Probe(ProbeUid),
    /// The probes of a group.
    Group(String),
    /// All probes.
    Host,
}

impl Payer {
    /// All that pay for the hits of a probe, the smallest first.
    pub(super) fn of(uid: ProbeUid, name: &ProbeName) -> [Self; 3] {
        [Self::Probe(uid), Self::Group(name.group().to_owned()), Self::Host]
    }

    /// What it may spend, in nanoseconds a second. Absent if that is not limited.
    pub(super) const fn limit(&self, limits: &BudgetSettings) -> Option<u64> {
        match self {
            Self::Probe(_) => limits.probe_ns_per_s,
            Self::Group(_) => limits.group_ns_per_s,
            Self::Host => limits.host_ns_per_s,
        }
    }

    /// Code of the state of a probe that was disarmed for it.
    pub(super) const fn code(&self) -> &'static str {
        match self {
            Self::Probe(_) => "OVER_PROBE_BUDGET",
            Self::Group(_) => "OVER_GROUP_BUDGET",
            Self::Host => "OVER_HOST_BUDGET",
        }
    }

    /// The setting that limits it.
    pub(super) const fn setting(&self) -> &'static str {
        match self {
            Self::Probe(_) => "budget.probe_ns_per_s",
            Self::Group(_) => "budget.group_ns_per_s",
            Self::Host => "budget.host_ns_per_s",
        }
    }
}

impl fmt::Display for Payer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Probe(_) => f.write_str("a probe"),
            Self::Group(group) => write!(f, "all probes of the group `{group}` together"),
            Self::Host => f.write_str("all probes of the host together"),
        }
    }
}
