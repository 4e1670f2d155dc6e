//! Starting the exporters that the configuration asks for.

use std::sync::Arc;

use thiserror::Error;
use tokio::runtime::Handle;

use super::exporter::{Exporter, Policy};
use super::jsonl::JsonLinesSink;
use super::metrics::Sources;
#[cfg(feature = "nats")]
use super::nats::{self, NatsSink};
use super::otlp::{self, Connection, ConnectionError, OtlpSink, Signals};
use super::prometheus::{Prometheus, PrometheusError};
use super::status::Shared;
use super::{Exporters, Sink};
use crate::config::export::{AddressError, Export, Selection};
use crate::config::{PROMETHEUS, Problem, server_config};
use crate::health::LabelsFile;
use crate::shutdown::Tasks;
use kprobed_control::store::Store;
use kprobed_host::kernel::HostIdentity;
use kprobed_trace::feed::Log;
use kprobed_trace::pipeline::{Hub, Order};

/// Records of OTLP are some fifteen times as large as events in their messages, and a failure
/// repeats a chunk.
const OTLP_CHUNK_BYTES: usize = 256 << 10;

/// Events of a chunk for OTLP.
const OTLP_CHUNK_EVENTS: u64 = 1 << 13;

/// Why an exporter cannot be made. The configuration was judged: a file has changed since.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Its certificates.
    #[error(transparent)]
    Tls(#[from] Problem),
    /// Where it listens.
    #[error(transparent)]
    Prometheus(#[from] PrometheusError),
    /// Its destination.
    #[error("`{setting}`: {error}")]
    Address {
        /// The setting.
        setting: &'static str,
        /// Why.
        error: AddressError,
    },
    /// The receiver of OTLP.
    #[error("`export.otlp.endpoint`: {0}")]
    Otlp(#[from] ConnectionError),
    /// The servers of NATS.
    #[cfg(feature = "nats")]
    #[error("`[export.nats]`: {0}")]
    Nats(#[from] nats::ConnectionError),
    /// Its selection.
    #[error("{0}")]
    Selection(String),
}

/// The parts of the daemon that exporters use.
#[derive(Debug)]
pub struct ExportParts<'a> {
    /// The source of events.
    pub hub: &'a Arc<Hub>,
    /// The history, and the state of the log.
    pub log: &'a Log,
    /// The database for their cursors.
    pub store: &'a Store,
    /// Which host this is.
    pub host: &'a HostIdentity,
    /// The labels of the host.
    pub labels: &'a Arc<LabelsFile>,
    /// The tasks that are awaited when the daemon stops.
    pub tasks: &'a Tasks,
    /// The threads that they run on.
    pub threads: &'a Handle,
}

/// Serves figures, if the configuration asks for it.
///
/// # Errors
/// See [`OpenError`].
pub async fn serve(
    export: &Export,
    sources: Sources,
    host: &HostIdentity,
    tasks: &Tasks,
) -> Result<(), OpenError> {
    if let Some(settings) = &export.otlp
        && let Some(interval) = settings.metrics_interval()
    {
        let selection = selection("otlp", settings.selecting().read())?;
        let host = otlp::Host::new(host, &settings.resource, &sources.labels);
        let receiver = (Connection::new(settings)?, host);
        tasks.spawn("metrics", otlp::report(receiver, (sources.clone(), selection), interval, tasks.clone()));
    }
    let Some(settings) = &export.prometheus else { return Ok(()) };
    let tls = settings.tls.as_ref().map(|files| server_config(&PROMETHEUS, files)).transpose()?;
    let selection = selection("prometheus", settings.selecting().read())?;
    let prometheus = Prometheus::bind(settings.listen, tls, selection, sources).await?;
    tracing::info!(address = %settings.listen, "serving metrics for Prometheus");
    tasks.spawn("prometheus", prometheus.run(tasks.clone()));
    Ok(())
}

/// Starts the exporters that the configuration asks for.
///
/// # Errors
/// See [`OpenError`].
pub fn open(export: &Export, parts: &ExportParts<'_>) -> Result<Exporters, OpenError> {
    let exporters = Exporters::default();
    if let Some(settings) = &export.jsonl {
        let target = settings
            .path
            .parse()
            .map_err(|error| OpenError::Address { setting: "export.jsonl.path", error })?;
        let sink = JsonLinesSink::new(settings, target, &parts.host.hostname);
        let defaults = Policy::default();
        let save_interval = JsonLinesSink::save_interval(settings).unwrap_or(defaults.save_interval);
        let selection = selection("jsonl", settings.selecting().read())?;
        let policy = Policy { save_interval, ..defaults };
        start("jsonl", settings.path.clone(), (sink, selection, policy), &exporters, parts);
    }
    if let Some(settings) = export.otlp.as_ref().filter(|settings| settings.has_events()) {
        let resource = otlp::Host::new(parts.host, &settings.resource, parts.labels);
        let signals = Signals { logs: settings.logs, traces: settings.traces };
        let limit = settings.max_request_bytes();
        let sink = OtlpSink::new(Connection::new(settings)?, resource, signals, limit);
        let selection = selection("otlp", settings.selecting().read())?;
        let order = if settings.traces { Order::Time } else { Order::default() };
        let (chunk_bytes, chunk_events) = (OTLP_CHUNK_BYTES, OTLP_CHUNK_EVENTS);
        let policy = Policy { chunk_bytes, chunk_events, order, ..Policy::default() };
        start("otlp", settings.endpoint.clone(), (sink, selection, policy), &exporters, parts);
    }
    #[cfg(feature = "nats")]
    if let Some(settings) = &export.nats {
        let sink = NatsSink::new(nats::Connection::new(settings, &parts.host.hostname)?, parts.host);
        let selection = selection("nats", settings.selecting().read())?;
        // With watermarks, so that readers can put the events of many hosts in order.
        let heartbeat = settings.heartbeat();
        let policy = Policy { order: Order::Time, heartbeat, ..Policy::default() };
        start("nats", settings.url.clone(), (sink, selection, policy), &exporters, parts);
    }
    Ok(exporters)
}

fn selection(
    exporter: &'static str,
    read: Result<Selection, Vec<(&'static str, String)>>,
) -> Result<Selection, OpenError> {
    let list = |wrong: Vec<(&str, String)>| -> String {
        let each = wrong.iter().map(|(setting, why)| format!("`export.{exporter}.{setting}`: {why}"));
        each.collect::<Vec<_>>().join("; ")
    };
    read.map_err(|wrong| OpenError::Selection(list(wrong)))
}

fn start<S: Sink>(
    name: &'static str,
    destination: String,
    (sink, selection, policy): (S, Selection, Policy),
    exporters: &Exporters,
    parts: &ExportParts<'_>,
) {
    let shared = Arc::new(Shared::new(name, destination, Arc::clone(parts.hub), parts.log.now));
    exporters.add(Arc::clone(&shared));
    let exporter = Exporter {
        sink,
        selection,
        policy,
        hub: Arc::clone(parts.hub),
        log: parts.log.clone(),
        store: parts.store.clone(),
        shared,
        tasks: parts.tasks.clone(),
    };
    parts.tasks.spawn_on(parts.threads, name, exporter.run());
}
