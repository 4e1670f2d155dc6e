//! The configuration file: all settings, their defaults, and reading them.
//!
//! Owns reading and validating: every problem is reported in one run, with its place in the file
//! and what to write instead, before the daemon changes anything. `--check-config` and a start
//! report the same problems.

mod credential;
mod difference;
pub mod export;
mod file;
mod paths;
mod problem;
mod rules;
#[cfg(test)]
mod tests;
mod tls;

pub use difference::{SettingChange, after_reload, changes};
pub use export::Export;
pub(crate) use paths::SOCKET_SUFFIX;
pub use problem::{Place, Problem, Severity, list as listed};
pub use rules::HostSize;
pub use tls::{LISTEN, PROMETHEUS, client_config, server_config, tls_settings};

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::sandbox::Mode;
use crate::start_error::StartError;
use kprobed_control::store::HitRetention;
use kprobed_control::{BudgetSettings, OnExit};
use kprobed_rights::Roles;
use kprobed_trace::spool::SpoolOptions;

/// A valid configuration, with its warnings.
#[derive(Debug)]
pub struct CheckedConfig {
    /// The settings.
    pub config: Config,
    /// Who may do what. Without a section for that: root, and the group of the socket, everything.
    pub roles: Roles,
    /// Settings that will probably not do what was meant.
    pub warnings: Vec<Problem>,
    /// What the file says. Settings with their default are not in it.
    pub file: toml::Table,
}

/// All settings. The defaults are those of a host; `deploy/kprobed.example.toml` explains each.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Labels of the host.
    pub host: Host,
    /// Where clients connect.
    pub listen: Listen,
    /// The database and its retention.
    pub state: State,
    /// How the kernel is used.
    pub tracing: Tracing,
    /// Repair of probes that other programs have changed.
    pub reconcile: Reconcile,
    /// Probes whose lease has ended.
    pub leases: Leases,
    /// Who did what.
    pub audit: Audit,
    /// What probes may cost.
    pub budget: Budget,
    /// Files that declare probes.
    pub declarations: Declared,
    /// Events that are kept on disk.
    pub spool: Spool,
    /// Exporters: where events and metrics go, apart from clients.
    pub export: Export,
    /// What the daemon gives up once it has started.
    pub sandbox: Sandbox,
    /// The daemon's own log.
    pub log: Log,
    /// Who may do what: that there are such sections. They are read apart from the settings, with the line of each
    /// rule.
    pub role: Option<IgnoredAny>,
}

/// Labels of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// File with labels of the host, `key="escaped value"` in each line, as the downward API of
    /// Kubernetes writes it. It is read again when it changes.
    pub labels_file: Option<PathBuf>,
}

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// Unix socket.
    pub unix: PathBuf,
    /// Group that may use the socket, in addition to root. The socket is root's alone when the host
    /// has no such group.
    pub group: String,
    /// TCP address as well. Loopback only, unless `tls` is there.
    pub tcp: Option<SocketAddr>,
    /// Certificates for TCP.
    pub tls: Option<Tls>,
    /// Connections that may be open at a time, of all peers together.
    pub max_connections: u64,
    /// Connections that one peer may have open: one user of the unix socket, or one address.
    pub max_connections_per_peer: u64,
    /// Seconds after which a connection without a call is closed. Clients connect again by
    /// themselves.
    pub idle_timeout_s: u64,
    /// Seconds that a connection may take for the handshake of TLS, and then for its first bytes.
    pub handshake_timeout_s: u32,
    /// Seconds that a request may take to arrive.
    pub request_timeout_s: u32,
    /// Calls that one connection may have under way.
    pub max_calls_per_connection: u32,
    /// Streams that may be open at a time, of all clients together.
    pub max_streams: u32,
    /// KiB of the longest message of a request.
    pub max_message_kib: u32,
    /// KiB of the headers of a request.
    pub max_header_kib: u32,
    /// MiB of requests and of answers that clients have not read, of all clients together. One peer
    /// may have half.
    pub call_memory_mib: u64,
    /// MiB of events that wait for clients, of all clients together.
    pub queue_memory_mib: u64,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            unix: "/run/kprobed/kprobed.sock".into(),
            group: "kprobed".to_owned(),
            tcp: None,
            tls: None,
            max_connections: 112,
            max_connections_per_peer: 56,
            idle_timeout_s: 86_400,
            handshake_timeout_s: 10,
            request_timeout_s: 30,
            max_calls_per_connection: 80,
            max_streams: 128,
            max_message_kib: 4096,
            max_header_kib: 4,
            call_memory_mib: 48,
            queue_memory_mib: 128,
        }
    }
}

