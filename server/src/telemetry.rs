//! The daemon's own log.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Logs to standard error, where systemd and container runtimes pick it up. `RUST_LOG` overrides the configured level.
pub fn init(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
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
}
