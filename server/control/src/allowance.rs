//! Allowance of a caller: how many probes it may have, and for how long, by the limits of its roles.
//!
//! Owns that count, which the database keeps: every probe has the account that made it. Never counts
//! what exists in memory only: [`crate::auth::Holdings`] does.

use std::collections::HashMap;

use kprobed_lang::model::{LeaseTerm, ProbeName};
use kprobed_rights::{Bound, Limit};

use super::controller::Controller;
use crate::auth::{Asked, Caller};
use crate::error::Error;

impl Controller {
    /// Refuses one more probe of a caller that has as many as it may have. `made_by` has those of each
    /// account with those that the same batch makes, as far as they were counted.
    pub(super) fn require_room(
        &self,
        caller: &Caller,
        probe: &ProbeName,
        made_by: &mut HashMap<String, u64>,
    ) -> Result<(), Error> {
        let Some(bound) = self.bound(caller, Limit::Probes) else { return Ok(()) };
        let account = caller.principal.account();
        let counted = || self.parts.registry.made_by(&account);
        let held = made_by.entry(account.clone()).or_insert_with(counted);
        if *held >= bound.most {
            return Err(self.reached(caller, probe, &bound, Asked { held: *held, more: 1 }));
        }
        *held += 1;
        Ok(())
    }

    /// Refuses a probe that would last longer than its caller may have one. One that is held lasts as
    /// long as a connection.
    pub(super) fn require_lease(
        &self,
        caller: &Caller,
        probe: &ProbeName,
        lease: Option<&LeaseTerm>,
    ) -> Result<(), Error> {
        let Some(bound) = self.bound(caller, Limit::LeaseMaxS) else { return Ok(()) };
        let more = match lease {
            Some(LeaseTerm::Held(_)) => return Ok(()),
            Some(LeaseTerm::For(duration)) => {
                // A part of a second is one more.
                duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
            }
            None => u64::MAX,
        };
        if more <= bound.most {
            return Ok(());
        }
        Err(self.reached(caller, probe, &bound, Asked { held: 0, more }))
    }

    fn bound(&self, caller: &Caller, limit: Limit) -> Option<Bound> {
        self.parts.rights.bound(&caller.principal, limit)
    }

    fn reached(&self, caller: &Caller, probe: &ProbeName, bound: &Bound, asked: Asked) -> Error {
        self.parts.rights.reached(caller, Some(probe), bound, asked)
    }
}
