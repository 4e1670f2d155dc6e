//! Approved definitions of a daemon.

use crate::api::approval_service_client::ApprovalServiceClient;
use crate::api::{
    Approval, ApproveDefinitionsRequest, ListApprovalsRequest, RevokeApprovalsRequest,
    RevokeApprovalsResponse,
};
use crate::client::Client;
use crate::error::Error;

impl Client {
    /// Approves definitions, so that others may use them. Returns the approvals.
    ///
    /// # Errors
    /// A request that the daemon refuses, or a daemon that cannot be reached.
    pub async fn approve(&self, request: ApproveDefinitionsRequest) -> Result<Vec<Approval>, Error> {
        let service = || ApprovalServiceClient::new(self.channel());
        let response =
            self.call(request, async |request| service().approve_definitions(request).await).await?;
        Ok(response.approvals)
    }

    /// All approvals, the oldest first.
    ///
    /// # Errors
    /// A request that the daemon refuses, or a daemon that cannot be reached.
    pub async fn approvals(&self) -> Result<Vec<Approval>, Error> {
        let service = || ApprovalServiceClient::new(self.channel());
        let request = ListApprovalsRequest {};
        Ok(self.call(request, async |request| service().list_approvals(request).await).await?.approvals)
    }

    /// Ends all approvals of definitions with these digests.
    ///
    /// # Errors
    /// A request that the daemon refuses, or a daemon that cannot be reached.
    pub async fn revoke(&self, digests: Vec<String>) -> Result<RevokeApprovalsResponse, Error> {
        let service = || ApprovalServiceClient::new(self.channel());
        let request = RevokeApprovalsRequest { digests };
        self.call(request, async |request| service().revoke_approvals(request).await).await
    }
}
