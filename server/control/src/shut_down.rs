//! End of the control thread: what the daemon leaves in the kernel.
//!
//! Owns the steps that remove everything, each judged right before it is written: what another program has
//! made of a name meanwhile stays. Never decides when the daemon stops.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::controller::ControllerParts;
use super::plan::{self, PlannedStep};
use super::step::Step;
use kprobed_host::tracefs::{Deleted, Presence};
use kprobed_trace::pipeline::Readers;

/// What the daemon leaves in the kernel when it stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExit {
    /// The daemon removes everything that it put into the kernel. The next start puts it back.
    #[default]
    Restore,
    /// Probes stay armed and go on recording into the daemon's instance.
    Keep,
}

/// Removes from the kernel what the daemon has put into it.
pub(super) fn take_everything_out(parts: &ControllerParts, readers: Readers) {
    let tracefs = &parts.mounted.tracefs;
    let probes = parts.registry.all();
    let own: BTreeMap<_, _> =
        probes.iter().filter_map(|probe| Some((&probe.name, probe.own.as_ref()?))).collect();
    // Read once: the ids are checked right before each write.
    let list = tracefs.kprobe_list().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot list the probes while stopping");
        Arc::default()
    });
    let mut readers = Some(readers);
    let made = own.iter().filter(|(_, event)| !event.is_of_host()).map(|(name, _)| *name);
    for planned in plan::shut_down(parts.instance.name(), own.keys().copied(), made) {
        let done = match &planned {
            PlannedStep::Event { name, step: Step::Delete, .. } => match own.get(name) {
                Some(event) => tracefs.delete_own(&list, event).map(|deleted| {
                    if !matches!(deleted, Deleted::Done | Deleted::NotThere(Presence::Absent)) {
                        tracing::info!(event = %name, "left the event of another program in the kernel");
                    }
                }),
                None => Ok(()),
            },
            PlannedStep::Event { name, .. } => {
                let is_ours = own.get(name).map(|event| tracefs.presence_in(&list, event));
                match is_ours.transpose() {
                    Ok(Some(presence)) if !presence.is_ours() => Ok(()),
                    Ok(_) => parts.instance.set_enabled(name, false),
                    Err(error) => Err(error),
                }
            }
            PlannedStep::Instance { .. } => {
                if let Some(readers) = readers.take() {
                    readers.stop();
                }
                parts.instance.clone().remove()
            }
        };
        match done {
            Ok(()) => tracing::debug!(step = %planned, "stopping"),
            Err(error) => tracing::warn!(step = %planned, %error, "cannot carry out a step while stopping"),
        }
    }
}
