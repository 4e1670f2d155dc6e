//! Events of the host that are recorded beside the probes.

use crate::api::source_service_client::SourceServiceClient;
use crate::api::{AttachEventRequest, AttachedEvent, DetachEventRequest, ListAttachedEventsRequest};
use crate::client::{Client, MAX_MESSAGE_BYTES};
use crate::error::Error;

impl Client {
    /// Records an event of the host (`GROUP/EVENT`), such as a tracepoint, until it is detached. An empty filter lets everything through.
    pub async fn attach_event(&self, name: &str, filter: &str) -> Result<AttachedEvent, Error> {
        let request = AttachEventRequest { name: name.to_owned(), filter: filter.to_owned() };
        let response = self.call(request, async |request| self.sources().attach_event(request).await).await?;
        response.event.ok_or(Error::Incomplete("event"))
    }

    /// Stops recording an event of the host. Returns what it was last.
    pub async fn detach_event(&self, name: &str) -> Result<AttachedEvent, Error> {
        let request = DetachEventRequest { name: name.to_owned() };
        let response = self.call(request, async |request| self.sources().detach_event(request).await).await?;
        response.event.ok_or(Error::Incomplete("event"))
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
