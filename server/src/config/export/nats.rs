//! The section `[export.nats]`: NATS JetStream.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::{ClientTls, NATS, Selecting, ServerUrl};
use crate::config::credential;

/// Whether this build has the exporter.
pub const HAS_NATS: bool = cfg!(feature = "nats");

/// Events for a stream of NATS JetStream.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nats {
    /// `nats://HOST:PORT` or `tls://HOST:PORT`; several servers of one cluster with commas between.
    pub url: String,
    /// Name of the stream.
    #[serde(default = "Nats::default_stream")]
    pub stream: String,
    /// Prefix of all subjects.
    #[serde(default = "Nats::default_subject_prefix")]
    pub subject_prefix: String,
    /// Milliseconds between two messages that say that nothing happened, without which a reader of
    /// many hosts waits for this one; 0 for none.
    #[serde(default = "super::number::<2000>")]
    pub heartbeat_ms: u64,
    /// Makes the stream if it is missing, with these limits. Absent: it must exist.
    #[serde(default)]
    pub create: Option<NatsStream>,
    /// Only events of probes whose names match one of these globs. Empty: all.
    #[serde(default)]
    pub probes: Vec<String>,
    /// Only events of probes whose labels match.
    #[serde(default)]
    pub labels: String,
    /// Only events that this filter selects.
    #[serde(default)]
    pub filter: String,
    /// File with a user's JWT and nkey seed, as `nsc` writes it (`.creds`).
    #[serde(default, deserialize_with = "credential::optional_path")]
    pub credentials_file: Option<PathBuf>,
    /// File with a token.
    #[serde(default, deserialize_with = "credential::optional_path")]
    pub token_file: Option<PathBuf>,
    /// File with `USER:PASSWORD`.
    #[serde(default, deserialize_with = "credential::optional_path")]
    pub password_file: Option<PathBuf>,
    /// Certificates for `tls://`.
    #[serde(default)]
    pub tls: Option<ClientTls>,
}

/// Limits of a stream that is made.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatsStream {
    /// MiB of messages that it keeps: the oldest go first.
    pub max_mib: u64,
    /// Seconds that it keeps a message; 0 for no limit.
    #[serde(default)]
    pub max_age_s: u64,
    /// Servers that have a copy.
    #[serde(default = "super::number::<1>")]
    pub replicas: u64,
}

impl Nats {
    fn default_stream() -> String {
        "KPROBED".to_owned()
    }

    fn default_subject_prefix() -> String {
        "kprobed".to_owned()
    }

    /// Longest time without a message. Absent: no limit.
    pub fn heartbeat(&self) -> Option<Duration> {
        (self.heartbeat_ms > 0).then(|| Duration::from_millis(self.heartbeat_ms))
    }

    /// Its servers, parsed; a server that cannot be parsed with its text.
    pub fn servers(&self) -> impl Iterator<Item = Result<ServerUrl, (&str, String)>> {
        self.url
            .split(',')
            .map(str::trim)
            .map(|url| ServerUrl::parse(url, NATS).map_err(|error| (url, error)))
    }

    /// The files with secrets that are set, by the names of their settings.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let files = [
            ("credentials_file", &self.credentials_file),
            ("token_file", &self.token_file),
            ("password_file", &self.password_file),
        ];
        files.into_iter().filter_map(|(setting, path)| Some((setting, path.as_ref()?)))
    }

    /// The settings that select its events.
    pub(crate) fn selecting(&self) -> Selecting<'_> {
        Selecting { probes: &self.probes, labels: &self.labels, filter: &self.filter }
    }
}
