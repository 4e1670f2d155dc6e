//! `ConfigurationService`: the configuration file, read again on request.
//!
//! Owns the messages. Never reads the file, and puts nothing in force: the command line of the daemon
//! does.

use kprobed_proto::v1;
use kprobed_proto::v1::configuration_service_server::ConfigurationService;
use tonic::{Request, Response, Status};

use super::access::caller;
use super::status;
use crate::config::SettingChange;
use crate::control::ControlError;
use crate::reload::Reloads;

/// The service.
#[derive(Debug)]
pub struct ConfigurationServer {
    /// Takes requests.
    pub reloads: Reloads,
}

#[tonic::async_trait]
impl ConfigurationService for ConfigurationServer {
    async fn reload_configuration(
        &self,
        request: Request<v1::ReloadConfigurationRequest>,
    ) -> Result<Response<v1::ReloadConfigurationResponse>, Status> {
        let caller = caller(&request)?;
        let v1::ReloadConfigurationRequest { validate_only } = request.into_inner();
        let answer = self.reloads.ask(&caller, validate_only).await.ok_or(ControlError::Stopping)?;
        let changes = answer.map_err(|error| status::not_reloaded(&error))?;
        let changes = changes.into_iter().map(message).collect();
        Ok(Response::new(v1::ReloadConfigurationResponse { changes }))
    }
}

fn message(change: SettingChange) -> v1::SettingChange {
    let SettingChange { setting, before, after, needs_restart } = change;
    v1::SettingChange { setting, before, after, needs_restart }
}
