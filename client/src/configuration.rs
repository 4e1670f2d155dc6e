//! Configuration of a daemon.

use crate::api::configuration_service_client::ConfigurationServiceClient;
use crate::api::{ReloadConfigurationRequest, SettingChange};
use crate::client::Client;
use crate::error::Error;

impl Client {
    /// Has the daemon read its configuration file again, or only compare it. Returns what differs.
    ///
    /// # Errors
    /// A file that cannot be used, a request that the daemon refuses, or a daemon that cannot be
    /// reached.
    pub async fn reload(&self, validate_only: bool) -> Result<Vec<SettingChange>, Error> {
        let service = || ConfigurationServiceClient::new(self.channel());
        let request = ReloadConfigurationRequest { validate_only };
        Ok(self.call(request, async |request| service().reload_configuration(request).await).await?.changes)
    }
}
