//! Requests that clients may repeat: whether one was carried out before.
//!
//! Owns when the database is asked: once for all requests of a batch, most of which are new; and who may have the
//! answer. What is
//! remembered, and for how long, is in [`crate::store`].

use std::collections::HashSet;
use std::sync::Arc;

use super::command::Asked;
use super::controller::Controller;
use super::judge::Grounds;
use super::{Probe, Sight};
use crate::auth::Caller;
use crate::error::Error;
use crate::store::RequestKey;
use kprobed_lang::model::ProbeUid;

impl Controller {
    /// The requests that were not carried out before, as far as that is known: one question about all of them
    /// instead of one about each.
    pub(super) async fn new_requests(&self, changes: &[Asked]) -> HashSet<(String, String)> {
        let keys: Vec<_> = changes.iter().filter_map(|one| one.change.request()).collect();
        if keys.len() < 2 {
            return HashSet::new();
        }
        match self.parts.store.remembered(&keys).await {
            Ok(known) => keys.into_iter().map(named).filter(|named| !known.contains(named)).collect(),
            // Then each change is refused for it.
            Err(_) => HashSet::new(),
        }
    }

    /// The probe that a request was about, if it was carried out before. The caller's rights were asked before.
    pub(super) async fn carried_out(
        &self,
        request: Option<&RequestKey>,
        grounds: &Grounds<'_>,
    ) -> Result<Option<ProbeUid>, Error> {
        match request {
            Some(key) if !grounds.new_requests.contains(&named(key)) => {
                Ok(self.parts.store.carried_out(key).await?)
            }
            _ => Ok(None),
        }
    }

    /// The answer to a repeated request: its probe as it is now, if the caller may look at it.
    pub(super) fn repeated(
        &self,
        caller: &Caller,
        request: &RequestKey,
        uid: ProbeUid,
    ) -> Result<Arc<Probe>, Error> {
        // If the probe has gone since, the outcome is gone with it.
        let probe = self.parts.registry.by_uid(uid).ok_or_else(|| Error::no_probe(&request.id))?;
        Sight::new(&self.parts.rights, caller.clone()).require(&probe)?;
        Ok(self.shown(&probe))
    }
}

fn named(key: &RequestKey) -> (String, String) {
    (key.principal.clone(), key.id.clone())
}
