//! Metrics of the daemon, for Prometheus and OTLP.
//!
//! Owns which series exist. Every value is read from the ledger when it is requested: there is no
//! second set of counters that could disagree. A series of a probe is labelled with its name and
//! with no other field of its events, and ends with the probe.

mod families;
mod process;
#[cfg(test)]
pub(super) mod samples;

pub use families::{Family, Kind, Point, SERIES_OF_A_PROBE, Value};

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use kprobed_proto::v1::ExporterLedger;

use self::process::Process;
use crate::auth::LiveTls;
use crate::config::export::Selection;
use crate::export::Exporters;
use crate::health::LabelsFile;
use kprobed_control::error::Error;
use kprobed_control::store::Store;
use kprobed_control::{ControlHandle, Ledger, Registry};
use kprobed_lang::model::Labels;
use kprobed_trace::history::{History, HistoryCounts};
use kprobed_trace::pipeline::View;

/// The sources of all metrics.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The ledger.
    pub control: ControlHandle,
    /// The labels of probes.
    pub registry: Arc<Registry>,
    /// The history, when one is kept.
    pub history: Option<Arc<History>>,
    /// The exporters of events.
    pub exporters: Exporters,
    /// Whether changes can be stored.
    pub store: Store,
    /// The certificates for clients.
    pub tls: Option<Arc<LiveTls>>,
    /// Release of the running kernel.
    pub kernel_release: String,
    /// Mount point of procfs.
    pub procfs: PathBuf,
    /// The labels of the host.
    pub labels: Arc<LabelsFile>,
}

/// Everything that one scrape shows.
#[derive(Debug)]
pub struct Metrics {
    /// Of selected probes only.
    pub ledger: Ledger,
    /// Which of its probes are switched on.
    pub enabled: Vec<bool>,
    /// The history.
    pub history: Option<HistoryCounts>,
    /// The exporters of events.
    pub exporters: Vec<ExporterLedger>,
    /// Whether the last change could be stored.
    pub stores: bool,
    /// When the certificate for clients ends.
    pub certificate_end: Option<SystemTime>,
    /// Release of the running kernel.
    pub kernel_release: String,
    /// The daemon itself.
    pub process: Process,
}

impl Sources {
    /// Reads the values.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn read(&self, selection: &Selection) -> Result<Metrics, Error> {
        let mut ledger = self.control.ledger().await?;
        let view =
            View { probes: selection.probes.clone(), labels: selection.labels.clone(), ..View::default() };
        ledger.probes.retain(|probe| {
            let labels = self
                .registry
                .by_uid(probe.uid)
                .map_or_else(Labels::default, |probe| probe.spec.labels.clone());
            view.selects(&probe.name, &labels)
        });
        let is_on = |uid| self.registry.by_uid(uid).is_none_or(|probe| probe.spec.enabled);
        Ok(Metrics {
            enabled: ledger.probes.iter().map(|probe| is_on(probe.uid)).collect(),
            ledger,
            history: self.history.as_ref().map(|history| history.counts()),
            exporters: self.exporters.statuses(),
            stores: !self.store.health().failing,
            certificate_end: self.tls.as_ref().and_then(|tls| tls.certificate_end()),
            kernel_release: self.kernel_release.clone(),
            process: Process::read(&self.procfs),
        })
    }
}
