//! Batches of changes: create, update and delete many probes with one request.

use crate::api::probe_change::Change;
use crate::api::probe_outcome::Outcome;
use crate::api::{
    ApplyProbesRequest, CreateProbeRequest, DeleteProbeRequest, DeletedProbe, PlannedStep, Probe,
    ProbeChange, UpdateProbeRequest,
};
use crate::client::Client;
use crate::error::Error;

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

    /// Makes up to [`Client::CHANGES_AT_ONCE`] independent changes in one request, at the cost of
    /// one.
    ///
    /// # Errors
    /// What keeps the whole request from being carried out. Each change has an outcome of its own.
    pub async fn apply_probes(&self, changes: Vec<Change>) -> Result<Outcomes<Outcome>, Error> {
        Ok(self.send_changes(changes, false).await?.outcomes)
    }

    /// Makes up to [`Client::CHANGES_AT_ONCE`] changes, or none of them: when one fails, the others
    /// have the outcome `BATCH_FAILED`.
    ///
    /// # Errors
    /// As [`Client::apply_probes`].
    pub async fn apply_all_or_nothing(&self, changes: Vec<Change>) -> Result<Outcomes<Outcome>, Error> {
        Ok(self.send_changes(changes, true).await?.outcomes)
    }

    async fn send_changes(
        &self,
        changes: Vec<Change>,
        all_or_nothing: bool,
    ) -> Result<PlannedChanges, Error> {
        let asked = changes.len();
        let changes = changes.into_iter().map(|change| ProbeChange { change: Some(change) }).collect();
        let request = ApplyProbesRequest { changes, all_or_nothing };
        let response = self.apply(request).await?;
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
        self.send_changes(changes, false).await
    }

    /// Defines probes: see [`Client::apply_probes`].
    ///
    /// # Errors
    /// As [`Client::apply_probes`].
    pub async fn create_probes(&self, requests: Vec<CreateProbeRequest>) -> Result<Outcomes<Probe>, Error> {
        let changes = requests.into_iter().map(Change::Create).collect();
        Ok(self.apply_probes(changes).await?.into_iter().map(probe).collect())
    }

    /// Changes probes: see [`Client::apply_probes`].
    ///
    /// # Errors
    /// As [`Client::apply_probes`].
    pub async fn update_probes(&self, requests: Vec<UpdateProbeRequest>) -> Result<Outcomes<Probe>, Error> {
        let changes = requests.into_iter().map(Change::Update).collect();
        Ok(self.apply_probes(changes).await?.into_iter().map(probe).collect())
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

fn probe(outcome: Result<Outcome, Error>) -> Result<Probe, Error> {
    match outcome? {
        Outcome::Probe(probe) => Ok(*probe),
        _ => Err(Error::Incomplete("outcomes")),
    }
}
