//! The probes as clients see them: changed by the control thread, read by everybody.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::ControlError;
use super::Probe;
use crate::model::{ProbeName, ProbeUid};

/// All probes, by name.
#[derive(Debug, Default)]
pub struct Registry {
    probes: RwLock<BTreeMap<ProbeName, Arc<Probe>>>,
}

impl Registry {
    /// All probes, by name.
    pub fn all(&self) -> Vec<Arc<Probe>> {
        self.probes.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The probe of exactly that name.
    pub fn get(&self, name: &ProbeName) -> Option<Arc<Probe>> {
        self.probes.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// The probe of that incarnation.
    pub fn by_uid(&self, uid: ProbeUid) -> Option<Arc<Probe>> {
        self.all().into_iter().find(|probe| probe.uid == uid)
    }

    /// Finds a probe by `GROUP/EVENT`, or by `EVENT` where only one probe has it.
    ///
    /// # Errors
    /// [`ControlError::NotFound`], [`ControlError::Ambiguous`].
    pub fn find(&self, text: &str) -> Result<Arc<Probe>, ControlError> {
        let not_found = || ControlError::NotFound { name: text.to_owned(), foreign: false };
        if let Ok(name) = text.parse::<ProbeName>() {
            return self.get(&name).ok_or_else(not_found);
        }
        let found: Vec<_> = self.all().into_iter().filter(|probe| probe.name.event() == text).collect();
        match found.as_slice() {
            [] => Err(not_found()),
            [only] => Ok(Arc::clone(only)),
            several => Err(ControlError::Ambiguous {
                event: text.to_owned(),
                names: several.iter().map(|probe| probe.name.clone()).collect(),
            }),
        }
    }

    pub(super) fn put(&self, probe: Probe) -> Arc<Probe> {
        let probe = Arc::new(probe);
        let mut probes = self.probes.write().unwrap_or_else(PoisonError::into_inner);
        probes.insert(probe.name.clone(), Arc::clone(&probe));
        probe
    }

    pub(super) fn remove(&self, name: &ProbeName) {
        self.probes.write().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}
