//! Writes to events of ours: each right behind a look at whether the event is ours.
//!
//! The kernel has no write that asks for the identity of an event, except for deletion. Between the
//! look and the write somebody else can take the name; all that is written here belongs to our
//! instance only, and switching on is looked at again, and undone, afterwards.

use super::ControlError;
use super::observed::{ObservedEvent, lost};
use kprobed_host::tracefs::{Instance, OwnEvent, Presence, Tracefs, TracefsError};
use kprobed_lang::model::ProbeName;

/// Refuses when what is there under the name is not ours.
pub(super) fn require(presence: Presence, name: &ProbeName) -> Result<(), ControlError> {
    if presence.is_ours() { Ok(()) } else { Err(missing(presence, name)) }
}

/// What is said when this is there under the name, and not our event.
pub(super) fn missing(presence: Presence, name: &ProbeName) -> ControlError {
    let lost = lost(&ObservedEvent::Lost(presence));
    ControlError::NotInKernel { name: name.clone(), reason: lost.reason, hint: lost.hint }
}

/// Switches our event on or off in our instance. Returns what is there under its name: if that is
/// not ours, nothing was changed.
pub(super) fn switch(
    tracefs: &Tracefs,
    instance: &Instance,
    own: &OwnEvent,
    on: bool,
) -> Result<Presence, TracefsError> {
    let presence = tracefs.presence(own)?;
    if !presence.is_ours() {
        return Ok(presence);
    }
    instance.set_enabled(&own.name, on)?;
    if !on {
        return Ok(presence);
    }
    let presence = tracefs.presence(own)?;
    if presence == Presence::Foreign {
        instance.set_enabled(&own.name, false)?;
    }
    Ok(presence)
}

/// Sets the filter of our event in our instance; empty removes it. Returns what is there under its
/// name: if that is not ours, nothing was changed.
pub(super) fn set_filter(
    tracefs: &Tracefs,
    instance: &Instance,
    own: &OwnEvent,
    filter: &str,
) -> Result<Presence, TracefsError> {
    let presence = tracefs.presence(own)?;
    if presence.is_ours() {
        instance.set_filter(&own.name, filter)?;
    }
    Ok(presence)
}
