//! Rights of this client, and questions about those of others.

use crate::api::access_service_client::AccessServiceClient;
use crate::api::{CheckAccessRequest, CheckAccessResponse, GetCallerRequest, GetCallerResponse};
use crate::client::Client;
use crate::error::Error;

impl Client {
    /// Shows who the daemon takes this client for, and its roles.
    pub async fn caller(&self) -> Result<GetCallerResponse, Error> {
        let service = || AccessServiceClient::new(self.channel());
        self.call(GetCallerRequest {}, async |request| service().get_caller(request).await).await
    }

    /// Asks whether a principal may call a method. Changes nothing.
    pub async fn check_access(&self, request: CheckAccessRequest) -> Result<CheckAccessResponse, Error> {
        let service = || AccessServiceClient::new(self.channel());
        self.call(request, async |request| service().check_access(request).await).await
    }
}