/// Certificates for TCP. Both sides prove who they are.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The daemon's certificate chain (PEM).
    #[serde(deserialize_with = "credential::path")]
    pub certificate: PathBuf,
    /// Its private key (PEM).
    #[serde(deserialize_with = "credential::path")]
    pub key: PathBuf,
    /// Authority that signs the certificates of clients (PEM).
    #[serde(deserialize_with = "credential::path")]
    pub client_ca: PathBuf,
}

/// The database and its retention.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct State {
    /// Directory of the database.
    pub directory: PathBuf,
    /// Seconds between two samples of the hit counts, which are taken at multiples of it
    /// since 1970.
    pub sample_interval_s: u64,
    /// Days that hits are kept by the minute.
    pub minute_retention_days: u64,
    /// Days that hits are kept by the hour.
    pub hour_retention_days: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            directory: "/var/lib/kprobed".into(),
            sample_interval_s: 60,
            minute_retention_days: 7,
            hour_retention_days: 400,
        }
    }
}

impl State {
    /// How long hits are kept.
    pub(crate) fn hit_retention(&self) -> HitRetention {
        HitRetention {
            minutes: Duration::from_hours(24 * self.minute_retention_days),
            hours: Duration::from_hours(24 * self.hour_retention_days),
        }
    }
}

/// Repair of probes that other programs have changed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reconcile {
    /// Milliseconds between two looks; 0 for none.
    pub interval_ms: u64,
}

impl Default for Reconcile {
    fn default() -> Self {
        Self { interval_ms: 30_000 }
    }
}

impl Reconcile {
    /// Time between two looks. Absent for none.
    pub fn interval(&self) -> Option<Duration> {
        (self.interval_ms > 0).then(|| Duration::from_millis(self.interval_ms))
    }
}

/// Probes whose lease has ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Leases {
    /// Seconds that a probe stays listed after its lease has ended.
    pub keep_listed_s: u64,
}

impl Default for Leases {
    fn default() -> Self {
        Self { keep_listed_s: 3600 }
    }
}

/// The audit log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// Most entries that are kept; the oldest are deleted first. An entry takes about 500 bytes.
    pub max_entries: u64,
}

impl Default for Audit {
    fn default() -> Self {
        Self { max_entries: 100_000 }
    }
}

/// What probes may cost: processor time a second, as nanoseconds of one CPU.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Of each probe; 0 for no limit.
    pub probe_ns_per_s: u64,
    /// Of all probes together; 0 for no limit.
    pub host_ns_per_s: u64,
    /// Whether the daemon measures what a hit takes, once on each kernel.
    pub calibrate: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Self { probe_ns_per_s: 50_000_000, host_ns_per_s: 100_000_000, calibrate: true }
    }
}

impl Budget {
    /// Budgets, and whether what a hit takes is measured.
    pub(crate) fn settings(&self) -> BudgetSettings {
        let limit = |ns_per_s: u64| (ns_per_s > 0).then_some(ns_per_s);
        BudgetSettings {
            probe_ns_per_s: limit(self.probe_ns_per_s),
            host_ns_per_s: limit(self.host_ns_per_s),
            calibrate: self.calibrate,
        }
    }
}

/// Files that declare probes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Declared {
    /// Directory of the files. Relative to the directory of the configuration file, or to
    /// `/etc/kprobed` without one.
    pub directory: PathBuf,
}

impl Default for Declared {
    fn default() -> Self {
        Self { directory: "probes.d".into() }
    }
}

/// Directory of the configuration without a configuration file.
const CONFIG_DIRECTORY: &str = "/etc/kprobed";

