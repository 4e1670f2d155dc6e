//! The sections `[export.*]` of the configuration: settings of all exporters.
//!
//! Owns the settings and how a destination is written. What an exporter does with them is in
//! [`crate::export`].

mod address;
mod nats;
mod otlp;
mod rules;

pub use address::{JsonLinesTarget, NATS, NetworkAddress, OTLP, Schemes, ServerUrl};
pub use nats::{HAS_NATS, Nats, NatsStream};
pub use otlp::{Otlp, Secret};
pub(super) use rules::problems;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::{Tls, credential};
use kprobed_lang::model::{Glob, LabelError};
use kprobed_trace::filter::Filter;
use kprobed_trace::pipeline::View;

/// The default of a setting that is a number.
const fn number<const DEFAULT: u64>() -> u64 {
    DEFAULT
}

/// All exporters. One without a section does not run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Export {
    /// Figures for Prometheus.
    pub prometheus: Option<Prometheus>,
    /// Events as JSON, one object a line.
    pub jsonl: Option<JsonLines>,
    /// Events and figures for a receiver of OTLP.
    pub otlp: Option<Otlp>,
    /// Events for a stream of NATS JetStream.
    pub nats: Option<Nats>,
}

/// `/metrics` for Prometheus.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prometheus {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Only probes whose names match one of these globs. Empty: all.
    #[serde(default)]
    pub probes: Vec<String>,
    /// Only probes whose labels match.
    #[serde(default)]
    pub labels: String,
    /// Certificates, to serve https to scrapers that prove who they are.
    #[serde(default)]
    pub tls: Option<Tls>,
}

/// Events as JSON, one object a line.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JsonLines {
    /// Absolute path of a file or a pipe, `-` for standard output, or `unix:PATH` for a socket.
    pub path: String,
    /// Milliseconds of events that a power cut may take from a file; 0 leaves it to the kernel when
    /// it writes to the disk.
    #[serde(default = "number::<1000>")]
    pub sync_interval_ms: u64,
    /// Only events of probes whose names match one of these globs. Empty: all.
    #[serde(default)]
    pub probes: Vec<String>,
    /// Only events of probes whose labels match.
    #[serde(default)]
    pub labels: String,
    /// Only events that this filter selects.
    #[serde(default)]
    pub filter: String,
}

impl JsonLines {
    /// How often a file is written to the disk. Absent: when the kernel likes.
    pub fn sync_interval(&self) -> Option<Duration> {
        (self.sync_interval_ms > 0).then(|| Duration::from_millis(self.sync_interval_ms))
    }

    /// The settings that select its events.
    pub(crate) fn selecting(&self) -> Selecting<'_> {
        Selecting { probes: &self.probes, labels: &self.labels, filter: &self.filter }
    }
}

/// TLS towards another server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientTls {
    /// Authority that signed the server's certificate (PEM).
    #[serde(deserialize_with = "credential::path")]
    pub ca: PathBuf,
    /// The daemon's own certificate chain (PEM), if the server asks for one.
    #[serde(default, deserialize_with = "credential::optional_path")]
    pub certificate: Option<PathBuf>,
    /// Its private key (PEM).
    #[serde(default, deserialize_with = "credential::optional_path")]
    pub key: Option<PathBuf>,
    /// Name in the server's certificate, if it is not the host of the address.
    pub domain: Option<String>,
}

/// The three settings that select events, as they stand in the file.
#[derive(Clone, Copy, Debug)]
pub struct Selecting<'a> {
    /// Globs of names.
    pub probes: &'a [String],
    /// A selector of labels.
    pub labels: &'a str,
    /// A filter.
    pub filter: &'a str,
}

impl Selecting<'_> {
    /// The view of an exporter that selects what they say.
    ///
    /// # Errors
    /// The names of the settings that cannot be read, and why.
    pub fn read(self) -> Result<View, Vec<(&'static str, String)>> {
        let filter = match self.filter.trim() {
            "" => Ok(None),
            text => Filter::parse(text).map(Some).map_err(|error| ("filter", error.to_string())),
        };
        let labels = self.labels.parse().map_err(|error: LabelError| ("labels", error.to_string()));
        match (labels, filter) {
            (Ok(labels), Ok(filter)) => {
                let probes = self.probes.iter().map(|glob| Glob::new(glob.clone())).collect();
                Ok(View { probes, labels, filter, ..View::default() })
            }
            (labels, filter) => Err(labels.err().into_iter().chain(filter.err()).collect()),
        }
    }
}

impl Prometheus {
    /// The settings that select its probes.
    pub(crate) fn selecting(&self) -> Selecting<'_> {
        Selecting { probes: &self.probes, labels: &self.labels, filter: "" }
    }
}
