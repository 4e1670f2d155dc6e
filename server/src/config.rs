//! The configuration file.
//!
//! Owns reading and judging it: whatever is wrong with it is said before anything is touched.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use crate::control::OnExit;
use crate::spool::SpoolOptions;

/// Why the configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read `{path}`: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML, or has a setting that does not exist.
    #[error("`{path}`: {source}", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: Box<toml::de::Error>,
    },
    /// A setting makes no sense.
    #[error("`{setting}`: {message}")]
    Value {
        /// The setting.
        setting: &'static str,
        /// What is wrong with it.
        message: String,
    },
}

/// All settings. The defaults are those of a host; `deploy/kprobed.example.toml` explains each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where clients connect.
    pub listen: Listen,
    /// What is kept on disk.
    pub state: State,
    /// How the kernel is used.
    pub tracing: Tracing,
    /// Events that are kept on disk.
    pub spool: Spool,
    /// The daemon's own log.
    pub log: Log,
}

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// Unix socket.
    pub unix: PathBuf,
    /// Group that may use the socket, besides root. The socket is root's alone when the host has no such group.
    pub group: String,
    /// TCP address as well. Loopback only, unless `tls` is there.
    pub tcp: Option<SocketAddr>,
    /// Certificates for TCP.
    pub tls: Option<Tls>,
}

impl Default for Listen {
    fn default() -> Self {
        Self { unix: "/run/kprobed/kprobed.sock".into(), group: "kprobed".to_owned(), tcp: None, tls: None }
    }
}

/// Certificates for TCP. Both sides prove who they are.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The daemon's certificate chain (PEM).
    pub certificate: PathBuf,
    /// Its private key (PEM).
    pub key: PathBuf,
    /// Authority that signs the certificates of clients (PEM).
    pub client_ca: PathBuf,
}

/// What is kept on disk.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct State {
    /// Directory of the database.
    pub directory: PathBuf,
    /// Seconds between two samples of the hit counts.
    pub sample_interval_s: u64,
    /// Days that samples are kept.
    pub sample_retention_days: u64,
}

impl Default for State {
    fn default() -> Self {
        Self { directory: "/var/lib/kprobed".into(), sample_interval_s: 60, sample_retention_days: 30 }
    }
}

impl State {
    /// Time between two samples.
    pub fn sample_interval(&self) -> Duration {
        Duration::from_secs(self.sample_interval_s)
    }

    /// How long samples are kept.
    pub fn sample_retention(&self) -> Duration {
        Duration::from_hours(24 * self.sample_retention_days)
    }
}

/// How the kernel is used.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tracing {
    /// Name of the tracing instance.
    pub instance: String,
    /// Size of the ring buffer of each CPU at first, in KiB.
    pub buffer_kib: u64,
    /// Size that it may come to when the rate of events asks for it, in KiB. Not above `buffer_kib`: it stays as it is.
    pub buffer_max_kib: u64,
    /// Size of a sub-buffer, in KiB: a power of two from 4 to 512. 0 leaves it as the kernel has it, and so does a kernel without the choice
    /// (before 6.8).
    pub sub_buffer_kib: u64,
    /// What becomes of the kernel when the daemon stops.
    pub on_exit: OnExit,
}

impl Default for Tracing {
    fn default() -> Self {
        Self {
            instance: "kprobed".to_owned(),
            buffer_kib: 8192,
            buffer_max_kib: 65_536,
            sub_buffer_kib: 64,
            on_exit: OnExit::Restore,
        }
    }
}

/// Events that are kept on disk, for clients that ask for what was, or come back.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spool {
    /// Whether events are kept at all.
    pub enabled: bool,
    /// Directory for them, of its own: it is closed to everybody but the daemon. Relative to `state.directory`.
    pub directory: PathBuf,
    /// MiB that they may take; the oldest go first.
    pub max_mib: u64,
    /// Hours that they are kept.
    pub max_age_hours: u64,
    /// Milliseconds of events that a power cut may cost.
    pub sync_interval_ms: u64,
}

impl Default for Spool {
    fn default() -> Self {
        Self {
            enabled: true,
            directory: "spool".into(),
            max_mib: 256,
            max_age_hours: 24,
            sync_interval_ms: 1000,
        }
    }
}

impl Spool {
    /// What the spool is opened with. `None` when it is not wanted.
    pub fn options(&self, state: &State) -> Option<SpoolOptions> {
        let directory = state.directory.join(&self.directory);
        let max_bytes = self.max_mib.saturating_mul(1 << 20);
        let max_age = Duration::from_secs(self.max_age_hours.saturating_mul(3600));
        let sync_interval = Duration::from_millis(self.sync_interval_ms);
        self.enabled.then(|| SpoolOptions::new(&directory, max_bytes, max_age, sync_interval))
    }
}

