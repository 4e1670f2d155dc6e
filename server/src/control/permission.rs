//! Permission for a change: what a request is about, once that is known, against the roles.
//!
//! Owns where the control thread asks: on a probe as it is, and on the probe that it would become.
//! Never decides itself: [`kprobed_rights`] does.

use super::controller::Controller;
use super::{ControlError, Probe};
use crate::auth::{Caller, Rights};
use kprobed_lang::model::{Labels, ProbeName};
use kprobed_rights::{Object, Read, Reads};

impl Controller {
    /// Refuses a change of a probe that its caller may not make.
    pub(super) fn require(&self, caller: &Caller, probe: &Probe) -> Result<(), ControlError> {
        Ok(self.parts.rights.require(caller, Some(&probe.object()))?)
    }

    /// Refuses a request about an event of the host that its caller may not make.
    pub(super) fn require_on_event(&self, caller: &Caller, event: &ProbeName) -> Result<(), ControlError> {
        on_event(&self.parts.rights, caller, event)
    }
}

/// Refuses a request about an event of the host that its caller may not make. Such an event has no
/// labels and no function, and all of its fields can be read.
pub(crate) fn on_event(rights: &Rights, caller: &Caller, event: &ProbeName) -> Result<(), ControlError> {
    let object = Object {
        name: event,
        labels: &Labels::default(),
        functions: &[],
        module: None,
        reads: Reads::NONE.with(Read::HostEvents),
    };
    Ok(rights.require(caller, Some(&object))?)
}
