//! Removal of probes, without emptying the buffers of those that record.
//!
//! Owns how room is made for a deletion: nothing, a pause, or a hand-over. Never deletes an event
//! that is not the daemon's.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use nix::errno::Errno;

use super::command::{Changed, RemoveRequest, Removed};
use super::controller::Controller;
use super::handover::Recorded;
use super::judge::{Grounds, Judged, Work};
use super::pause::Pause;
use super::update::check_etag;
use super::{Probe, own};
use crate::auth::Caller;
use crate::error::Error;
use kprobed_event::PauseReason;
use kprobed_host::tracefs::{Deleted, Instance, Presence, Tracefs, TracefsError};
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::{HitProfile, ProbeName, ProbeUid};

/// From so many removals on, a hand-over takes less time than emptying the buffers of the present
/// instance with each of them.
const WORTH_AN_INSTANCE: usize = 8;

/// How a probe is switched off, given what was found under its name.
type End = fn(&Instance, &Probe, Presence) -> Result<(), TracefsError>;

/// What the daemon does so that deletions empty no buffer in use. Nothing if what is deleted was never enabled in our
/// instance, or does not exist.
#[derive(Debug)]
pub(super) enum Room {
    /// A pause: nothing else records. What was recorded is read first, and nothing is recorded
    /// meanwhile.
    Pause,
    /// A hand-over to a second instance, in which what is deleted was never enabled. Each deletion
    /// also takes a fraction of the time.
    HandOver {
        /// What goes on being recorded.
        recorded: Vec<Recorded>,
    },
}

impl Room {
    /// For so many deletions, given what else is recorded.
    pub(super) fn beside(recorded: Vec<Recorded>, deletions: usize) -> Self {
        if recorded.iter().any(|event| event.enabled) || deletions >= WORTH_AN_INSTANCE {
            return Self::HandOver { recorded };
        }
        Self::Pause
    }
}

impl Controller {
    /// Checks whether a probe can be deleted.
    pub(super) async fn judge_removal(
        &self,
        caller: &Caller,
        request: RemoveRequest,
        grounds: &mut Grounds<'_>,
    ) -> Result<Judged, Error> {
        if let Some(key) = &request.request
            && let Some(uid) = self.parts.store.carried_out(key).await?
            && self.parts.registry.by_uid(uid).is_none()
            && let Ok(name) = request.name.parse()
        {
            return Ok(Judged::Done(Changed::Removed(Removed { name, profile: None, note: "" })));
        }
        let probe = self.probe(caller, &request.name)?;
        let rule = self.require_removal(caller, &probe)?;
        check_etag(&probe, request.etag.as_deref())?;
        probe.require_undeclared(request.take_over)?;
        self.require_uncounted(caller, &probe.name)?;
        let profile = match &grounds.profiles {
            Ok(profiles) => profiles.get(&probe.uid).cloned(),
            // Other programs can add and remove probes at any time: read the counts of this one
            // again.
            Err(_) => self.profiles_by_uid()?.remove(&probe.uid),
        };
        grounds.claim(&probe, true)?;
        let work = Work::taking_out(&probe, None, profile);
        Ok(Judged::Work(vec![work.asked("delete", (caller, rule), request.request)]))
    }

    /// The hit counts of all probes that the kernel has.
    pub(super) fn profiles_by_uid(&self) -> Result<HashMap<ProbeUid, HitProfile>, Error> {
        Ok(self.hit_profiles()?.into_iter().map(|profile| (profile.uid, profile)).collect())
    }

