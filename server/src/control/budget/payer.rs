//! Payers: who pays for a hit, and how much each may spend.
//!
//! Owns which budgets a probe belongs to.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::store::Record;
use kprobed_document::ROLLOUT_LABEL;
use kprobed_lang::model::ProbeUid;

/// Budgets, in nanoseconds of processor time a second, and how they are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetSettings {
    /// Of each probe. Absent for none.
    pub probe_ns_per_s: Option<u64>,
    /// Of all probes of a group together. Absent for none.
    pub group_ns_per_s: Option<u64>,
    /// By the key of a label: of all probes together that have one value of it.
    pub label_ns_per_s: BTreeMap<String, u64>,
    /// Of all probes together that one roll-out has made or changed. Absent for none.
    pub rollout_ns_per_s: Option<u64>,
    /// Of all probes together that one principal has made. Absent for none.
    pub creator_ns_per_s: Option<u64>,
    /// Of all probes of the host together. Absent for none.
    pub host_ns_per_s: Option<u64>,
    /// How long a probe stays disarmed, doubled each time. Absent: until a client enables it.
    pub rearm_after: Option<Duration>,
    /// Whether it is measured what a hit takes.
    pub calibrate: bool,
}

impl BudgetSettings {
    /// All limits that there are, in nanoseconds a second.
    pub(super) fn all(&self) -> impl Iterator<Item = u64> {
        let Self { probe_ns_per_s, group_ns_per_s, label_ns_per_s, .. } = self;
        let Self { rollout_ns_per_s, creator_ns_per_s, host_ns_per_s, .. } = self;
        let each = [probe_ns_per_s, group_ns_per_s, rollout_ns_per_s, creator_ns_per_s, host_ns_per_s];
        let each = each.into_iter().flatten();
        each.chain(label_ns_per_s.values()).copied()
    }
}

/// What a budget is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Payer {
    /// One probe.
    Probe(ProbeUid),
    /// The probes of a group.
    Group(String),
    /// The probes that have this label: its key and its value.
    Label(String, String),
    /// The probes of this roll-out.
    Rollout(String),
    /// The probes that this account has made ([`kprobed_rights::Principal::account`]).
    Creator(String),
    /// All probes.
    Host,
}

impl Payer {
    /// All that pay for the hits of a probe and have a budget, the smallest first.
    pub(super) fn of(probe: &Record, limits: &BudgetSettings) -> Vec<Self> {
        let all = [Self::Probe(probe.uid), Self::Group(probe.name.group().to_owned())].into_iter();
        let label = |key: &String| Some(Self::Label(key.clone(), probe.spec.labels.get(key)?.to_owned()));
        let by_label = limits.label_ns_per_s.keys().filter_map(label);
        let by_creator = maker(probe).map(|account| Self::Creator(account.to_owned()));
        let by_rollout = probe.spec.labels.get(ROLLOUT_LABEL).map(|name| Self::Rollout(name.to_owned()));
        all.chain(by_label)
            .chain(by_rollout)
            .chain(by_creator)
            .chain([Self::Host])
            .filter(|payer| payer.limit(limits).is_some())
            .collect()
    }

    /// What it may spend, in nanoseconds a second. Absent if that is not limited.
    pub(super) fn limit(&self, limits: &BudgetSettings) -> Option<u64> {
        match self {
            Self::Probe(_) => limits.probe_ns_per_s,
            Self::Group(_) => limits.group_ns_per_s,
            Self::Label(key, _) => limits.label_ns_per_s.get(key).copied(),
            Self::Rollout(_) => limits.rollout_ns_per_s,
            Self::Creator(_) => limits.creator_ns_per_s,
            Self::Host => limits.host_ns_per_s,
        }
    }

    /// Code of the state of a probe that was disarmed for it.
    pub(super) const fn code(&self) -> &'static str {
        match self {
            Self::Probe(_) => "OVER_PROBE_BUDGET",
            Self::Group(_) => "OVER_GROUP_BUDGET",
            Self::Label(..) => "OVER_LABEL_BUDGET",
            Self::Rollout(_) => "OVER_ROLLOUT_BUDGET",
            Self::Creator(_) => "OVER_CREATOR_BUDGET",
            Self::Host => "OVER_HOST_BUDGET",
        }
    }

    /// The setting that limits it.
    pub(super) const fn setting(&self) -> &'static str {
        match self {
            Self::Probe(_) => "budget.probe_ns_per_s",
            Self::Group(_) => "budget.group_ns_per_s",
            Self::Label(..) => "budget.label_ns_per_s",
            Self::Rollout(_) => "budget.rollout_ns_per_s",
            Self::Creator(_) => "budget.creator_ns_per_s",
            Self::Host => "budget.host_ns_per_s",
        }
    }
}

/// The account that has made a probe. None for one that was there before and was adopted, for one of
/// a file, and for one whose maker is not known.
fn maker(probe: &Record) -> Option<&str> {
    let is_made = !probe.creator.is_empty() && !probe.is_adopted && probe.spec.metadata.declared_by.is_none();
    is_made.then_some(&probe.creator)
}

impl fmt::Display for Payer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Probe(_) => f.write_str("a probe"),
            Self::Group(group) => write!(f, "all probes of the group `{group}` together"),
            Self::Label(key, value) => write!(f, "all probes with the label `{key}={value}` together"),
            Self::Rollout(name) => write!(f, "all probes of the roll-out `{name}` together"),
            Self::Creator(account) => write!(f, "all probes that `{account}` has made together"),
            Self::Host => f.write_str("all probes of the host together"),
        }
    }
}
