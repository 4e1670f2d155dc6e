//! Guarded writes to the daemon's own events: each directly follows a check that the event is the
//! daemon's.
//!
//! Owns that check. The kernel has no write that asks for the identity of an event, except for
//! deletion. Between the check and the write another program can take the name; so everything that
//! is written here concerns only the daemon's instance, and after switching on the event is checked
//! again, and switched off if it is not the daemon's. Never defines or deletes an event.

use super::observed::{ObservedEvent, lost};
use crate::error::Error;
use kprobed_host::tracefs::{Instance, OwnEvent, Presence, Tracefs, TracefsError};
use kprobed_lang::model::ProbeName;

/// Refuses if the event of that name is not ours.
pub(super) fn require(presence: Presence, name: &ProbeName) -> Result<(), Error> {
    if presence.is_ours() { Ok(()) } else { Err(missing(presence, name)) }
}

/// The error if this is found under the name, instead of our event.
pub(super) fn missing(presence: Presence, name: &ProbeName) -> Error {
    let lost = lost(&ObservedEvent::Lost(presence));
    Error::not_in_kernel(name, &lost.reason, &lost.hint)
}

/// Switches our event on or off in our instance. Returns what was found under its name: if that is
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

/// Sets the filter of our event in our instance; empty removes it. Returns what was found under its
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