    /// Removes probes from the kernel that could not be stored. Returns those that stay: the
    /// database still says that they go, and the next start removes them.
    pub(super) fn take_back(&mut self, probes: &[Arc<Probe>]) -> HashSet<ProbeUid> {
        let mut left = HashSet::new();
        if probes.is_empty() {
            return left;
        }
        for (probe, outcome) in probes.iter().zip(self.take_all_out_of_kernel(probes)) {
            let Err(error) = outcome else { continue };
            left.insert(probe.uid);
            tracing::error!(probe = %probe.name, %error, "cannot remove a probe that could not be stored");
            if let Some(own) = &probe.own
                && let Err(error) = own::switch(self.tracefs(), &self.parts.instance, (probe, own), false)
            {
                tracing::error!(probe = %probe.name, %error, "cannot switch it off either");
            }
        }
        left
    }

    pub(super) fn forget_live(&mut self, gone: &[ProbeUid]) {
        self.sources.remove(gone);
        for uid in gone {
            self.live.remove(uid);
        }
    }

    /// Switches probes off and removes them from the kernel; an event of the host stays there. Their
    /// removal empties the buffers of our instance if one of them was ever enabled in it. So if others
    /// record, the daemon first switches to another instance. A probe that cannot be removed is as
    /// before. Returns what was found under the name of each: only what was ours is gone.
    pub(super) fn take_all_out_of_kernel(&mut self, probes: &[Arc<Probe>]) -> Vec<Result<Presence, Error>> {
        let mut outcomes = self.switch_off(probes, own::end);
        let off = || probes.iter().zip(&outcomes).filter(|(_, outcome)| is_off(outcome));
        let wiping = off().find(|(probe, _)| self.is_wiping(probe)).map(|(probe, _)| probe.name.clone());
        let doomed: HashSet<_> = off().map(|(probe, _)| probe.uid).collect();
        let pause = wiping.and_then(|wiping| self.make_room(&wiping, &doomed));
        delete_off(self.tracefs(), probes, &mut outcomes);
        if let Some(pause) = pause {
            self.tell_reset();
            self.resume_recording(&pause, &self.parts.instance.clone());
        }
        if probes.iter().any(|probe| probe.is_of_host()) {
            // Their records stay in the buffers, and belong to them for as long as they are known.
            self.readers.drain();
        }
        let gone = probes.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
        self.forget_live(&gone.map(|(probe, _)| probe.uid).collect::<Vec<_>>());
        for (probe, _) in probes.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_err()) {
            self.restore(probe);
        }
        outcomes
    }

    /// Removes from the kernel everything that the daemon has put into it: its instance goes before its events, so
    /// that no deletion empties a buffer.
    pub(super) fn take_everything_out(self) {
        let probes = self.parts.registry.all();
        let mut outcomes = self.switch_off(&probes, own::switch_off);
        let Self { parts, readers, .. } = self;
        readers.stop();
        if let Err(error) = parts.instance.clone().remove() {
            tracing::warn!(%error, "cannot remove the instance while stopping");
        }
        for (probe, outcome) in probes.iter().zip(&mut outcomes) {
            if let Err(error) = outcome {
                // It may be that it can be deleted all the same, now that the instance has gone.
                tracing::warn!(probe = %probe.name, %error, "cannot switch a probe off while stopping");
                *outcome = Ok(Presence::Ours);
            }
        }
        delete_off(&parts.mounted.tracefs, &probes, &mut outcomes);
        for (probe, outcome) in probes.iter().zip(outcomes) {
            let name = &probe.name;
            match outcome {
                Err(error) => tracing::warn!(probe = %name, %error, "cannot remove a probe while stopping"),
                Ok(Presence::Foreign | Presence::Shared) => {
                    tracing::info!(event = %name, "left the event of another program in the kernel");
                }
                Ok(Presence::Ours | Presence::Absent) => {}
            }
        }
    }

    /// Switches probes off, in this way. Returns what was found under the name of each.
    fn switch_off(&self, probes: &[Arc<Probe>], end: End) -> Vec<Result<Presence, Error>> {
        let list = if probes.is_empty() { Ok(Arc::default()) } else { self.tracefs().kprobe_list() };
        let switch_off = |probe: &Arc<Probe>| -> Result<Presence, Error> {
            let list = list.as_ref().map_err(TracefsError::again)?;
            let presence = own::presence(self.tracefs(), list, probe)?;
            end(&self.parts.instance, probe, presence)?;
            Ok(presence)
        };
        probes.iter().map(switch_off).collect()
    }

    /// Whether the removal of a probe empties the buffers of our instance. For an event that is
    /// older than this run of the daemon that is not known.
    pub(super) fn is_wiping(&self, probe: &Probe) -> bool {
        let is_defined = probe.own.as_ref().is_some_and(|own| !own.is_of_host());
        is_defined && self.live.get(&probe.uid).is_none_or(|live| live.ever_enabled)
    }

    /// Makes room, so that the removal of `doomed` empties nothing in use. If there can be no
    /// second instance, recording is paused.
    fn make_room(&mut self, wiping: &ProbeName, doomed: &HashSet<ProbeUid>) -> Option<Pause> {
        let anything = match Room::beside(self.recorded_besides(doomed), doomed.len()) {
            Room::Pause => false,
            Room::HandOver { recorded } => {
                let options = self.parts.instance_options.clone();
                let settle = |next: &Instance| next.clear_filter_and_settle(wiping);
                match self.hand_over(&options, (PauseReason::Deletion, &settle), &recorded) {
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

    /// Tells the readers if the removal has emptied the buffers. It has not if the probe was never
    /// enabled in our instance. For a probe from before this run that is not known.
    fn tell_reset(&self) {
        match self.parts.instance.is_reset() {
            Ok(false) => {}
            Ok(true) => self.readers.buffers_were_reset(),
            Err(error) => tracing::warn!(%error, "cannot look whether the buffers are empty"),
        }
    }

    /// Makes a probe record again that could not be removed. The daemon may use another instance by
    /// now.
    fn restore(&mut self, probe: &Probe) {
        let Some(event) = &probe.own else { return };
        let (tracefs, instance) = (self.tracefs(), &self.parts.instance);
        let filtered = own::set_filter(tracefs, instance, event, probe);
        let restored =
            filtered.and_then(|()| own::switch(tracefs, instance, (probe, event), probe.is_to_record()));
        if let Err(error) = restored {
            tracing::warn!(probe = %probe.name, %error, "a probe that could not be removed does not record");
        }
        if let Some(live) = self.live.get_mut(&probe.uid) {
            live.ever_enabled |= probe.is_to_record();
        }
    }
}

/// What the owner of a probe should know when the probe is removed.
pub(super) fn note(probe: &Probe, found: Presence) -> &'static str {
    match found {
        _ if probe.kind == ProbeKind::Event => "",
        Presence::Shared => "the probe points that another program had added to its event were left alone",
        Presence::Foreign => "the kernel's event of this name was another program's, and was left alone",
        Presence::Absent if probe.own.is_some() => "another program had removed its event from the kernel",
        Presence::Ours | Presence::Absent => "",
    }
}

fn is_off(outcome: &Result<Presence, Error>) -> bool {
    outcome.as_ref().is_ok_and(|found| found.is_ours())
}

/// Deletes the events of those of these probes that were switched off.
fn delete_off(tracefs: &Tracefs, probes: &[Arc<Probe>], outcomes: &mut [Result<Presence, Error>]) {
    let list = tracefs.kprobe_list();
    for (probe, outcome) in probes.iter().zip(outcomes) {
        if is_off(outcome)
            && let Some(event) = probe.own.as_ref().filter(|event| !event.is_of_host())
        {
            let list = list.as_ref().map_err(TracefsError::again);
            match list.and_then(|list| tracefs.delete_own(list, event)) {
                Ok(Deleted::Done) => {}
                Ok(Deleted::NotThere(found)) => *outcome = Ok(found),
                Err(error) if error.errno() == Errno::EBUSY as i32 => {
                    *outcome = Err(Error::in_use(&probe.name));
                }
                Err(error) => *outcome = Err(error.into()),
            }
        }
    }
}
