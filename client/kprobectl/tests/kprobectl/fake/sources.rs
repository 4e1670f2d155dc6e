//! Fake service of attached events: one that records and one that waits.

use kprobed_client::api::source_service_server::SourceService;
use kprobed_client::api::*;
use tonic::{Request, Response, Status};

use super::answers;
use super::services::{Answer, Services};

fn event(name: &str) -> Result<AttachedEvent, Status> {
    let recording = name == "raw_syscalls/sys_enter";
    if !recording && name != "btrfs/btrfs_sync_file" {
        return Err(Status::not_found(format!("the host has no event `{name}`")));
    }
    let state = if recording { AttachedEventState::Recording } else { AttachedEventState::Waiting };
    Ok(AttachedEvent {
        name: name.to_owned(),
        uid: if recording { -1 } else { -2 },
        filter: if recording { "" } else { "root == 5" }.to_owned(),
        state: state.into(),
        state_reason: if recording { "" } else { "the host does not have the event any more" }.to_owned(),
        create_time: answers::profile(0, 0).time,
        schema: recording.then(answers::syscall_schema),
        read: if recording { 12 } else { 0 },
        undecodable: 0,
    })
}

fn plan(name: &str, switch: u8) -> Vec<PlannedStep> {
    let command = format!("echo {switch} > instances/kprobed/events/{name}/enable");
    vec![PlannedStep { event: name.to_owned(), command }]
}

#[tonic::async_trait]
impl SourceService for Services {
    async fn attach_event(&self, request: Request<AttachEventRequest>) -> Answer<AttachEventResponse> {
        let AttachEventRequest { name, filter, validate_only } = request.into_inner();
        if filter.contains("+3") {
            return Err(answers::refused(&filter));
        }
        let event = Some(AttachedEvent { filter, read: 0, ..event(&name)? }).filter(|_| !validate_only);
        let plan = if validate_only { plan(&name, 1) } else { Vec::new() };
        Ok(Response::new(AttachEventResponse { event, plan }))
    }

    async fn detach_event(&self, request: Request<DetachEventRequest>) -> Answer<DetachEventResponse> {
        let DetachEventRequest { name, validate_only } = request.into_inner();
        let plan = if validate_only { plan(&name, 0) } else { Vec::new() };
        Ok(Response::new(DetachEventResponse { event: Some(event(&name)?), plan }))
    }

    async fn list_attached_events(
        &self,
        _: Request<ListAttachedEventsRequest>,
    ) -> Answer<ListAttachedEventsResponse> {
        let events = vec![event("btrfs/btrfs_sync_file")?, event("raw_syscalls/sys_enter")?];
        Ok(Response::new(ListAttachedEventsResponse { events }))
    }
}
