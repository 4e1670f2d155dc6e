//! Removing probes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use nix::errno::Errno;

use super::ControlError;
use super::apply::{Grounds, Judged};
use super::command::{Changed, RemoveRequest, Removed};
use super::controller::Controller;
use super::declarations::require_undeclared;
use super::handover::{Recorded, Settling};
use super::pause::Pause;
use super::update::check_etag;
use super::{Probe, own};
use crate::store::{RequestKey, Undo};
use kprobed_event::PauseReason;
use kprobed_host::tracefs::{Deleted, Presence, TracefsError};
use kprobed_lang::model::{HitProfile, ProbeName, ProbeUid};

/// So many removals take longer than the change to another instance, when each of them empties the
/// buffers of the present one.
const WORTH_AN_INSTANCE: usize = 8;

/// What is done so that deletions empty no buffer that matters.
#[derive(Debug)]
pub(super) enum Room {
    /// Nothing: what is deleted was never enabled in our instance, or is not there.
    Free,
    /// Nothing else records. What was recorded is read before, and nothing is meanwhile.
    Pause,
    /// Another instance takes over, in which what is deleted was never enabled. Each deletion takes
    /// a fraction of the time, too.
    HandOver {
        /// What goes on being recorded.
        recorded: Vec<Recorded>,
    },
}

impl Room {
    /// For so many deletions, beside what else is recorded.
    pub(super) fn beside(recorded: Vec<Recorded>, deletions: usize) -> Self {
        if recorded.iter().any(|event| event.enabled) || deletions >= WORTH_AN_INSTANCE {
            return Self::HandOver { recorded };
        }
        Self::Pause
    }
}

/// A probe that is to be deleted.
pub(super) struct Doomed {
    pub(super) probe: Arc<Probe>,
    /// Its last hit counts. Absent when the kernel does not have it.
    pub(super) profile: Option<HitProfile>,
    pub(super) request: Option<RequestKey>,
}

impl Controller {
    /// Whether a probe can be deleted.
    pub(super) async fn judge_removal(
        &self,
        request: RemoveRequest,
        grounds: &mut Grounds<'_>,
        profiles: Result<&HashMap<ProbeUid, HitProfile>, &ControlError>,
    ) -> Result<Judged, ControlError> {
        if let Some(key) = &request.request
            && let Some(uid) = self.parts.store.carried_out(key).await?
            && self.parts.registry.by_uid(uid).is_none()
            && let Ok(name) = request.name.parse()
        {
            return Ok(Judged::Done(Changed::Removed(Removed { name, profile: None, note: "" })));
        }
        let probe = self.probe(&request.name)?;
        check_etag(&probe, request.etag.as_deref())?;
        require_undeclared(&probe, request.take_over)?;
        self.require_uncounted(&probe.name)?;
        let profile = match profiles {
            Ok(profiles) => profiles.get(&probe.uid).cloned(),
            // Others add and remove probes all the time: look at this one again.
            Err(_) => self.hit_profiles()?.into_iter().find(|profile| profile.uid == probe.uid),
        };
        grounds.claim(&probe, true)?;
        Ok(Judged::Delete(Doomed { probe, profile, request: request.request }))
    }

    /// Deletes probes of which the database knows that they are to go.
    pub(super) async fn delete(&mut self, doomed: Vec<Doomed>) -> Vec<Result<Changed, ControlError>> {
        let probes: Vec<_> = doomed.iter().map(|doomed| Arc::clone(&doomed.probe)).collect();
        let taken_out = self.take_all_out_of_kernel(&probes);
        let (mut profiles, mut undo) = (Vec::new(), Vec::new());
        let mut outcomes = Vec::with_capacity(doomed.len());
        for (Doomed { probe, profile, .. }, taken_out) in doomed.into_iter().zip(taken_out) {
            outcomes.push(match taken_out {
                Ok(found) => {
                    profiles.extend(profile.clone());
                    self.parts.registry.remove(&probe.name);
                    // That it goes is stored. The row may stay for a while.
                    undo.push(Undo::Probe(probe.uid));
                    tracing::info!(probe = %probe.name, uid = %probe.uid, ?found, "deleted");
                    let note = note(&probe, found);
                    Ok(Changed::Removed(Removed { name: probe.name.clone(), profile, note }))
                }
                Err(error) => {
                    undo.push(Undo::Deletion(probe.uid));
                    Err(error)
                }
            });
        }
        if !profiles.is_empty() {
            self.store_samples(&profiles).await;
        }
        self.parts.store.undo_all(undo).await;
        outcomes
    }

