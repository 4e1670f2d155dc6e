//! Indexes of the probes: by name, uid, event, lease and module.
//!
//! Owns these indexes, which change together with the probes: the cost of a request grows with the
//! probes that it is about, and not with all that are stored. Never looks at the kernel.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::controller::in_kernel;
use super::{Probe, ProbeState};
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::{ProbeName, ProbeUid};

/// Probes by name, and by further keys.
#[derive(Debug, Default)]
pub(super) struct Indexed {
    named: BTreeMap<ProbeName, Arc<Probe>>,
    uids: HashMap<ProbeUid, ProbeName>,
    /// The names that end with an event.
    events: HashMap<String, BTreeSet<ProbeName>>,
    /// Those with a lease.
    leased: BTreeSet<ProbeName>,
    /// Those that the kernel has, and that have something set in the daemon's instance.
    in_instance: BTreeSet<ProbeName>,
    /// Those whose meaning depends on a module that may be loaded as another build, and those that wait for an event of
    /// the host.
    of_modules: BTreeSet<ProbeName>,
}

impl Indexed {
    /// All probes, by name.
    pub(super) const fn named(&self) -> &BTreeMap<ProbeName, Arc<Probe>> {
        &self.named
    }

    pub(super) fn by_uid(&self, uid: ProbeUid) -> Option<&Arc<Probe>> {
        self.named.get(self.uids.get(&uid)?)
    }

    /// The names that end with an event.
    pub(super) fn of_event(&self, event: &str) -> Option<&BTreeSet<ProbeName>> {
        self.events.get(event)
    }

    /// Those with a lease, by name.
    pub(super) fn leased(&self) -> impl Iterator<Item = &Arc<Probe>> {
        self.leased.iter().filter_map(|name| self.named.get(name))
    }

    /// Those that the kernel has, and that are to record or have a filter, by name.
    pub(super) fn in_instance(&self) -> impl Iterator<Item = &Arc<Probe>> {
        self.in_instance.iter().filter_map(|name| self.named.get(name))
    }

    /// Those whose meaning depends on a module that may be loaded as another build, or that wait for an
    /// event of the host, by name.
    pub(super) fn of_modules(&self) -> impl Iterator<Item = &Arc<Probe>> {
        self.of_modules.iter().filter_map(|name| self.named.get(name))
    }

    /// Inserts a probe, and returns the one that had its name.
    pub(super) fn insert(&mut self, probe: &Arc<Probe>) -> Option<Arc<Probe>> {
        let last = self.remove(&probe.name);
        let name = || probe.name.clone();
        self.uids.insert(probe.uid, name());
        self.events.entry(probe.name.event().to_owned()).or_default().insert(name());
        if probe.spec.metadata.lease.is_some() {
            self.leased.insert(name());
        }
        if is_in_instance(probe) {
            self.in_instance.insert(name());
        }
        if is_of_module(probe) {
            self.of_modules.insert(name());
        }
        self.named.insert(name(), Arc::clone(probe));
        last
    }

    /// Removes the probe of a name.
    pub(super) fn remove(&mut self, name: &ProbeName) -> Option<Arc<Probe>> {
        let probe = self.named.remove(name)?;
        self.uids.remove(&probe.uid);
        if let Some(names) = self.events.get_mut(name.event()) {
            names.remove(name);
            if names.is_empty() {
                self.events.remove(name.event());
            }
        }
        self.leased.remove(name);
        self.in_instance.remove(name);
        self.of_modules.remove(name);
        Some(probe)
    }
}

/// Whether the kernel has a probe that is to record or has a filter.
fn is_in_instance(probe: &Probe) -> bool {
    in_kernel(&probe.state) && (probe.spec.enabled || !probe.spec.filter.is_empty())
}

/// Whether the meaning of a probe can change when its module is loaded again, or its event can come with one.
fn is_of_module(probe: &Probe) -> bool {
    let is_there = in_kernel(&probe.state) || matches!(probe.state, ProbeState::HeldBack(_));
    let awaits_event = probe.kind == ProbeKind::Event && probe.own.is_none();
    is_there && (probe.guarded.module().is_some() || awaits_event)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use proptest::prelude::*;

    use super::*;
    use crate::samples::probe;
    use kprobed_lang::model::{Lease, Moment};

    #[derive(Clone, Debug)]
    struct Put {
        uid: i64,
        name: &'static str,
        enabled: bool,
        is_filtered: bool,
        is_defined: bool,
        has_lease: bool,
    }

    fn put() -> impl Strategy<Value = Option<Put>> {
        let name = prop_oneof![Just("a/open"), Just("b/open"), Just("a/read")];
        let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
        let put = (0_i64..20, name, flags).prop_map(|(uid, name, flags)| {
            let (enabled, is_filtered, is_defined, has_lease) = flags;
            Put { uid, name, enabled, is_filtered, is_defined, has_lease }
        });
        prop::option::of(put)
    }

    fn made(put: &Put) -> Arc<Probe> {
        let mut probe = probe(put.uid, put.name).with(|record| record.spec.enabled = put.enabled);
        if put.is_filtered {
            "common_pid > 1".clone_into(&mut probe.record.spec.filter);
        }
        if !put.is_defined {
            (probe.own, probe.state) = (None, ProbeState::Pending);
        }
        if put.has_lease {
            let end = Moment { wall: SystemTime::UNIX_EPOCH, boot_id: "boot".into(), boot_ns: 0 };
            probe.record.spec.metadata.lease = Some(Lease::Until { duration: Duration::from_mins(1), end });
        }
        Arc::new(probe)
    }

    fn uids(probes: &[&Arc<Probe>]) -> Vec<ProbeUid> {
        probes.iter().map(|probe| probe.uid).collect()
    }

    proptest! {
        /// Whatever was put and removed, each index finds what a walk over all probes finds.
        #[test]
        fn every_index_is_as_a_walk(puts in prop::collection::vec(put(), 0..30)) {
            let mut indexed = Indexed::default();
            let mut used = BTreeSet::new();
            for put in puts {
                match put {
                    // A uid is never used again.
                    Some(put) if used.insert(put.uid) => drop(indexed.insert(&made(&put))),
                    Some(put) => drop(indexed.remove(&put.name.parse().unwrap())),
                    None => drop(indexed.remove(&"a/open".parse().unwrap())),
                }
                let all: Vec<_> = indexed.named().values().cloned().collect();
                let walk = |is: &dyn Fn(&Probe) -> bool| uids(&all.iter().filter(|probe| is(probe)).collect::<Vec<_>>());
                let leased = walk(&|probe| probe.spec.metadata.lease.is_some());
                prop_assert_eq!(uids(&indexed.leased().collect::<Vec<_>>()), leased);
                prop_assert_eq!(uids(&indexed.in_instance().collect::<Vec<_>>()), walk(&is_in_instance));
                prop_assert_eq!(indexed.uids.len(), all.len());
                for probe in &all {
                    prop_assert_eq!(indexed.by_uid(probe.uid).map(|found| &found.name), Some(&probe.name));
                    let names = indexed.of_event(probe.name.event()).unwrap();
                    let same: Vec<_> = all.iter().filter(|other| other.name.event() == probe.name.event()).collect();
                    prop_assert!(names.len() == same.len() && same.iter().all(|other| names.contains(&other.name)));
                }
            }
        }
    }
}
