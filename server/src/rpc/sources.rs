//! `SourceService`: attached events, and the events that can be attached.
//!
//! Owns the messages. Never records an event.

use std::sync::Arc;

use kprobed_proto::v1;
use kprobed_proto::v1::source_service_server::SourceService;
use tonic::{Request, Response, Status};

use super::{access, messages};
use crate::auth::Rights;
use crate::control::{
    AttachRequest, AttachedEvent, AttachedState, ControlHandle, DetachRequest, Sight, Sourced,
};
use crate::error::Error;
use kprobed_lang::model::ProbeName;
use kprobed_trace::pipeline::EventSource;
use kprobed_trace::wire::schema_message;

/// The service.
#[derive(Debug)]
pub struct SourceServer {
    /// Carries out all requests.
    pub control: ControlHandle,
    /// Who may see events.
    pub rights: Arc<Rights>,
}

#[tonic::async_trait]
impl SourceService for SourceServer {
    async fn attach_event(
        &self,
        request: Request<v1::AttachEventRequest>,
    ) -> Result<Response<v1::AttachEventResponse>, Status> {
        let caller = access::caller(&request)?;
        let v1::AttachEventRequest { name, filter, validate_only } = request.into_inner();
        let request = AttachRequest { name: parse(&name)?, filter, validate_only };
        let Sourced { event, plan } = self.control.attach(&caller, request).await?;
        Ok(Response::new(v1::AttachEventResponse {
            event: event.as_ref().map(message),
            plan: messages::plan(&plan),
        }))
    }

    async fn detach_event(
        &self,
        request: Request<v1::DetachEventRequest>,
    ) -> Result<Response<v1::DetachEventResponse>, Status> {
        let caller = access::caller(&request)?;
        let v1::DetachEventRequest { name, validate_only } = request.into_inner();
        let request = DetachRequest { name: parse(&name)?, validate_only };
        let Sourced { event, plan } = self.control.detach(&caller, request).await?;
        Ok(Response::new(v1::DetachEventResponse {
            event: event.as_ref().map(message),
            plan: messages::plan(&plan),
        }))
    }

    async fn list_attached_events(
        &self,
        request: Request<v1::ListAttachedEventsRequest>,
    ) -> Result<Response<v1::ListAttachedEventsResponse>, Status> {
        let sight = Sight::new(&self.rights, access::caller(&request)?);
        let attached = self.control.attached().await?;
        let events = attached.iter().filter(|event| sight.shows_event(&event.name)).map(message).collect();
        Ok(Response::new(v1::ListAttachedEventsResponse { events }))
    }
}

fn parse(name: &str) -> Result<ProbeName, Error> {
    name.parse::<ProbeName>().map_err(|error| Error::bad_argument("name", error.to_string()))
}

fn message(attached: &AttachedEvent) -> v1::AttachedEvent {
    let (state, state_reason) = match &attached.state {
        AttachedState::Recording => (v1::AttachedEventState::Recording, String::new()),
        AttachedState::Waiting(reason) => (v1::AttachedEventState::Waiting, reason.clone()),
    };
    let counts = attached.source.as_ref().map(|source| source.counts()).unwrap_or_default();
    // Outside of a stream a schema has no number.
    let schema = |source: &EventSource| {
        let origin = &source.origin;
        schema_message(0, &origin.name, origin.uid, &origin.schema, None)
    };
    v1::AttachedEvent {
        name: attached.name.to_string(),
        uid: attached.uid.0,
        filter: attached.filter.clone(),
        state: state.into(),
        state_reason,
        create_time: Some(messages::timestamp(attached.create_time)),
        schema: attached.source.as_deref().filter(|_| attached.state == AttachedState::Recording).map(schema),
        read: counts.read,
        undecodable: counts.undecodable,
    }
}
