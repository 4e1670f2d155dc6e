//! Fake reconcile service: a foreign event, one of a lost database, and one that cannot be adopted.

use kprobed_client::api::reconcile_service_server::ReconcileService;
use kprobed_client::api::*;
use tonic::{Request, Response, Status};

use super::answers;
use super::services::{Answer, Services};

fn events() -> Vec<ForeignEvent> {
    let slow = ForeignEvent {
        name: "perf/slow_path".to_owned(),
        kernel_definitions: vec!["p:perf/slow_path vfs_read size=%dx:u64".to_owned()],
        kind: ProbeKind::Entry.into(),
        place: "vfs_read".to_owned(),
        enabled_in: vec![String::new(), "trace-cmd".to_owned()],
        hits: Some(1234),
        nmissed: Some(1),
        definition: "p:perf/slow_path vfs_read size=%dx:u64".to_owned(),
        ..Default::default()
    };
    let lost = ForeignEvent {
        name: "kprobes/open".to_owned(),
        kind: ProbeKind::Return.into(),
        enabled_in: vec!["kprobed".to_owned()],
        made_by_kprobed: true,
        ..slow.clone()
    };
    let two = ForeignEvent {
        name: "perf/two".to_owned(),
        kernel_definitions: vec!["p:perf/two vfs_read".to_owned(), "p:perf/two vfs_write".to_owned()],
        enabled_in: Vec::new(),
        hits: None,
        nmissed: None,
        obstacle: "SEVERAL_PLACES".to_owned(),
        obstacle_message: "it has 2 probe points under one name, and a probe of kprobed has one".to_owned(),
        definition: String::new(),
        ..slow.clone()
    };
    vec![lost, slow, two]
}

#[tonic::async_trait]
impl ReconcileService for Services {
    /// Pages of two.
    async fn list_foreign_probes(
        &self,
        request: Request<ListForeignProbesRequest>,
    ) -> Answer<ListForeignProbesResponse> {
        let request = request.into_inner();
        if request.name_glob == "none/*" {
            return Ok(Response::new(ListForeignProbesResponse::default()));
        }
        let mut events = events();
        let rest = events.split_off(2);
        Ok(Response::new(if request.page_token.is_empty() {
            ListForeignProbesResponse { events, next_page_token: "perf/slow_path".to_owned() }
        } else {
            ListForeignProbesResponse { events: rest, next_page_token: String::new() }
        }))
    }

    async fn adopt_probe(&self, request: Request<AdoptProbeRequest>) -> Answer<AdoptProbeResponse> {
        let request = request.into_inner();
        let found = events().into_iter().find(|event| event.name == request.name);
        let found =
            found.ok_or_else(|| Status::not_found(format!("the host has no event `{}`", request.name)))?;
        if !found.obstacle.is_empty() {
            let message = format!("`{}` cannot be adopted: {}", found.name, found.obstacle_message);
            return Err(Status::failed_precondition(message));
        }
        let enabled = request.enabled.unwrap_or(found.made_by_kprobed);
        let state = if enabled { ProbeState::Armed } else { ProbeState::Disabled };
        Ok(Response::new(AdoptProbeResponse {
            probe: Some(Probe {
                name: found.name.clone(),
                state: state.into(),
                state_reason: String::new(),
                state_message: String::new(),
                filter: request.filter.unwrap_or_default(),
                labels: request.labels,
                ..answers::probe("kprobes/open")
            }),
            enabled_in: found.enabled_in.into_iter().filter(|name| name != "kprobed").collect(),
            plan: if request.validate_only {
                let command = format!("echo 1 > instances/kprobed/events/{}/enable", found.name);
                vec![PlannedStep { event: found.name, command }]
            } else {
                Vec::new()
            },
        }))
    }

    /// One is as it should be, one was repaired, and with `force` none is left alone.
    async fn reconcile_probes(
        &self,
        request: Request<ReconcileProbesRequest>,
    ) -> Answer<ReconcileProbesResponse> {
        let well = ReconciledProbe {
            name: "kprobes/open".to_owned(),
            found: ProbeState::Armed.into(),
            outcome: ReconcileOutcome::AsWanted.into(),
            state: ProbeState::Armed.into(),
            ..Default::default()
        };
        let repaired = ReconciledProbe {
            name: "kprobes/opened".to_owned(),
            found: ProbeState::Drifted.into(),
            found_reason: "SWITCHED_OFF".to_owned(),
            found_message: "its event is switched off in the daemon's instance".to_owned(),
            outcome: ReconcileOutcome::Repaired.into(),
            ..well.clone()
        };
        let ReconcileProbesRequest { force, validate_only } = request.into_inner();
        if validate_only {
            let command = "echo 1 > instances/kprobed/events/kprobes/opened/enable".to_owned();
            let would_repair = ReconciledProbe {
                outcome: ReconcileOutcome::WouldRepair.into(),
                state: ProbeState::Drifted.into(),
                ..repaired
            };
            let plan = vec![PlannedStep { event: would_repair.name.clone(), command }];
            return Ok(Response::new(ReconcileProbesResponse { probes: vec![well, would_repair], plan }));
        }
        let mut probes = vec![well, repaired.clone()];
        if !force {
            probes.push(ReconciledProbe {
                name: "kprobes/read".to_owned(),
                outcome: ReconcileOutcome::NotRepaired.into(),
                message: "only others can do something about it".to_owned(),
                state: ProbeState::Drifted.into(),
                ..repaired
            });
        }
        Ok(Response::new(ReconcileProbesResponse { probes, plan: Vec::new() }))
    }
}
