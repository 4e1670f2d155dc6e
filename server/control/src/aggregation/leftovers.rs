//! Cleanup after a daemon that was killed: its instance for aggregations, the triggers in it, and
//! synthetic events.
//!
//! Owns which of these are the daemon's, by their names. Never touches what another program made.

use super::{LATENCY_FIELD, SYNTHETIC_PREFIX, instance_name};
use crate::error::Error;
use kprobed_host::tracefs::{Instance, Tracefs};
use kprobed_lang::model::ProbeName;

/// Removes all of it. Otherwise the kernel would refuse to delete the probes that were counted.
///
/// # Errors
/// When the kernel cannot be asked. What cannot be removed is left, with a warning.
pub(crate) fn remove_leftovers(tracefs: &Tracefs, own: &str) -> Result<(), Error> {
    // Kernels without synthetic events have no latencies.
    let synthetic: Vec<_> =
        tracefs.list_synthetic().unwrap_or_default().iter().filter_map(|listed| ours(listed)).collect();
    if let Some(instance) = Instance::find(tracefs, &instance_name(own)) {
        let listed = tracefs.kprobe_list()?;
        let probes = listed.probes().iter().filter_map(|listed| listed.name.clone());
        let events = synthetic.iter().filter_map(|event| ProbeName::new("synthetic", event).ok());
        let events: Vec<_> = events.chain(probes).collect();
        // A trigger that others refer to goes after them.
        while remove_triggers(&instance, &events) {}
        if let Err(error) = instance.remove() {
            tracing::warn!(%error, "cannot remove an instance that an earlier run left");
        }
    }
    for event in synthetic {
        if let Err(error) = tracefs.remove_synthetic(&event) {
            tracing::warn!(event, %error, "cannot remove an instance that an earlier run left");
        }
    }
    Ok(())
}

/// Removes the triggers that can be removed. Returns whether there were any.
fn remove_triggers(instance: &Instance, events: &[ProbeName]) -> bool {
    let mut removed = false;
    for event in events {
        for trigger in instance.triggers(event).unwrap_or_default() {
            removed |= instance.remove_trigger(event, &trigger).is_ok();
        }
    }
    removed
}

/// The name of a synthetic event that we made.
fn ours(listed: &str) -> Option<String> {
    let (name, fields) = listed.split_once(' ')?;
    let number = name.strip_prefix(SYNTHETIC_PREFIX)?;
    let made = number.parse::<u64>().is_ok() && fields == format!("u64 {LATENCY_FIELD}");
    made.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_events_are_not_ours() {
        assert_eq!(ours("kprobed_latency_7 u64 latency_ns"), Some("kprobed_latency_7".to_owned()));
        for other in [
            "kprobed_latency_ u64 latency_ns",
            "kprobed_latency_7 u64 lat",
            "kprobed_latency_7 u64 latency_ns; u32 x",
            "wakeup_latency u64 latency_ns",
            "x",
        ] {
            assert_eq!(ours(other), None, "{other}");
        }
    }
}
