//! Pauses in which the daemon's instance records nothing, and how many hits they cost.
//!
//! Owns how a pause begins and ends, and the gap that subscribers receive. Never decides when to
//! pause.

use std::time::Instant;

use super::controller::Controller;
use super::sample::KernelHits;
use kprobed_event::{PauseReason, RecordingPause, reason_name};
use kprobed_host::kernel::trace_clock_ns;
use kprobed_host::tracefs::Instance;
use kprobed_trace::pipeline::Loss;

/// While nothing is recorded.
pub(super) struct Pause {
    reason: PauseReason,
    begun: Instant,
    /// The hits of all probes right before and right after it began, if any would have been recorded.
    hits: Option<[KernelHits; 2]>,
}

impl Controller {
    /// Ends recording. `anything` tells whether something would be recorded.
    pub(super) fn pause_recording(&self, reason: PauseReason, anything: bool) -> Pause {
        let before = if anything { self.kernel_hits().ok() } else { None };
        let begun = Instant::now();
        if let Err(error) = self.parts.instance.set_recording(false) {
            tracing::warn!(%error, "cannot pause recording");
        }
        let hits = before.and_then(|before| Some([before, self.kernel_hits().ok()?]));
        Pause { reason, begun, hits }
    }

    /// Records again, into that instance. Hits in the pause are lost, counted, and reported. Whether a hit between a
    /// switch and the count beside it was recorded is not known.
    pub(super) fn resume_recording(&mut self, pause: &Pause, instance: &Instance) {
        let now = pause.hits.as_ref().and_then(|_| self.kernel_hits().ok());
        if let Err(error) = instance.set_recording(true) {
            tracing::error!(%error, "cannot record again");
        }
        let after = now.as_ref().and_then(|_| self.kernel_hits().ok());
        let (Some([before, off]), Some(now), Some(after)) = (&pause.hits, now, after) else { return };
        let mut paused = 0;
        for probe in self.parts.registry.recording() {
            let hits = |of: &KernelHits| of.get(&probe.name).map(|counted| counted.hits);
            if let Some(live) = self.live.get_mut(&probe.uid)
                && let (Some(before), Some(off), Some(now), Some(after)) =
                    (hits(before), hits(off), hits(&now), hits(&after))
            {
                let in_pause = now.saturating_sub(off);
                live.account.note_pause(in_pause, off.saturating_sub(before) + after.saturating_sub(now));
                paused += in_pause;
            }
        }
        self.tell_pause(pause.reason, pause.begun, Some(paused));
    }

    /// Reports to all subscribers that nothing was recorded since `begun`. How many events are
    /// missing is not known: filters would have held back some, and the kernel does not count
    /// hits of events of the host.
    pub(super) fn tell_pause(&self, reason: PauseReason, begun: Instant, hits: Option<u64>) {
        let took = begun.elapsed();
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(
            reason = reason_name(reason),
            took_ms,
            hits,
            "paused recording; the hits in the pause are lost"
        );
        let pause = RecordingPause { reason, duration: took, hits };
        self.parts.hub.publish_loss(Loss::paused(pause, trace_clock_ns()));
    }
}
