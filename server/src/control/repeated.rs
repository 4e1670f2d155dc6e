//! Requests that clients may repeat: whether one was carried out before.
//!
//! Owns when the database is asked: once for all requests of a batch, most of which are new. What is
//! remembered, and for how long, is in [`crate::store`].

use std::collections::HashSet;

use super::apply::Grounds;
use super::command::Asked;
use super::controller::Controller;
use crate::error::Error;
use crate::store::RequestKey;
use kprobed_lang::model::ProbeUid;

impl Controller {
    /// The ids of requests that were not carried out before, as far as that is known: one question about
    /// all of them instead of one about each.
    pub(super) async fn new_requests(&self, changes: &[Asked]) -> HashSet<String> {
        let keys: Vec<_> = changes.iter().filter_map(|one| one.change.request()).collect();
        if keys.len() < 2 {
            return HashSet::new();
        }
        let ids: Vec<_> = keys.iter().map(|key| key.id.as_str()).collect();
        match self.parts.store.remembered(&ids).await {
            Ok(known) => ids.into_iter().filter(|id| !known.contains(*id)).map(str::to_owned).collect(),
            // Then each change is refused for it.
            Err(_) => HashSet::new(),
        }
    }

    /// The probe that a request was about, if it was carried out before.
    pub(super) async fn carried_out(
        &self,
        request: Option<&RequestKey>,
        grounds: &Grounds<'_>,
    ) -> Result<Option<ProbeUid>, Error> {
        match request {
            Some(key) if !grounds.new_requests.contains(&key.id) => {
                Ok(self.parts.store.carried_out(key).await?)
            }
            _ => Ok(None),
        }
    }
}