/// How the kernel is used.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tracing {
    /// Name of the tracing instance.
    pub instance: String,
    /// Size of the ring buffer of each CPU at first, in KiB.
    pub buffer_kib: u64,
    /// Size that it may come to when the rate of events asks for it, in KiB. Not above
    /// `buffer_kib`: it stays as it is.
    pub buffer_max_kib: u64,
    /// Size of a sub-buffer, in KiB: a power of two from 4 to 512. 0 leaves it as the kernel has
    /// it, and so does a kernel without the choice (before 6.8).
    pub sub_buffer_kib: u64,
    /// State of the kernel's probes after the daemon stops.
    pub on_exit: OnExit,
    /// Where the procfs of the host is mounted. Container runtimes hide `kcore` in the procfs that
    /// they mount themselves.
    pub procfs: PathBuf,
}

impl Default for Tracing {
    fn default() -> Self {
        Self {
            instance: "kprobed".to_owned(),
            buffer_kib: 8192,
            buffer_max_kib: 65_536,
            sub_buffer_kib: 64,
            on_exit: OnExit::Restore,
            procfs: "/proc".into(),
        }
    }
}

/// Events that are kept on disk, for clients that ask for what was, or come back.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spool {
    /// Whether events are kept at all.
    pub enabled: bool,
    /// Directory for them, of its own: it is closed to everybody but the daemon. Relative to
    /// `state.directory`.
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
    /// Options of the spool. `None` if it is disabled.
    pub fn options(&self, state: &State) -> Option<SpoolOptions> {
        let directory = state.directory.join(&self.directory);
        let max_bytes = self.max_mib.saturating_mul(1 << 20);
        let max_age = Duration::from_secs(self.max_age_hours.saturating_mul(3600));
        let sync_interval = Duration::from_millis(self.sync_interval_ms);
        self.enabled.then(|| SpoolOptions::new(&directory, max_bytes, max_age, sync_interval))
    }
}

/// What the daemon gives up once it has started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sandbox {
    /// Whether it does, and what becomes of a part that the kernel does not take.
    pub mode: Mode,
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

/// The file cannot be read.
fn unread(path: &Path, error: &io::Error) -> StartError {
    let unread = StartError::new(format!("error: cannot read `{}`: {error}", path.display()));
    match error.kind() {
        io::ErrorKind::NotFound => {
            unread.fix("make the file, or run `kprobed` without `--config` to use the defaults")
        }
        io::ErrorKind::PermissionDenied => {
            unread.fix("run the daemon as root, or let its user read the file")
        }
        _ => unread,
    }
}

impl Config {
    /// Reads and validates a file; the defaults without one.
    ///
    /// # Errors
    /// [`StartError`], with all problems.
    pub fn read(path: Option<&Path>, host: HostSize) -> Result<CheckedConfig, StartError> {
        let text = match path {
            Some(path) => std::fs::read_to_string(path).map_err(|error| unread(path, &error))?,
            None => String::new(),
        };
        let mut judged =
            Self::of_text(&text, host).map_err(|problems| StartError::new(problem::list(path, &problems)))?;
        let beside = path.and_then(|path| Some(std::path::absolute(path).ok()?.parent()?.to_owned()));
        let directory = &mut judged.config.declarations.directory;
        *directory = beside.unwrap_or_else(|| CONFIG_DIRECTORY.into()).join(&*directory);
        Ok(judged)
    }

    /// As [`Config::read`], for the text of a file.
    fn of_text(text: &str, host: HostSize) -> Result<CheckedConfig, Vec<Problem>> {
        let (config, mut problems) = file::read(text);
        if let Some(config) = &config {
            let mut found = rules::problems(config, host);
            file::locate(text, &mut found);
            // A setting that could not be read has its default here, about which nothing is to be
            // said.
            let unread: Vec<_> = problems.iter().map(|problem| problem.setting.clone()).collect();
            problems.extend(found.into_iter().filter(|problem| !unread.contains(&problem.setting)));
        }
        let roles = match &config {
            Some(Config { role: Some(_), .. }) => Roles::parse(text),
            Some(Config { listen, .. }) => Ok(Roles::built_in(&listen.group)),
            // It is not even TOML.
            None => Ok(Roles::default()),
        };
        let roles = roles.unwrap_or_else(|found| {
            problems.extend(found.into_iter().map(Problem::from));
            Roles::default()
        });
        problems.sort_by_key(|problem| problem.place);
        match config {
            Some(config) if problems.iter().all(|problem| problem.severity == Severity::Warning) => {
                let file = text.parse().unwrap_or_default();
                Ok(CheckedConfig { config, roles, warnings: problems, file })
            }
            _ => Err(problems),
        }
    }
}
