//! `kprobectl version`: the versions of this command and of the daemon.

use std::io;

use clap::Args;
use kprobed_client::api::GetHostResponse;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

/// Arguments of `version`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/version.txt"))]
pub(crate) struct Arguments {
    /// Print only the version of this command, and do not connect to the daemon
    #[arg(long)]
    pub(crate) client: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if arguments.client {
        show(None, output)?;
        return Ok(Exit::Success);
    }
    let host = match connect(global).await {
        Ok(client) => client.host_basics().await.map_err(Failure::from),
        Err(failure) => Err(failure),
    };
    show(host.as_ref().ok(), output)?;
    host.map(|_host| Exit::Success)
}

fn show(host: Option<&GetHostResponse>, output: &mut Output) -> io::Result<()> {
    let client_version = env!("CARGO_PKG_VERSION");
    let mut versions = serde_json::json!({ "client_version": client_version });
    if let Some(GetHostResponse { daemon_version, hostname, kernel_release, .. }) = host {
        versions["daemon_version"] = daemon_version.as_str().into();
        versions["hostname"] = hostname.as_str().into();
        versions["kernel_release"] = kernel_release.as_str().into();
    }
    if output.structured(&versions)? {
        return Ok(());
    }
    output.line(&format!("kprobectl {client_version}"))?;
    if let Some(GetHostResponse { daemon_version, hostname, kernel_release, .. }) = host {
        output.line(&format!("kprobed {daemon_version} on {hostname} (Linux {kernel_release})"))?;
    }
    Ok(())
}
