//! Removing probes.

use crate::api::probe_deletion::Outcome;
use crate::api::{DeleteProbeRequest, DeleteProbesRequest, DeletedProbe, HitProfile};
use crate::client::Client;
use crate::error::Error;

impl Client {
    /// How many probes one request can remove.
    pub const DELETIONS_AT_ONCE: usize = 64;

    /// Removes a probe. Returns its last hit counts, if the kernel had it.
    pub async fn delete_probe(&self, request: DeleteProbeRequest) -> Result<Option<HitProfile>, Error> {
        let response = self.call(request, async |request| self.probes().delete_probe(request).await).await?;
        Ok(response.profile)
    }

    /// Removes up to [`Client::DELETIONS_AT_ONCE`] probes in one request: the probes that keep recording pay for it no more than for the removal of
    /// one. Returns what became of each, in the order of the requests.
    pub async fn delete_probes(
        &self,
        deletions: Vec<DeleteProbeRequest>,
    ) -> Result<Vec<Result<DeletedProbe, Error>>, Error> {
        let asked = deletions.len();
        let request = DeleteProbesRequest { deletions };
        let response = self.call(request, async |request| self.probes().delete_probes(request).await).await?;
        let outcomes = response.deletions.into_iter().map(|deletion| match deletion.outcome {
            Some(Outcome::Deleted(deleted)) => Some(Ok(deleted)),
            Some(Outcome::Failed(failed)) => Some(Err(failed.into())),
            None => None,
        });
        let outcomes: Option<Vec<_>> = outcomes.collect();
        outcomes.filter(|outcomes| outcomes.len() == asked).ok_or(Error::Incomplete("deletions"))
    }
}