    /// Takes probes out of the kernel that could not be stored. Answers whether each is out;
    /// otherwise the database still says that it is to go, and the next start removes it.
    pub(super) fn take_back(&mut self, probes: &[Arc<Probe>]) -> Vec<bool> {
        if probes.is_empty() {
            return Vec::new();
        }
        let outcomes = self.take_all_out_of_kernel(probes);
        for (probe, outcome) in probes.iter().zip(&outcomes) {
            if let Err(error) = outcome {
                tracing::error!(probe = %probe.name, %error, "cannot remove a probe that could not be stored");
                if let Some(own) = &probe.own
                    && let Err(error) = own::switch(self.tracefs(), &self.parts.instance, own, false)
                {
                    tracing::error!(probe = %probe.name, %error, "cannot switch it off either");
                }
            }
        }
        outcomes.iter().map(Result::is_ok).collect()
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

    pub(super) fn forget_live(&mut self, gone: &[ProbeUid]) {
        self.sources.remove(gone);
        for uid in gone {
            self.live.remove(uid);
        }
    }

    /// Switches probes off and removes them from the kernel. Their removal empties the buffers of
    /// our instance when one of them was ever enabled there. So when others record, that is left
    /// for another instance first. What cannot be removed is as before. Returns what was found
    /// under the name of each: only what was ours is gone.
    pub(super) fn take_all_out_of_kernel(
        &mut self,
        probes: &[Arc<Probe>],
    ) -> Vec<Result<Presence, ControlError>> {
        let is_off =
            |outcome: &Result<Presence, ControlError>| outcome.as_ref().is_ok_and(|found| found.is_ours());
        let mut outcomes = self.switch_off(probes);
        let off = || probes.iter().zip(&outcomes).filter(|(_, outcome)| is_off(outcome));
        let wiping = off().find(|(probe, _)| self.is_wiping(probe)).map(|(probe, _)| probe.name.clone());
        let doomed: HashSet<_> = off().map(|(probe, _)| probe.uid).collect();
        let pause = wiping.and_then(|wiping| self.make_room(&wiping, &doomed));
        let list = self.tracefs().kprobe_list();
        for (probe, outcome) in probes.iter().zip(&mut outcomes) {
            if is_off(outcome)
                && let Some(event) = &probe.own
            {
                let deleted = match &list {
                    Ok(list) => self.tracefs().delete_own(list, event),
                    Err(error) => Err(error.again()),
                };
                match deleted {
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
        let gone = probes.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
        self.forget_live(&gone.map(|(probe, _)| probe.uid).collect::<Vec<_>>());
        for (probe, _) in probes.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_err()) {
            self.restore(probe);
        }
        outcomes
    }

    /// Switches probes off. Returns what is there under the name of each.
    fn switch_off(&self, probes: &[Arc<Probe>]) -> Vec<Result<Presence, ControlError>> {
        let list = if probes.is_empty() { Ok(Arc::default()) } else { self.tracefs().kprobe_list() };
        let list = match list {
            Ok(list) => list,
            Err(error) => return probes.iter().map(|_| Err(error.again().into())).collect(),
        };
        let switch_off = |probe: &Arc<Probe>| match &probe.own {
            Some(event) => {
                let presence = self.tracefs().presence_in(&list, event)?;
                if presence.is_ours() {
                    self.parts.instance.set_enabled(&event.name, false)?;
                }
                Ok(presence)
            }
            None => self.presence(probe),
        };
        probes.iter().map(switch_off).collect()
    }

    /// Whether the removal of a probe empties the buffers of our instance. Of one that was there
    /// before this daemon that is not known.
    pub(super) fn is_wiping(&self, probe: &Probe) -> bool {
        probe.own.is_some() && self.live.get(&probe.uid).is_none_or(|live| live.ever_enabled)
    }

    /// What else is recorded while `doomed` are deleted. What cannot be looked at is not moved.
    pub(super) fn recorded_beside(&self, doomed: &HashSet<ProbeUid>) -> Vec<Recorded> {
        self.recorded_besides(doomed).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot look at what else is recorded");
            Vec::new()
        })
    }

    /// Has the removal of `doomed` empty nothing that matters. Where there can be no other
    /// instance, recording is paused.
    fn make_room(&mut self, wiping: &ProbeName, doomed: &HashSet<ProbeUid>) -> Option<Pause> {
        let anything = match Room::beside(self.recorded_beside(doomed), doomed.len()) {
            Room::Free => return None,
            Room::Pause => false,
            Room::HandOver { recorded } => {
                let options = self.parts.instance_options.clone();
                match self.hand_over(&options, &Settling::Unused(wiping), &recorded) {
                    Ok(()) => return None,
                    Err(error) => tracing::warn!(
                        %error,
                        "there can be no second instance: nothing is recorded while a probe is deleted"
                    ),
                }
                recorded.iter().any(|event| event.enabled)
            }
        };
        let pause = self.pause_recording(PauseReason::Deletion, anything);
        self.readers.drain();
        Some(pause)
    }

    /// Tells the readers when the removal has emptied the buffers. It has not when the probe was
    /// never enabled in our instance, which is not known of one that was there before this daemon.
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
        let filtered = own::set_filter(tracefs, instance, event, &probe.spec.filter);
        let restored = filtered.and_then(|_found| own::switch(tracefs, instance, event, probe.spec.enabled));
        if let Err(error) = restored {
            tracing::warn!(probe = %probe.name, %error, "a probe that could not be removed does not record");
        }
        if let Some(live) = self.live.get_mut(&probe.uid) {
            live.ever_enabled |= probe.spec.enabled;
        }
    }
}

/// What the owner of a probe should know when it has gone.
pub(super) fn note(probe: &Probe, found: Presence) -> &'static str {
    match found {
        Presence::Shared => "the places that another program had added to its event were left alone",
        Presence::Foreign => "the kernel's event of this name was another program's, and was left alone",
        Presence::Absent if probe.own.is_some() => "another program had removed its event from the kernel",
        Presence::Ours | Presence::Absent => "",
    }
}

fn removal_error(error: TracefsError, name: &ProbeName) -> ControlError {
    if error.errno() == Errno::EBUSY as i32 {
        return ControlError::InUse { name: name.clone() };
    }
    error.into()
}
