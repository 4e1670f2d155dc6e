//! `kprobed`: the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use kprobed::app::App;
use kprobed::config::Config;
use kprobed::{shutdown, telemetry};
use sd_notify::NotifyState;

/// Owns the kprobes of this host: defines, checks, arms and removes them, and streams their events.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    /// Configuration file (TOML). Without it everything has its default.
    #[arg(long, env = "KPROBED_CONFIG")]
    config: Option<PathBuf>,
    /// Read the configuration, say what is wrong with it, and leave.
    #[arg(long)]
    check_config: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let config = arguments.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
    if arguments.check_config {
        return Ok(ExitCode::SUCCESS);
    }
    telemetry::init(&config.log.level);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("kprobed-rpc").build()?;
    let done = runtime.block_on(run(&config))?;
    // Whatever still blocks by now is left behind.
    runtime.shutdown_background();
    Ok(if done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn run(config: &Config) -> anyhow::Result<bool> {
    let app = App::start(config).await.context("cannot start")?;
    notify(NotifyState::Ready);
    let signal = shutdown::requested().await.context("cannot listen for signals")?;
    tracing::info!(signal, "stopping");
    notify(NotifyState::Stopping);
    let done = tokio::select! {
        done = app.stop() => done,
        // A second signal: at once.
        _ = shutdown::requested() => false,
    };
    tracing::info!(done, "stopped");
    Ok(done)
}

/// Tells systemd, if it is there.
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "cannot notify systemd");
    }
}
