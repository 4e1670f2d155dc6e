//! The section `[export.otlp]`: OTLP over gRPC.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use super::{ClientTls, Selecting};

/// Events and figures for a receiver of OTLP over gRPC, such as an OpenTelemetry collector.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Otlp {
    /// `http://HOST:PORT`, or `https://HOST:PORT`.
    pub endpoint: String,
    /// Whether events are sent, as log records.
    #[serde(default = "Otlp::default_logs")]
    pub logs: bool,
    /// Whether pairs of an entry and a return of the same function are sent too, as spans.
    #[serde(default)]
    pub traces: bool,
    /// Seconds between two reports of the figures, as metrics; 0 for none.
    #[serde(default = "super::number::<60>")]
    pub metrics_interval_s: u64,
    /// KiB that a request may have. Receivers refuse more than 4 MiB unless they are configured
    /// otherwise.
    #[serde(default = "super::number::<1024>")]
    pub max_request_kib: u64,
    /// Only probes whose names match one of these globs. Empty: all.
    #[serde(default)]
    pub probes: Vec<String>,
    /// Only probes whose labels match.
    #[serde(default)]
    pub labels: String,
    /// Only events that this filter selects.
    #[serde(default)]
    pub filter: String,
    /// Attributes of the resource, in addition to those that the daemon sets, or in place of them.
    #[serde(default)]
    pub resource: BTreeMap<String, String>,
    /// Metadata of each request, such as `authorization`.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// Certificates for `https://`.
    #[serde(default)]
    pub tls: Option<ClientTls>,
}

/// A text that no log shows.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Otlp {
    const fn default_logs() -> bool {
        true
    }

    /// Whether events are sent.
    pub(crate) const fn has_events(&self) -> bool {
        self.logs || self.traces
    }

    /// How often figures are sent. Absent: never.
    pub(crate) fn metrics_interval(&self) -> Option<Duration> {
        (self.metrics_interval_s > 0).then(|| Duration::from_secs(self.metrics_interval_s))
    }

    /// Largest request, in bytes.
    pub(crate) fn max_request_bytes(&self) -> usize {
        usize::try_from(self.max_request_kib.saturating_mul(1 << 10)).unwrap_or(usize::MAX)
    }

    /// The settings that select its probes and events.
    pub(crate) fn selecting(&self) -> Selecting<'_> {
        Selecting { probes: &self.probes, labels: &self.labels, filter: &self.filter }
    }
}
