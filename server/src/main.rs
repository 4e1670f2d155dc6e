//! `kprobed`: the command line of the daemon.
//!
//! Owns the exit codes, the async runtime, and the notices to systemd, those of the watchdog among them. Never starts a
//! part of the daemon by itself: [`kprobed::app`] does.

use std::convert::Infallible;
use std::error::Error;
use std::fmt::Display;
use std::future::pending;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::thread;

use clap::Parser;
use kprobed::app::{App, Prepared, StartError, Watched};
use kprobed::config::{CheckedConfig, Config, HostSize, SettingChange, after_reload, listed};
use kprobed::shutdown::Stops;
use kprobed::{front, telemetry};
use sd_notify::NotifyState;
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Owns the kprobes of this host: defines, checks, arms and removes them, and streams their events.
///
/// Ends with 0 after an orderly stop, 1 if it cannot start or leave the kernel as it should be, and
/// 2 if the configuration is wrong.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    /// Read this configuration file (TOML). Every setting has a default.
    #[arg(long, env = "KPROBED_CONFIG")]
    config: Option<PathBuf>,
    /// Judge the configuration as a start would, print everything that is wrong with it, and exit.
    #[arg(long)]
    check_config: bool,
}

/// The configuration is wrong: starting again does not help.
const BAD_CONFIGURATION: u8 = 2;

/// Threads for control calls. They do little, and have a thread of the control loop to wait for.
const CONTROL_THREADS: usize = 4;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let host = match HostSize::here() {
        Ok(host) => host,
        Err(error) => return failed(error),
    };
    let checked = match Config::read(arguments.config.as_deref(), host) {
        Ok(checked) => checked,
        Err(error) => {
            complain(&error.message, error.hint);
            return ExitCode::from(BAD_CONFIGURATION);
        }
    };
    if arguments.check_config {
        if !checked.warnings.is_empty() {
            say(listed(arguments.config.as_deref(), &checked.warnings));
        }
        say(format_args!("kprobed can start with this configuration"));
        return ExitCode::SUCCESS;
    }
    telemetry::init(&checked.config.log.level);
    warn(&checked);
    front::raise_limit();
    match serve(checked, &Reread { path: arguments.config, host }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(error),
    }
}

/// How the configuration is read again.
struct Reread {
    path: Option<PathBuf>,
    host: HostSize,
}

fn warn(checked: &CheckedConfig) {
    for warning in &checked.warnings {
        tracing::warn!(hint = warning.hint, "{warning}");
    }
}

fn serve(checked: CheckedConfig, reread: &Reread) -> Result<bool, StartError> {
    // Before the first thread: each has the privileges of the one that starts it.
    let prepared = App::prepare(&checked.config, reread.path.as_deref())?;
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let control = cpus.clamp(2, CONTROL_THREADS);
    // The runtime panics if it cannot start a thread.
    try_threads(control + cpus)?;
    let runtime = |threads: usize, name: &str| {
        let mut builder = Builder::new_multi_thread();
        let built = builder.worker_threads(threads).enable_all().thread_name(name).build();
        built.map_err(|error| StartError::thread(&error))
    };
    let control = runtime(control, "kprobed-rpc")?;
    // The events of hundreds of streams must not delay a `list`. Half of the CPUs: a thread that is woken wakes another
    // one to look for more work, which there hardly ever is.
    let streams = runtime((cpus / 2).max(1), "kprobed-stream")?;
    let done = control.block_on(run(checked, reread, prepared, streams.handle()));
    // Threads that still block now are abandoned.
    streams.shutdown_background();
    control.shutdown_background();
    done
}

/// Starts so many threads at a time, and ends them: whether the system allows them.
fn try_threads(threads: usize) -> Result<(), StartError> {
    let barrier = Arc::new(Barrier::new(threads + 1));
    let mut started = Vec::new();
    for _ in 0..threads {
        let inner = Arc::clone(&barrier);
        // Of those that were started before a failure none ends; the process is about to.
        let thread = thread::Builder::new().spawn(move || inner.wait());
        started.push(thread.map_err(|error| StartError::thread(&error))?);
    }
    barrier.wait();
    for thread in started {
        drop(thread.join());
    }
    Ok(())
}

