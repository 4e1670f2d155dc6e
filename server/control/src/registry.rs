//! Registry: the probes in memory, which the control thread changes and every request reads.
//!
//! Owns the indexes' lock and lookup by name. Never reads the kernel.

use std::collections::{BTreeMap, HashMap};
use std::mem::discriminant;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::state_log::StateLog;
use super::{Probe, ProbeState};
use crate::error::{Error, Reason};
use kprobed_host::kernel::nearest_name;
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::{ProbeName, ProbeUid};

/// All probes, by name. No function of a caller is called while they are locked: it may ask the registry in turn, and
/// who reads twice waits for a writer that came in between, which waits for the first read.
#[derive(Debug, Default)]
pub struct Registry {
    probes: RwLock<Probes>,
    log: StateLog,
}

#[derive(Debug, Default)]
struct Probes {
    named: BTreeMap<ProbeName, Arc<Probe>>,
    uids: HashMap<ProbeUid, ProbeName>,
}

impl Probes {
    /// Takes the probe of a name out.
    fn remove(&mut self, name: &ProbeName) -> Option<Arc<Probe>> {
        let probe = self.named.remove(name)?;
        self.uids.remove(&probe.uid);
        Some(probe)
    }
}

impl Registry {
    fn probes(&self) -> RwLockReadGuard<'_, Probes> {
        self.probes.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// All probes, by name.
    pub fn all(&self) -> Vec<Arc<Probe>> {
        self.probes().named.values().cloned().collect()
    }

    /// Those of them, by name.
    fn those(&self, are_meant: fn(&Probe) -> bool) -> Vec<Arc<Probe>> {
        self.probes().named.values().filter(|probe| are_meant(probe)).cloned().collect()
    }

    /// How many probes an account has made that are still listed, without those that a file declares.
    pub fn made_by(&self, account: &str) -> u64 {
        let is_its = |probe: &Probe| probe.creator == account && probe.spec.metadata.declared_by.is_none();
        self.probes().named.values().map(|probe| u64::from(is_its(probe))).sum()
    }

    /// Probes with a lease, by name.
    pub(super) fn leased(&self) -> Vec<Arc<Probe>> {
        self.those(|probe| probe.spec.metadata.lease.is_some())
    }

    /// Probes that the kernel has, and that are to record or have a filter, by name.
    pub(super) fn in_instance(&self) -> Vec<Arc<Probe>> {
        self.those(|probe| {
            probe.state.is_in_kernel() && (probe.spec.enabled || !probe.spec.filter.is_empty())
        })
    }

    /// Probes that the kernel has and that are to record, by name.
    pub(super) fn recording(&self) -> Vec<Arc<Probe>> {
        self.those(|probe| probe.state.is_in_kernel() && probe.is_to_record())
    }

    /// Probes that the kernel has and that clients have enabled, by name: also those that were
    /// disarmed for their cost.
    pub(super) fn enabled(&self) -> Vec<Arc<Probe>> {
        self.those(|probe| probe.state.is_in_kernel() && probe.spec.enabled)
    }

    /// Probes whose meaning depends on a module that may be loaded as another build, or that wait for an
    /// event of the host, by name.
    pub(super) fn of_modules(&self) -> Vec<Arc<Probe>> {
        self.those(|probe| {
            let is_there = probe.state.is_in_kernel() || matches!(probe.state, ProbeState::HeldBack(_));
            let awaits_event = probe.kind == ProbeKind::Event && probe.own.is_none();
            is_there && (probe.guarded.module().is_some() || awaits_event)
        })
    }

    /// Up to `most` probes that `selected` accepts, in the order of their names, after `after`.
    pub fn page(
        &self,
        after: Option<&ProbeName>,
        most: usize,
        selected: impl Fn(&Probe) -> bool,
    ) -> Vec<Arc<Probe>> {
        let all = self.all();
        let first = after.map_or(0, |after| all.partition_point(|probe| probe.name <= *after));
        all.into_iter().skip(first).filter(|probe| selected(probe)).take(most).collect()
    }

    /// The probe of exactly that name.
    pub fn get(&self, name: &ProbeName) -> Option<Arc<Probe>> {
        self.probes().named.get(name).cloned()
    }

    /// The probe of that uid.
    pub fn by_uid(&self, uid: ProbeUid) -> Option<Arc<Probe>> {
        let probes = self.probes();
        probes.named.get(probes.uids.get(&uid)?).cloned()
    }

