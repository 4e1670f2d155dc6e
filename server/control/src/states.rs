//! Live states of probes, as clients see them: what the kernel has now.
//!
//! Owns when a look must be repeated by the control thread. Never changes a probe.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{ControlHandle, Observed, Observer, Probe, ProbeState, Registry};
use crate::error::Error;

/// Looks up the states of probes.
#[derive(Clone, Debug)]
pub struct ProbeStates {
    /// Looks at the kernel.
    pub observer: Observer,
    /// Repeats the look while nothing is being changed.
    pub control: ControlHandle,
    /// Notes what was seen.
    pub registry: Arc<Registry>,
}

impl ProbeStates {
    /// These probes with their states, by a look at them that was just made. If a probe looks as if another program
    /// had changed it, the control thread looks again: the difference may be a change that the control thread is just
    /// making. Probes that it has deleted meanwhile are left out.
    ///
    /// # Errors
    /// When the daemon is stopping.
    pub async fn of(&self, probes: &[Arc<Probe>], observed: &Observed) -> Result<Vec<Arc<Probe>>, Error> {
        let shown: Vec<_> = probes.iter().map(|probe| observed.shown(probe)).collect();
        let doubtful = probes.iter().zip(&shown).filter(|(known, shown)| is_doubtful(known, shown));
        let doubtful: Vec<_> = doubtful.map(|(probe, _)| probe.uid).collect();
        if doubtful.is_empty() {
            return Ok(shown.into_iter().map(|probe| self.registry.seen(probe)).collect());
        }
        let again = self.control.observe(doubtful.clone()).await?;
        let mut again: HashMap<_, _> = again.into_iter().map(|probe| (probe.uid, probe)).collect();
        let doubtful: HashSet<_> = doubtful.into_iter().collect();
        let looked_at = |probe: Probe| {
            if doubtful.contains(&probe.uid) {
                again.remove(&probe.uid)
            } else {
                Some(self.registry.seen(probe))
            }
        };
        Ok(shown.into_iter().filter_map(looked_at).collect())
    }
}

/// Whether the kernel has something other than what the last change left.
fn is_doubtful(known: &Probe, shown: &Probe) -> bool {
    match &shown.state {
        ProbeState::Drifted(_) => true,
        ProbeState::Failed(_) => known.state != shown.state,
        _ => false,
    }
}
