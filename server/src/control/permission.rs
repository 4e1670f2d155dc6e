//! Permission for a change: what a request is about, once that is known, against the roles.
//!
//! Owns where the control thread asks: on a probe as it is, and on the probe that it would become.
//! Never decides itself: [`kprobed_rights`] does.

use super::Probe;
use super::controller::Controller;
use crate::auth::{Caller, Rights};
use crate::error::Error;
use kprobed_lang::model::{Labels, ProbeName};
use kprobed_rights::{Object, Read, Reads, RuleName};

impl Controller {
    /// Refuses a change of a probe that its caller may not make.
    pub(super) fn require(&self, caller: &Caller, probe: &Probe) -> Result<Option<RuleName>, Error> {
        self.parts.rights.require(caller, Some(&probe.object()))
    }

    /// Refuses a request about an event of the host that its caller may not make.
    pub(super) fn require_on_event(
        &self,
        caller: &Caller,
        event: &ProbeName,
    ) -> Result<Option<RuleName>, Error> {
        on_event(&self.parts.rights, caller, event)
    }
}

/// Refuses a request about an event of the host that its caller may not make.
pub(crate) fn on_event(
    rights: &Rights,
    caller: &Caller,
    event: &ProbeName,
) -> Result<Option<RuleName>, Error> {
    rights.require(caller, Some(&host_event(event, &Labels::default())))
}

/// An event of the host, for rules. It has no labels and no function, and all of its fields can be
/// read.
pub(crate) const fn host_event<'a>(event: &'a ProbeName, none: &'a Labels) -> Object<'a> {
    let reads = Reads::NONE.with(Read::HostEvents);
    Object { name: event, labels: none, functions: &[], module: None, reads }
}
