//! The daemon's own log: level, format and destination of its lines.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Logs to standard error, where systemd and container runtimes pick it up. `RUST_LOG` overrides
/// the configured level.
pub fn init(level: &str) {
    let environment = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|text| !text.is_empty());
    let wished = environment.as_deref().map(EnvFilter::try_new);
    let (filter, refused) = match wished {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new(level), Some(error)),
        None => (EnvFilter::new(level), None),
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    // systemd stamps every line by itself.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        subscriber.without_time().init();
    } else {
        subscriber.init();
    }
    if let Some(error) = refused {
        tracing::warn!(%error, level, "ignored RUST_LOG: it is not a filter");
    }
}