    /// The probe of that name, if it is its event that the kernel lists with that line.
    pub fn listed(&self, name: &ProbeName, line: &str) -> Option<Arc<Probe>> {
        self.get(name).filter(|probe| probe.own.as_ref().is_some_and(|own| own.is_listed_as(line)))
    }

    /// Finds a probe by `GROUP/EVENT`, or by `EVENT` if only one probe has it. Of those with this `EVENT` only ones
    /// that `shown` accepts are meant, and named in an error.
    ///
    /// # Errors
    /// No probe has that name, or several have it.
    pub fn find_among(&self, text: &str, shown: impl Fn(&Probe) -> bool) -> Result<Arc<Probe>, Error> {
        let not_found = || {
            let error = Error::no_probe(text);
            match self.nearest(text, &shown) {
                Some(name) => error.fix(&format!("did you mean `{name}`?")),
                None => error,
            }
        };
        if let Ok(name) = text.parse::<ProbeName>() {
            return self.get(&name).ok_or_else(not_found);
        }
        let mut found = self.all();
        found.retain(|probe| probe.name.event() == text && shown(probe));
        match found.as_slice() {
            [] => Err(not_found()),
            [only] => Ok(Arc::clone(only)),
            several => {
                let names: Vec<_> = several.iter().map(|probe| format!("`{}`", probe.name)).collect();
                let message = format!("several probes have an event `{text}`: {}", names.join(", "));
                Err(Error::new(Reason::AMBIGUOUS_NAME, message).field("name").with("event", text))
            }
        }
    }

    /// The probe that a mistyped `GROUP/EVENT` or `EVENT` may mean, of those that `shown` accepts.
    fn nearest(&self, text: &str, shown: &impl Fn(&Probe) -> bool) -> Option<ProbeName> {
        let probes: Vec<_> = self.all().into_iter().filter(|probe| shown(probe)).collect();
        let spelling =
            |name: &ProbeName| if text.contains('/') { name.to_string() } else { name.event().to_owned() };
        let spelled: Vec<_> = probes.iter().map(|probe| spelling(&probe.name)).collect();
        let nearest = nearest_name(text, spelled.iter().map(String::as_str))?;
        let mut named = probes.iter().zip(&spelled).filter(|(_, spelled)| *spelled == nearest);
        named.next().map(|(probe, _)| probe.name.clone())
    }

    /// Changes of probes and their states.
    pub const fn log(&self) -> &StateLog {
        &self.log
    }

    pub(super) fn put(&self, probe: Probe) -> Arc<Probe> {
        let probe = Arc::new(probe);
        let last = {
            let mut probes = self.probes.write().unwrap_or_else(PoisonError::into_inner);
            let last = probes.remove(&probe.name);
            probes.uids.insert(probe.uid, probe.name.clone());
            probes.named.insert(probe.name.clone(), Arc::clone(&probe));
            last
        };
        if let Some(last) = last.filter(|last| last.uid != probe.uid) {
            self.log.note_removal(&last);
        }
        // A start puts probes before it brings them back: watchers hear of the outcome alone.
        if !probe.state.is_in_kernel() && probe.state != ProbeState::Pending {
            self.log.note(&probe);
        }
        probe
    }

    pub(super) fn remove(&self, name: &ProbeName) {
        let removed = self.probes.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        if let Some(probe) = removed {
            self.log.note_removal(&probe);
        }
    }

    /// A probe as the kernel was seen to have it, with the time since which its state is so. What
    /// was seen before the probe was last changed is not noted.
    pub fn seen(&self, shown: Probe) -> Arc<Probe> {
        // The lock is held until the state is noted: otherwise the probe could be removed in
        // between, and noted after that.
        let probes = self.probes();
        let current = probes.named.get(&shown.name);
        // A probe that was removed from the kernel meanwhile has not come back.
        let is_same = |probe: &Probe| discriminant(&probe.state) == discriminant(&shown.state);
        let is_possible = |probe: &Probe| probe.state.is_in_kernel() || is_same(probe);
        let is_current = current.is_some_and(|probe| {
            (probe.uid, probe.revision) == (shown.uid, shown.revision) && is_possible(probe)
        });
        let shown = Arc::new(shown);
        if is_current { self.log.note(&shown) } else { shown }
    }
}

