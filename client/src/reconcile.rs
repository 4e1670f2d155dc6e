//! Reconciliation: foreign events, adoption, and repairs of changed probes.

use crate::api::reconcile_service_client::ReconcileServiceClient;
use crate::api::{
    AdoptProbeRequest, AdoptProbeResponse, ForeignEvent, ListForeignProbesRequest, ListForeignProbesResponse,
    ReconcileProbesRequest, ReconcileProbesResponse, ReconciledProbe,
};
use crate::client::{Client, MAX_MESSAGE_BYTES};
use crate::error::Error;

impl Client {
    /// Lists all foreign kprobe events whose names match a glob, page by page. An empty glob
    /// matches all.
    pub async fn foreign_probes(&self, name_glob: &str) -> Result<Vec<ForeignEvent>, Error> {
        let mut request = ListForeignProbesRequest {
            page_size: 1000,
            name_glob: name_glob.to_owned(),
            ..Default::default()
        };
        let mut events = Vec::new();
        loop {
            let page = self.foreign_probes_page(request.clone()).await?;
            events.extend(page.events);
            if page.next_page_token.is_empty() {
                return Ok(events);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Lists one page of them.
    pub async fn foreign_probes_page(
        &self,
        request: ListForeignProbesRequest,
    ) -> Result<ListForeignProbesResponse, Error> {
        self.call(request, async |request| self.reconciling().list_foreign_probes(request).await).await
    }

    /// Makes a probe of an event that the kernel has, without defining it again.
    ///
    /// # Errors
    /// [`Error::Rpc`] with the reason `NOT_ADOPTABLE` when the event cannot be adopted.
    pub async fn adopt_probe(&self, request: AdoptProbeRequest) -> Result<AdoptProbeResponse, Error> {
        self.call(request, async |request| self.reconciling().adopt_probe(request).await).await
    }

    /// Has the daemon look at all its probes now, and repair those that others have changed.
    /// `force`: also those that were repaired too often or too recently. Returns the outcome of
    /// each.
    pub async fn reconcile_probes(&self, force: bool) -> Result<Vec<ReconciledProbe>, Error> {
        Ok(self.send_reconcile(force, false).await?.probes)
    }

    /// Has the daemon look at all its probes now, and change nothing. Returns what was found, and
    /// in `plan` what would be done.
    pub async fn plan_reconcile(&self, force: bool) -> Result<ReconcileProbesResponse, Error> {
        self.send_reconcile(force, true).await
    }

    async fn send_reconcile(
        &self,
        force: bool,
        validate_only: bool,
    ) -> Result<ReconcileProbesResponse, Error> {
        let request = ReconcileProbesRequest { force, validate_only };
        self.call(request, async |request| self.reconciling().reconcile_probes(request).await).await
    }

    fn reconciling(&self) -> ReconcileServiceClient<tonic::transport::Channel> {
        ReconcileServiceClient::new(self.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}