/// The daemon's own log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter as `RUST_LOG` takes it.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".to_owned() }
    }
}

impl Config {
    /// Reads and judges a file.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let config: Self = toml::from_str(&text)
            .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })?;
        config.judge()?;
        Ok(config)
    }

    fn judge(&self) -> Result<(), ConfigError> {
        let wrong = |setting, message: &str| Err(ConfigError::Value { setting, message: message.to_owned() });
        if self.listen.tcp.is_some_and(|address| !address.ip().is_loopback()) && self.listen.tls.is_none() {
            return wrong(
                "listen.tcp",
                "is open to the network: add [listen.tls], or use a loopback address",
            );
        }
        let instance = &self.tracing.instance;
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if instance.is_empty() || !instance.chars().all(good) {
            return wrong("tracing.instance", "has to be a name of letters, digits, `_` and `-`");
        }
        if self.tracing.buffer_kib < 16 {
            return wrong("tracing.buffer_kib", "has to be at least 16");
        }
        // The kernel takes up to 128 pages (kernel/trace/trace.c:buffer_subbuf_size_write).
        let sub_buffer_kib = self.tracing.sub_buffer_kib;
        if sub_buffer_kib != 0 && !(sub_buffer_kib.is_power_of_two() && (4..=512).contains(&sub_buffer_kib)) {
            return wrong(
                "tracing.sub_buffer_kib",
                "has to be a power of two from 4 to 512, or 0 for the kernel's own",
            );
        }
        if self.state.sample_interval_s == 0 {
            return wrong("state.sample_interval_s", "has to be at least 1");
        }
        if self.spool.max_mib < 4 {
            return wrong("spool.max_mib", "has to be at least 4; `enabled = false` keeps no events");
        }
        if self.spool.max_age_hours == 0 {
            return wrong("spool.max_age_hours", "has to be at least 1; `enabled = false` keeps no events");
        }
        if self.spool.sync_interval_ms == 0 {
            return wrong("spool.sync_interval_ms", "has to be at least 1");
        }
        if self.state.directory.join(&self.spool.directory) == self.state.directory.join("") {
            return wrong(
                "spool.directory",
                "has to be a directory of its own, other than `state.directory`",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        config.judge().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn the_example_is_the_default() {
        let example = include_str!("../../deploy/kprobed.example.toml");
        assert_eq!(parse(example).unwrap(), Config::default());
    }

    #[test]
    fn tcp_is_loopback_or_tls() {
        assert!(parse("[listen]\ntcp = '127.0.0.1:7000'").is_ok());
        assert!(parse("[listen]\ntcp = '0.0.0.0:7000'").unwrap_err().contains("open to the network"));
        let tls = "[listen.tls]\ncertificate = 'c'\nkey = 'k'\nclient_ca = 'a'";
        assert!(parse(&format!("[listen]\ntcp = '0.0.0.0:7000'\n{tls}")).is_ok());
    }

    #[test]
    fn unknown_settings_are_refused() {
        assert!(parse("[listen]\nport = 1").unwrap_err().contains("unknown field `port`"));
        assert!(parse("[tracing]\ninstance = '../x'").is_err());
        assert!(parse("[tracing]\nbuffer_kib = 1").is_err());
        assert!(parse("[tracing]\nsub_buffer_kib = 48").unwrap_err().contains("power of two"));
        assert!(parse("[tracing]\nsub_buffer_kib = 0").is_ok());
    }

    #[test]
    fn the_spool_has_room_and_a_place_of_its_own() {
        for bad in [
            "max_mib = 3",
            "max_age_hours = 0",
            "sync_interval_ms = 0",
            "directory = '/var/lib/kprobed'",
            "directory = ''",
        ] {
            let error = parse(&format!("[spool]\n{bad}")).unwrap_err();
            assert!(error.starts_with(&format!("`spool.{}`", bad.split(' ').next().unwrap())), "{error}");
        }
        let options = |text: &str| {
            let config = parse(text).unwrap();
            config.spool.options(&config.state)
        };
        assert_eq!(options("[spool]\nenabled = false"), None);
        let options = options("[spool]\nmax_mib = 32\nmax_age_hours = 2").unwrap();
        assert_eq!(options.directory, PathBuf::from("/var/lib/kprobed/spool"));
        assert_eq!((options.max_bytes, options.segment_bytes), (32 << 20, 2 << 20));
        assert_eq!((options.max_age.as_secs(), options.sync_interval.as_millis()), (7200, 1000));
    }
}