async fn run(
    checked: CheckedConfig,
    reread: &Reread,
    prepared: Prepared,
    streams: &Handle,
) -> Result<bool, StartError> {
    // Before a probe is armed: a signal that comes during the start stops the daemon in order after it.
    let unheard = |error| StartError::new(format!("cannot listen for signals: {error}"));
    let mut stops = Stops::new().map_err(unheard)?;
    let reloads = signal(SignalKind::hangup()).map_err(unheard)?;
    let app = App::start(&checked.config, checked.roles.clone(), prepared, streams).await?;
    let signal = serve_until_stopped(&app, checked, reread, (&mut stops, reloads)).await;
    tracing::info!(signal, "stopping");
    notify(NotifyState::Stopping);
    let done = tokio::select! {
        done = app.stop() => done,
        // A second signal: at once.
        _ = stops.next() => false,
    };
    tracing::info!(done, "stopped");
    Ok(done)
}

/// Reloads when a signal asks for it, and feeds the watchdog, until the daemon is to stop. Returns the signal that
/// says so.
async fn serve_until_stopped(
    app: &App,
    mut checked: CheckedConfig,
    reread: &Reread,
    (stops, mut reloads): (&mut Stops, Signal),
) -> &'static str {
    notify(NotifyState::Ready);
    let watched = app.watched();
    let mut fed = pin!(feed_watchdog(&watched));
    loop {
        tokio::select! {
            signal = stops.next() => return signal,
            Some(()) = reloads.recv() => {
                checked = reload(app, checked, reread);
            }
            never = &mut fed => match never {},
        }
    }
}

/// Feeds the watchdog of systemd (`WatchdogSec=` in the unit), if there is one.
async fn feed_watchdog(watched: &Watched) -> Infallible {
    match sd_notify::watchdog_enabled() {
        Some(limit) => watched.watch(limit, || notify(NotifyState::Watchdog)).await,
        None => pending().await,
    }
}

/// Reads the configuration again, and puts in force what can be. With a mistake in it, everything
/// stays as it is.
fn reload(app: &App, before: CheckedConfig, reread: &Reread) -> CheckedConfig {
    tell_reloading();
    let put_in_force = || {
        let now = Config::read(reread.path.as_deref(), reread.host)?;
        warn(&now);
        log_changes(&app.reload(&before, &now)?);
        Ok::<_, Box<dyn Error>>(now)
    };
    let in_force = match put_in_force() {
        Ok(now) => {
            // What needs a restart is compared with what the daemon runs with.
            let file = after_reload(&before.file, &now.file);
            CheckedConfig { config: before.config, file, ..now }
        }
        Err(error) => {
            tracing::error!(%error, "the configuration is not reloaded: the previous one still applies");
            app.not_reloaded(&error.to_string());
            before
        }
    };
    notify(NotifyState::Ready);
    in_force
}

fn log_changes(changes: &[SettingChange]) {
    for SettingChange { setting, before, after, needs_restart } in changes {
        tracing::info!(setting, before, after, needs_restart, "a setting has changed");
    }
    if changes.iter().any(|change| change.needs_restart) {
        tracing::warn!("the configuration is reloaded; some changes need a restart of the daemon");
    } else {
        tracing::info!("the configuration is reloaded");
    }
}

/// Tells systemd that a reload begins (sd_notify(3), `RELOADING=1`, with the time since 253).
fn tell_reloading() {
    notify(NotifyState::Reloading);
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(now),
        Err(error) => tracing::debug!(%error, "cannot read the monotonic clock"),
    }
}

fn failed(error: StartError) -> ExitCode {
    complain(&format_args!("error: {}", error.message), error.hint);
    ExitCode::FAILURE
}

/// An error is one line, and what to do about it another.
fn complain(error: &impl Display, hint: Option<String>) {
    match hint {
        Some(hint) => say(format_args!("{error}\nhint: {hint}")),
        None => say(format_args!("{error}")),
    }
}

fn say(text: impl Display) {
    // There is nowhere else to say that it failed.
    drop(writeln!(io::stderr(), "{text}"));
}

/// Tells systemd, if it is there.
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "cannot notify systemd");
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// The page is also that of `man kprobed`.
    #[test]
    fn the_page_of_the_daemon_has_every_option() {
        let page = include_str!("../../deploy/docs/reference/daemon.md");
        let mut seen = 0;
        for argument in Arguments::command().get_arguments() {
            let Some(option) = argument.get_long() else { continue };
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let row = page.lines().find(|line| line.starts_with(&format!("| `--{option} ")));
            let row = row.or_else(|| page.lines().find(|line| line.starts_with(&format!("| `--{option}`"))));
            assert!(
                row.is_some_and(|row| row.contains(&help)),
                "`--{option}` is explained otherwise: {help}"
            );
            seen += 1;
        }
        assert_eq!(seen, 2);
    }
}