/// A registry that begins with these probes.
impl FromIterator<Probe> for Registry {
    fn from_iter<I: IntoIterator<Item = Probe>>(probes: I) -> Self {
        let registry = Self::default();
        for probe in probes {
            registry.put(probe);
        }
        registry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::probe;

    fn names(probes: &[Arc<Probe>]) -> Vec<String> {
        probes.iter().map(|probe| probe.name.to_string()).collect()
    }

    #[test]
    fn a_probe_is_found_by_name_event_and_uid() {
        let registry = Registry::default();
        for (uid, name) in [(1, "kprobes/open"), (2, "other/open"), (3, "kprobes/read")] {
            registry.put(probe(uid, name));
        }
        let find = |text: &str| registry.find_among(text, |_| true);
        assert_eq!(find("read").unwrap().uid, ProbeUid(3));
        assert_eq!(find("other/open").unwrap().uid, ProbeUid(2));
        assert!(find("open").is_err_and(|error| {
            error.reason == Reason::AMBIGUOUS_NAME && error.message.matches("/open`").count() == 2
        }));
        assert!(find("nothing").is_err_and(|error| error.reason == Reason::NO_SUCH_PROBE));
        let meant = |text: &str| find(text).unwrap_err().value("fix").map(str::to_owned);
        assert_eq!(meant("raed"), Some("did you mean `kprobes/read`?".to_owned()));
        assert_eq!(meant("kprobes/raed"), Some("did you mean `kprobes/read`?".to_owned()));
        assert_eq!(meant("something_else"), None);
        // Another incarnation under the same name.
        registry.put(probe(4, "kprobes/open"));
        assert!(registry.by_uid(ProbeUid(1)).is_none() && registry.by_uid(ProbeUid(4)).is_some());
        registry.remove(&"other/open".parse().unwrap());
        assert_eq!(find("open").unwrap().uid, ProbeUid(4));
        registry.remove(&"kprobes/open".parse().unwrap());
        assert!(find("open").is_err() && registry.by_uid(ProbeUid(4)).is_none());
        assert_eq!(names(&registry.all()), ["kprobes/read"]);
    }

    #[test]
    fn an_event_alone_means_one_of_those_that_are_shown() {
        let registry = Registry::default();
        for (uid, name) in [(1, "net/open"), (2, "storage/open"), (3, "storage/read")] {
            registry.put(probe(uid, name));
        }
        let shown = |probe: &Probe| probe.name.group() == "net";
        assert_eq!(registry.find_among("open", shown).unwrap().name.to_string(), "net/open");
        assert_eq!(registry.find_among("read", shown).unwrap_err().reason, Reason::NO_SUCH_PROBE);
        // Who writes the group knows it: the answer to that is a matter of rights.
        assert_eq!(registry.find_among("storage/read", shown).unwrap().uid, ProbeUid(3));
        let all = registry.find_among("open", |_| true).unwrap_err();
        assert!(all.message.ends_with("`net/open`, `storage/open`"), "{all}");
    }

    /// A change that comes while a caller's function judges a probe waits for nothing, and nothing waits for it.
    #[test]
    fn no_function_of_a_caller_runs_under_the_lock() {
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let registry = Registry::default();
            registry.put(probe(1, "net/open"));
            let uid = std::cell::Cell::new(1);
            let changes = |_: &Probe| {
                uid.set(uid.get() + 1);
                registry.put(probe(uid.get(), "storage/read"));
                true
            };
            assert_eq!(registry.find_among("open", changes).unwrap().uid, ProbeUid(1));
            assert!(registry.find_among("opne", changes).is_err());
            assert_eq!(registry.page(None, 9, changes).len(), 2);
            done.send(()).unwrap();
        });
        ended.recv_timeout(std::time::Duration::from_mins(1)).expect("it waits for itself");
    }

    #[test]
    fn pages_follow_each_other() {
        let registry = Registry::default();
        for (uid, event) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
            registry.put(probe(i64::try_from(uid).unwrap(), &format!("kprobes/{event}")));
        }
        let first = registry.page(None, 2, |probe| probe.name.event() != "b");
        assert_eq!(names(&first), ["kprobes/a", "kprobes/c"]);
        let rest = registry.page(Some(&first[1].name), 9, |_| true);
        assert_eq!(names(&rest), ["kprobes/d", "kprobes/e"]);
        let gone = "kprobes/bb".parse().unwrap();
        assert_eq!(names(&registry.page(Some(&gone), 1, |_| true)), ["kprobes/c"]);
    }
}
