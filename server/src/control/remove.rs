//! Removing probes.

use std::collections::HashSet;
use std::sync::Arc;

use nix::errno::Errno;

use super::ControlError;
use super::command::{RemoveRequest, Removed};
use super::controller::Controller;
use super::handover::Settling;
use super::pause::Pause;
use super::update::check_etag;
use super::{Probe, own};
use crate::model::{HitProfile, ProbeName, ProbeUid};
use crate::pipeline::PauseReason;
use crate::store::Undo;
use crate::tracefs::{Deleted, Presence, TracefsError};

/// What one request asks for.
enum Judged {
    /// Nothing that is still to be done.
    Done(Removed),
    /// To remove this.
    Remove(Arc<Probe>, Option<HitProfile>),
}

impl Controller {
    /// Removes several probes at once: that costs the others no more than one would. Answers in the order of the requests.
    pub(super) async fn remove(
        &mut self,
        requests: Vec<RemoveRequest>,
    ) -> Vec<Result<Removed, ControlError>> {
        let mut outcomes = Vec::with_capacity(requests.len());
        let mut doomed = Vec::new();
        for request in requests {
            let judged = match self.judge_removal(&request).await {
                Ok(Judged::Remove(probe, profile)) => {
                    // Two requests may ask for the same one.
                    if doomed.iter().any(|(_, other, _): &(usize, Arc<Probe>, _)| other.uid == probe.uid) {
                        Err(ControlError::NotFound { name: request.name, foreign: false })
                    } else {
                        doomed.push((outcomes.len(), Arc::clone(&probe), profile.clone()));
                        Ok(Removed { name: probe.name.clone(), profile, note: "" })
                    }
                }
                Ok(Judged::Done(removed)) => Ok(removed),
                Err(error) => Err(error),
            };
            outcomes.push(judged);
        }
        let probes: Vec<_> = doomed.iter().map(|(_, probe, _)| Arc::clone(probe)).collect();
        let taken_out = self.take_all_out_of_kernel(&probes);
        for ((index, probe, profile), taken_out) in doomed.into_iter().zip(taken_out) {
            let finished = self.finish_removal(&probe, profile.as_ref(), taken_out).await;
            match (finished, outcomes.get_mut(index)) {
                (Ok(note), Some(Ok(removed))) => removed.note = note,
                (Err(error), Some(outcome)) => *outcome = Err(error),
                _ => {}
            }
        }
        outcomes
    }

    /// Whether a request can be carried out. When it is to be, the database knows.
    async fn judge_removal(&self, request: &RemoveRequest) -> Result<Judged, ControlError> {
        if let Some(key) = &request.request
            && let Some(uid) = self.parts.store.carried_out(key).await?
            && self.parts.registry.by_uid(uid).is_none()
            && let Ok(name) = request.name.parse()
        {
            return Ok(Judged::Done(Removed { name, profile: None, note: "" }));
        }
        let probe = self.probe(&request.name)?;
        check_etag(&probe, request.etag.as_deref())?;
        self.require_uncounted(&probe.name)?;
        let profile = self.hit_profiles()?.into_iter().find(|profile| profile.uid == probe.uid);
        if request.validate_only {
            return Ok(Judged::Done(Removed { name: probe.name.clone(), profile, note: "" }));
        }
        self.parts.store.begin_remove(probe.uid, request.request.as_ref()).await?;
        Ok(Judged::Remove(probe, profile))
    }

