//! What the daemon sends elsewhere by itself.

use crate::api::export_service_client::ExportServiceClient;
use crate::api::{Exporter, ListExportersRequest};
use crate::client::{Client, MAX_MESSAGE_BYTES};
use crate::error::Error;

impl Client {
    /// Lists the exporters of events, and how they stand.
    pub async fn exporters(&self) -> Result<Vec<Exporter>, Error> {
        let response = self
            .call(ListExportersRequest {}, async |request| self.exports().list_exporters(request).await)
            .await?;
        Ok(response.exporters)
    }

    fn exports(&self) -> ExportServiceClient<tonic::transport::Channel> {
        ExportServiceClient::new(self.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}
