//! `ReconcileService`: repairs on demand, and foreign events.
//!
//! Owns the messages. Never decides what is repaired or adopted.

use std::collections::HashSet;
use std::mem::take;

use kprobed_proto::v1;
use kprobed_proto::v1::reconcile_service_server::ReconcileService;
use tonic::{Request, Response, Status};

use super::access;
use super::messages;
use super::probes::{PROBE_PAGE, non_empty, page_size, probe_message, request_key};
use super::services::Services;
use crate::turns;
use kprobed_control::auth::Caller;
use kprobed_control::error::Error;
use kprobed_control::{AdoptRequest, Reconciled, Reconciliation};
use kprobed_lang::model::Glob;

#[tonic::async_trait]
impl ReconcileService for Services {
    async fn list_foreign_probes(
        &self,
        request: Request<v1::ListForeignProbesRequest>,
    ) -> Result<Response<v1::ListForeignProbesResponse>, Status> {
        let sight = self.sight(&request)?;
        let request = request.into_inner();
        let limit = page_size(request.page_size, PROBE_PAGE) as usize;
        let glob = non_empty(request.name_glob).map(Glob::new);
        // The token is the last name of the page before: it stays good whatever is added or deleted
        // in between.
        let after = non_empty(request.page_token);
        if after.as_ref().is_some_and(|name| !name.contains('/')) {
            return Err(Error::page_token().into());
        }
        let selected = |name: &str, place: &str| {
            glob.as_ref().is_none_or(|glob| glob.matches(name)) && sight.shows_foreign(name, place)
        };
        // Reads the code of each place, and the symbol table when modules have changed.
        let mut page = turns::blocking(|| self.foreign.page(after.as_deref(), limit + 1, selected))?;
        let more = page.len() > limit;
        page.truncate(limit);
        Ok(Response::new(v1::ListForeignProbesResponse {
            next_page_token: page.last().filter(|_| more).map(|last| last.name.clone()).unwrap_or_default(),
            events: page,
        }))
    }

    async fn adopt_probe(
        &self,
        request: Request<v1::AdoptProbeRequest>,
    ) -> Result<Response<v1::AdoptProbeResponse>, Status> {
        let caller = access::caller(&request)?;
        let request = adoption(&caller, request.into_inner())?;
        let (probe, plan) = self.control.adopt(&caller, request).await?;
        Ok(Response::new(v1::AdoptProbeResponse {
            probe: Some(probe_message(&self.checker, &probe)),
            enabled_in: turns::blocking(|| self.foreign.enabled_in(&probe.name)),
            plan: messages::plan(&plan),
        }))
    }

    async fn reconcile_probes(
        &self,
        request: Request<v1::ReconcileProbesRequest>,
    ) -> Result<Response<v1::ReconcileProbesResponse>, Status> {
        let sight = self.sight(&request)?;
        let v1::ReconcileProbesRequest { force, validate_only } = request.into_inner();
        let Reconciliation { mut probes, mut plan } = self.control.reconcile(force, validate_only).await?;
        // All of them are repaired, whoever asks for it.
        let mut hidden = HashSet::new();
        probes.retain(|one| sight.shows(&one.found) || !hidden.insert(one.found.name.clone()));
        plan.retain(|step| step.event.as_ref().is_none_or(|name| !hidden.contains(name)));
        let probes = probes.iter().map(looked_at).collect();
        Ok(Response::new(v1::ReconcileProbesResponse { probes, plan: messages::plan(&plan) }))
    }
}

fn adoption(caller: &Caller, mut request: v1::AdoptProbeRequest) -> Result<AdoptRequest, Error> {
    let name = messages::probe_name(&request.name)?;
    let (id, validate_only) = (take(&mut request.request_id), take(&mut request.validate_only));
    let labels = take(&mut request.labels);
    let key = request_key(caller, &id, "adopt", &request, &labels)?;
    let labels = messages::labels(labels)?;
    Ok(AdoptRequest {
        name,
        enabled: request.enabled,
        filter: request.filter,
        labels,
        declared: None,
        request: key,
        validate_only,
    })
}

fn looked_at(reconciled: &Reconciled) -> v1::ReconciledProbe {
    let Reconciled { found, outcome, message, now } = reconciled;
    let trouble = found.state.trouble();
    v1::ReconciledProbe {
        name: found.name.to_string(),
        found: found.state.kind().into(),
        found_reason: trouble.map(|trouble| trouble.code.to_owned()).unwrap_or_default(),
        found_message: trouble.map(|trouble| trouble.reason.clone()).unwrap_or_default(),
        outcome: (*outcome).into(),
        message: message.clone(),
        state: now.state.kind().into(),
    }
}