    async fn finish_removal(
        &mut self,
        probe: &Probe,
        profile: Option<&HitProfile>,
        taken_out: Result<Presence, ControlError>,
    ) -> Result<&'static str, ControlError> {
        let found = match taken_out {
            Ok(found) => found,
            Err(error) => {
                self.parts.store.undo(Undo::Deletion(probe.uid)).await;
                return Err(error);
            }
        };
        if let Some(profile) = profile {
            self.store_samples(std::slice::from_ref(profile)).await;
        }
        self.parts.registry.remove(&probe.name);
        // That it goes is stored. The row may stay for a while.
        self.parts.store.undo(Undo::Probe(probe.uid)).await;
        tracing::info!(probe = %probe.name, uid = %probe.uid, ?found, "deleted");
        Ok(match found {
            Presence::Shared => "the places that another program had added to its event were left alone",
            Presence::Foreign => "the kernel's event of this name was another program's, and was left alone",
            Presence::Absent if probe.own.is_some() => {
                "another program had removed its event from the kernel"
            }
            Presence::Ours | Presence::Absent => "",
        })
    }

    /// Takes a probe out that was never switched on.
    pub(super) fn take_unused_out_of_kernel(&mut self, probe: &Probe) -> Result<(), ControlError> {
        if let Some(event) = &probe.own
            && own::switch(self.tracefs(), &self.parts.instance, event, false)?.is_ours()
        {
            self.tracefs().delete_own(event).map_err(|error| removal_error(error, &probe.name))?;
        }
        self.forget_live(probe);
        Ok(())
    }

    /// What the kernel has under the name of a probe.
    pub(super) fn presence(&self, probe: &Probe) -> Result<Presence, ControlError> {
        Ok(match &probe.own {
            Some(event) => self.tracefs().presence(event)?,
            None if self.tracefs().has_event(probe.name.group(), probe.name.event()) => Presence::Foreign,
            None => Presence::Absent,
        })
    }

    /// Refuses when the kernel's event is not ours.
    pub(super) fn require_own(&self, probe: &Probe) -> Result<(), ControlError> {
        own::require(self.presence(probe)?, &probe.name)
    }

    pub(super) fn forget_live(&mut self, probe: &Probe) {
        self.sources.remove(probe.uid);
        self.live.remove(&probe.uid);
    }

    /// Switches probes off and removes them from the kernel. Their removal empties the buffers of our instance when one of them was ever enabled
    /// there. So when others record, that is left for another instance first. What cannot be removed is as before. Returns what was found under
    /// the name of each: only what was ours is gone.
    pub(super) fn take_all_out_of_kernel(
        &mut self,
        probes: &[Arc<Probe>],
    ) -> Vec<Result<Presence, ControlError>> {
        let is_off =
            |outcome: &Result<Presence, ControlError>| outcome.as_ref().is_ok_and(|found| found.is_ours());
        let mut outcomes: Vec<_> = probes.iter().map(|probe| self.switch_off(probe)).collect();
        let off = || probes.iter().zip(&outcomes).filter(|(_, outcome)| is_off(outcome));
        let wiping = off().find(|(probe, _)| self.live.get(&probe.uid).is_none_or(|live| live.ever_enabled));
        let wiping = wiping.map(|(probe, _)| Arc::clone(probe));
        let doomed: HashSet<_> = off().map(|(probe, _)| probe.uid).collect();
        let pause = wiping.and_then(|probe| self.make_way(&probe, &doomed));
        for (probe, outcome) in probes.iter().zip(&mut outcomes) {
            if is_off(outcome)
                && let Some(event) = &probe.own
            {
                match self.tracefs().delete_own(event) {
                    Ok(Deleted::Done) => {}
                    Ok(Deleted::NotThere(found)) => *outcome = Ok(found),
                    Err(error) => *outcome = Err(removal_error(error, &probe.name)),
                }
            }
        }
        if let Some(pause) = pause {
            self.tell_reset();
            self.resume_recording(&pause, &self.parts.instance.clone());
        }
        for (probe, outcome) in probes.iter().zip(&outcomes) {
            match outcome {
                Ok(_) => self.forget_live(probe),
                Err(_) => self.restore(probe),
            }
        }
        outcomes
    }

    /// Switches a probe off. Returns what is there under its name.
    fn switch_off(&self, probe: &Probe) -> Result<Presence, ControlError> {
        match &probe.own {
            Some(event) => Ok(own::switch(self.tracefs(), &self.parts.instance, event, false)?),
            None => self.presence(probe),
        }
    }

    /// Has the removal of `doomed` empty nothing that matters. When nothing else records that is what is read before; otherwise an instance
    /// that is not used any more. When there can be no other instance, recording is paused: what is hit then is lost, and counted.
    fn make_way(&mut self, wiping: &Probe, doomed: &HashSet<ProbeUid>) -> Option<Pause> {
        let recorded = self.recorded_besides(doomed).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot look at what else is recorded");
            Vec::new()
        });
        if !recorded.is_empty() {
            let options = self.parts.instance_options.clone();
            match self.hand_over(&options, &Settling::Unused(&wiping.name), &recorded) {
                Ok(()) => return None,
                Err(error) => tracing::warn!(
                    %error,
                    "there can be no second instance: nothing is recorded while a probe is deleted"
                ),
            }
        }
        let pause = self.pause_recording(PauseReason::Deletion, !recorded.is_empty());
        self.readers.drain();
        Some(pause)
    }

    /// Tells the readers when the removal has emptied the buffers. It has not when the probe was never enabled in our instance, which is not
    /// known of one that was there before this daemon.
    fn tell_reset(&self) {
        match self.parts.instance.is_reset() {
            Ok(false) => {}
            Ok(true) => self.readers.buffers_were_reset(),
            Err(error) => tracing::warn!(%error, "cannot look whether the buffers are empty"),
        }
    }

    /// Lets a probe record again that could not be removed. It may be in another instance by now.
    fn restore(&mut self, probe: &Probe) {
        let Some(event) = &probe.own else { return };
        let (tracefs, instance) = (self.tracefs(), &self.parts.instance);
        let filtered = own::set_filter(tracefs, instance, event, &probe.filter);
        let restored = filtered.and_then(|_found| own::switch(tracefs, instance, event, probe.enabled));
        if let Err(error) = restored {
            tracing::warn!(probe = %probe.name, %error, "a probe that could not be removed does not record");
        }
        if let Some(live) = self.live.get_mut(&probe.uid) {
            live.ever_enabled |= probe.enabled;
        }
    }
}

fn removal_error(error: TracefsError, name: &ProbeName) -> ControlError {
    if error.errno() == Errno::EBUSY as i32 {
        return ControlError::InUse { name: name.clone() };
    }
    error.into()
}
