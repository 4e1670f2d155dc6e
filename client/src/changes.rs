//! Batches of changes: create, update and delete many probes with one request.

use std::time::Duration;

use tonic::Request;

use crate::api::probe_change::Change;
use crate::api::probe_outcome::Outcome;
use crate::api::{
    ApplyProbesRequest, DeleteProbeRequest, DeletedProbe, PlannedStep, ProbeChange, ReconcileProbesRequest,
    ReconciledProbe,
};
use crate::client::Client;
use crate::error::Error;

/// Changes that double the time of a request.
const CHANGES_IN_A_LIMIT: u32 = 250;

/// Outcome of each change, in the order of the requests.
pub type Outcomes<T> = Vec<Result<T, Error>>;

/// Planned outcomes of several changes.
#[derive(Debug)]
pub struct PlannedChanges {
    /// One for each change.
    pub outcomes: Outcomes<Outcome>,
    /// The steps of all changes, in order.
    pub plan: Vec<PlannedStep>,
}

impl Client {
    /// How many changes one request can make.
    pub const CHANGES_AT_ONCE: usize = 1000;

    /// How long a request may take that makes so many changes, if one of a single change may take `limit`: twice
    /// as long for 250 changes, five times as long for 1000. The kernel needs its time for each of them.
    pub fn time_for_changes(limit: Duration, changes: usize) -> Duration {
        let further = u32::try_from(changes.saturating_sub(1)).unwrap_or(u32::MAX);
        limit.saturating_add((limit / CHANGES_IN_A_LIMIT).saturating_mul(further))
    }

    /// Has the daemon look at all its probes now, and repair those that others have changed. `force`: also those
    /// that were repaired too often or too recently. Returns the outcome of each.
    ///
    /// # Errors
    /// When the daemon refuses, or does not answer in the time for the most changes that one request can make: how
    /// many probes it repairs is known only to it.
    pub async fn reconcile_probes(&self, force: bool) -> Result<Vec<ReconciledProbe>, Error> {
        let request = ReconcileProbesRequest { force, validate_only: false };
        let send = async |request: Request<_>| self.reconciling().reconcile_probes(request).await;
        Ok(self.change(Self::CHANGES_AT_ONCE, request, send).await?.probes)
    }

    /// Makes up to [`Client::CHANGES_AT_ONCE`] independent changes in one request, at the cost of
    /// one.
    ///
    /// # Errors
    /// What keeps the whole request from being carried out. Each change has an outcome of its own.
    pub async fn apply_probes(&self, changes: Vec<Change>) -> Result<Outcomes<Outcome>, Error> {
        Ok(self.send_changes(changes, false, false).await?.outcomes)
    }

    /// Makes up to [`Client::CHANGES_AT_ONCE`] changes, or none of them: when one fails, the others
    /// have the outcome `BATCH_FAILED`.
    ///
    /// # Errors
    /// As [`Client::apply_probes`].
    pub async fn apply_all_or_nothing(&self, changes: Vec<Change>) -> Result<Outcomes<Outcome>, Error> {
        Ok(self.send_changes(changes, true, false).await?.outcomes)
    }

    async fn send_changes(
        &self,
        changes: Vec<Change>,
        all_or_nothing: bool,
        is_plan: bool,
    ) -> Result<PlannedChanges, Error> {
        let asked = changes.len();
        let changes: Vec<_> =
            changes.into_iter().map(|change| ProbeChange { change: Some(change) }).collect();
        let request = ApplyProbesRequest { changes, all_or_nothing };
        let send = async |request: Request<_>| self.probes().apply_probes(request).await;
        let limit = self.time_for(asked);
        let answer = self.call_within(limit, request, send).await;
        let response = if is_plan { answer } else { answer.map_err(Error::of_change) }?;
        let outcomes = response.outcomes.into_iter().map(|outcome| match outcome.outcome? {
            Outcome::Failed(failed) => Some(Err(failed.into())),
            done => Some(Ok(done)),
        });
        let outcomes: Option<Vec<_>> = outcomes.collect();
        let outcomes = outcomes.filter(|outcomes| outcomes.len() == asked);
        Ok(PlannedChanges { outcomes: outcomes.ok_or(Error::Incomplete("outcomes"))?, plan: response.plan })
    }

    /// Checks up to [`Client::CHANGES_AT_ONCE`] changes, and makes none of them. Returns what would
    /// become of each, and what would be done for all.
    ///
    /// # Errors
    /// As [`Client::apply_probes`].
    pub async fn plan_probes(&self, mut changes: Vec<Change>) -> Result<PlannedChanges, Error> {
        for change in &mut changes {
            match change {
                Change::Create(request) => request.validate_only = true,
                Change::Update(request) => request.validate_only = true,
                Change::Delete(request) => request.validate_only = true,
            }
        }
        self.send_changes(changes, false, true).await
    }

    /// Removes probes: those that keep recording pay for it no more than for the removal of one.
    /// See [`Client::apply_probes`].
    ///
    /// # Errors
    /// As [`Client::apply_probes`].
    pub async fn delete_probes(
        &self,
        requests: Vec<DeleteProbeRequest>,
    ) -> Result<Outcomes<DeletedProbe>, Error> {
        let changes = requests.into_iter().map(Change::Delete).collect();
        let deleted = |outcome: Result<Outcome, Error>| match outcome? {
            Outcome::Deleted(deleted) => Ok(deleted),
            _ => Err(Error::Incomplete("outcomes")),
        };
        Ok(self.apply_probes(changes).await?.into_iter().map(deleted).collect())
    }
}
