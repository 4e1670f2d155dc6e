//! Metrics of the daemon, for Prometheus and OTLP.
//!
//! Owns which series exist. Every value is read from the ledger when it is requested: there is no
//! second set of counters that could disagree. A series of a probe is labelled with its name and
//! with no other field of its events, and ends with the probe.

mod families;
#[cfg(test)]
pub(super) mod samples;

pub use families::{Family, Kind, Point, Value};

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kprobed_proto::v1::ExporterLedger;

use crate::auth::LiveTls;
use crate::export::Exporters;
use crate::health::LabelsFile;
use kprobed_control::error::Error;
use kprobed_control::store::Store;
use kprobed_control::{ControlHandle, Ledger, Registry};
use kprobed_host::kernel::processor_time;
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

/// The daemon as a process. What cannot be read is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// Processor time, user and system.
    pub cpu: Option<Duration>,
    /// Memory that is its own now, in bytes (`VmRSS`).
    pub resident_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_files: Option<u64>,
    /// When it was started.
    pub start: Option<SystemTime>,
}

impl Sources {
    /// Reads the values.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn read(&self, selection: &View) -> Result<Metrics, Error> {
        let mut ledger = self.control.ledger().await?;
        let no_labels = Labels::default();
        ledger.probes.retain(|probe| {
            let known = self.registry.by_uid(probe.uid);
            let labels = known.as_ref().map_or(&no_labels, |known| &known.spec.labels);
            selection.selects(&probe.name, labels)
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

impl Process {
    /// Reads it.
    fn read(procfs: &Path) -> Self {
        let own = procfs.join("self");
        let status = fs::read_to_string(own.join("status")).unwrap_or_default();
        Self {
            cpu: processor_time(),
            resident_bytes: resident_bytes(&status),
            open_files: fs::read_dir(own.join("fd")).ok().map(|files| files.count() as u64),
            start: fs::metadata(&own).and_then(|found| found.modified()).ok(),
        }
    }
}

/// `VmRSS` of a status file (fs/proc/task_mmu.c:task_mem).
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself() {
        let process = Process::read(Path::new("/proc"));
        assert!(process.resident_bytes.unwrap() > 1 << 20, "{process:?}");
        assert!(process.open_files.unwrap() > 2, "{process:?}");
        assert!(process.cpu.is_some() && process.start.unwrap() < SystemTime::now(), "{process:?}");
        assert_eq!(resident_bytes("VmRSS:\t  12 kB\n"), Some(12 << 10));
        assert_eq!(resident_bytes("VmRSS: many kB\n"), None);
    }
}
