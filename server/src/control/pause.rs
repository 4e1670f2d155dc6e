//! Moments in which our instance records nothing, and what they cost.

use super::command::KernelHits;
use super::controller::Controller;
use crate::tracefs::Instance;

/// While nothing is recorded.
pub(super) struct Pause {
    /// The hits of all probes when it began, where any would have been recorded.
    hits: Option<KernelHits>,
}

impl Controller {
    /// Ends recording. `anything` tells whether something would be recorded.
    pub(super) fn pause_recording(&self, anything: bool) -> Pause {
        if let Err(error) = self.parts.instance.set_recording(false) {
            tracing::warn!(%error, "cannot pause recording");
        }
        // What is hit between the two is taken for filtered.
        Pause { hits: if anything { self.kernel_hits().ok() } else { None } }
    }

    /// Goes on recording, in that instance. What was hit meanwhile is lost, counted, and told.
    pub(super) fn resume_recording(&mut self, pause: &Pause, instance: &Instance) {
        let now = pause.hits.as_ref().and_then(|_| self.kernel_hits().ok());
        if let Err(error) = instance.set_recording(true) {
            tracing::error!(%error, "cannot go on recording");
        }
        let (Some(before), Some(now)) = (&pause.hits, now) else { return };
        let mut paused = 0;
        for probe in self.parts.registry.all() {
            if let (true, Some(live)) = (probe.enabled, self.live.get_mut(&probe.uid))
                && let (Some(before), Some(now)) = (before.get(&probe.name), now.get(&probe.name))
            {
                let hits = now.hits.saturating_sub(before.hits);
                live.base.note_pause(hits);
                paused += hits;
            }
        }
        tracing::warn!(hits = paused, "nothing was recorded for a moment: its hits are lost");
        self.tell_pause();
    }
}
