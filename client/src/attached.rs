//! Attached events: trace events that the daemon records and did not define.

use crate::api::source_service_client::SourceServiceClient;
use crate::api::{
    AttachEventRequest, AttachEventResponse, AttachedEvent, DetachEventRequest, DetachEventResponse,
    ListAttachedEventsRequest, PlannedStep,
};
use crate::client::{Client, MAX_MESSAGE_BYTES};
use crate::error::Error;

impl Client {
    /// Records an event of the host (`GROUP/EVENT`), such as a tracepoint, until it is detached. An
    /// empty filter lets everything through.
    pub async fn attach_event(&self, name: &str, filter: &str) -> Result<AttachedEvent, Error> {
        let response = self.send_attach(name, filter, false).await?;
        response.event.ok_or(Error::Incomplete("event"))
    }

    /// Checks whether an event can be attached, and changes nothing. Returns what would be done.
    ///
    /// # Errors
    /// As [`Client::attach_event`]. The kernel judges the filter only if the event is not recorded.
    pub async fn plan_attach(&self, name: &str, filter: &str) -> Result<Vec<PlannedStep>, Error> {
        Ok(self.send_attach(name, filter, true).await?.plan)
    }

    async fn send_attach(
        &self,
        name: &str,
        filter: &str,
        validate_only: bool,
    ) -> Result<AttachEventResponse, Error> {
        let request = AttachEventRequest { name: name.to_owned(), filter: filter.to_owned(), validate_only };
        self.call(request, async |request| self.sources().attach_event(request).await).await
    }

    /// Stops recording an event of the host. Returns what it was last.
    pub async fn detach_event(&self, name: &str) -> Result<AttachedEvent, Error> {
        let response = self.send_detach(name, false).await?;
        response.event.ok_or(Error::Incomplete("event"))
    }

    /// Checks whether an event is attached, and changes nothing. Returns what would be done to
    /// detach it.
    pub async fn plan_detach(&self, name: &str) -> Result<Vec<PlannedStep>, Error> {
        Ok(self.send_detach(name, true).await?.plan)
    }

    async fn send_detach(&self, name: &str, validate_only: bool) -> Result<DetachEventResponse, Error> {
        let request = DetachEventRequest { name: name.to_owned(), validate_only };
        self.call(request, async |request| self.sources().detach_event(request).await).await
    }

    /// Lists the events of the host that are recorded, by name.
    pub async fn attached_events(&self) -> Result<Vec<AttachedEvent>, Error> {
        let request = ListAttachedEventsRequest {};
        let response =
            self.call(request, async |request| self.sources().list_attached_events(request).await).await?;
        Ok(response.events)
    }

    fn sources(&self) -> SourceServiceClient<tonic::transport::Channel> {
        SourceServiceClient::new(self.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}
