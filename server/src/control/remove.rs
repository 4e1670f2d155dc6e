//! Removing a probe.

use nix::errno::Errno;

use super::ControlError;
use super::command::RemoveRequest;
use super::controller::Controller;
use super::update::check_etag;
use super::{Probe, ProbeState};
use crate::model::{HitProfile, ProbeName};
use crate::tracefs::TracefsError;

impl Controller {
    pub(super) async fn remove(
        &mut self,
        request: RemoveRequest,
    ) -> Result<(ProbeName, Option<HitProfile>), ControlError> {
        if let Some(key) = &request.request
            && let Some(uid) = self.parts.store.carried_out(key).await?
            && self.parts.registry.by_uid(uid).is_none()
            && let Ok(name) = request.name.parse()
        {
            return Ok((name, None));
        }
        let probe = self.probe(&request.name)?;
        check_etag(&probe, request.etag.as_deref())?;
        self.require_uncounted(&probe.name)?;
        let profile = self.hit_profiles()?.into_iter().find(|profile| profile.uid == probe.uid);
        if request.validate_only {
            return Ok((probe.name.clone(), profile));
        }
        self.parts.store.begin_remove(probe.uid, request.request.as_ref()).await?;
        if let Err(error) = self.take_out_of_kernel(&probe, probe.enabled) {
            self.parts.store.abort_remove(probe.uid).await?;
            return Err(error);
        }
        if let Some(profile) = &profile {
            self.store_samples(std::slice::from_ref(profile)).await;
        }
        self.parts.registry.remove(&probe.name);
        self.parts.store.forget(probe.uid).await?;
        tracing::info!(probe = %probe.name, uid = %probe.uid, "deleted");
        Ok((probe.name.clone(), profile))
    }

    /// Switches a probe off and removes it from the kernel. Its removal empties the buffers of our instance when it was ever enabled there,
    /// so nothing is let in until they were read and are empty. `enabled` is what to go back to when somebody else holds the event.
    pub(super) fn take_out_of_kernel(&mut self, probe: &Probe, enabled: bool) -> Result<(), ControlError> {
        let exists = self.tracefs().has_event(probe.name.group(), probe.name.event());
        // What has failed is not in the kernel: an event of that name is somebody else's.
        if exists && !matches!(probe.state, ProbeState::Failed(_)) {
            let instance = &self.parts.instance;
            instance.set_enabled(&probe.name, false)?;
            let ever_enabled = self.live.get(&probe.uid).is_none_or(|live| live.ever_enabled);
            if ever_enabled {
                instance.set_recording(false)?;
                self.readers.drain();
            }
            let removed = self.tracefs().remove_kprobe(&probe.name);
            if ever_enabled {
                if removed.is_ok() {
                    self.readers.buffers_were_reset();
                }
                instance.set_recording(true)?;
            }
            if let Err(error) = removed {
                if enabled {
                    instance.set_enabled(&probe.name, true)?;
                }
                return Err(removal_error(error, &probe.name));
            }
        }
        self.sources.remove(probe.uid);
        self.live.remove(&probe.uid);
        self.sampled.remove(&probe.uid);
        Ok(())
    }
}

fn removal_error(error: TracefsError, name: &ProbeName) -> ControlError {
    if error.errno() == Errno::EBUSY as i32 {
        return ControlError::InUse { name: name.clone() };
    }
    error.into()
}
