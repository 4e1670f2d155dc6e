//! Starting the exporters that the configuration asks for.

use std::fmt;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::exporter::{Exporter, Policy};
use super::jsonl::JsonLinesSink;
use super::metrics::Sources;
#[cfg(feature = "nats")]
use super::nats::NatsSink;
use super::otlp::{self, Connection, OtlpSink};
use super::prometheus::Prometheus;
use super::status::Shared;
use super::{Exporters, Sink};
use crate::config::export::{Export, JsonLinesTarget};
use crate::config::{PROMETHEUS, server_config};
use crate::health::LabelsFile;
use crate::shutdown::Tasks;
use crate::start_error::StartError;
use kprobed_control::store::Store;
use kprobed_host::kernel::HostIdentity;
use kprobed_trace::feed::Log;
use kprobed_trace::pipeline::{Hub, Order, View};

/// Records of OTLP are some fifteen times as large as events in their messages, and a failure
/// repeats a chunk.
const OTLP_CHUNK_BYTES: usize = 256 << 10;

/// Events of a chunk for OTLP.
const OTLP_CHUNK_EVENTS: u64 = 1 << 13;

/// Why an exporter cannot be made. The configuration was judged: a file has changed since.
pub(super) fn refused(why: impl fmt::Display) -> StartError {
    StartError::new(format!("cannot export events: {why}"))
        .fix("`kprobed --check-config` says what is wrong and what to write")
}

/// The parts of the daemon that exporters use.
#[derive(Clone, Debug)]
pub struct ExportParts {
    /// The source of events.
    pub hub: Arc<Hub>,
    /// The history, and the state of the log.
    pub log: Log,
    /// The database for their cursors.
    pub store: Store,
    /// Which host this is.
    pub host: HostIdentity,
    /// The labels of the host.
    pub labels: Arc<LabelsFile>,
    /// The tasks that are awaited when the daemon stops.
    pub tasks: Tasks,
    /// The threads that they run on.
    pub threads: Handle,
}

/// Serves figures, if the configuration asks for it.
///
/// # Errors
/// A file has changed since the configuration was judged, or the address of Prometheus cannot be taken.
pub async fn serve(
    export: &Export,
    sources: Sources,
    host: &HostIdentity,
    tasks: &Tasks,
) -> Result<(), StartError> {
    if let Some(settings) = &export.otlp
        && let Some(interval) = settings.metrics_interval()
    {
        let selection = selection("otlp", settings.selecting().read())?;
        let host = otlp::Host::new(host, &settings.resource, &sources.labels);
        let receiver = (Connection::new(settings)?, host);
        tasks.spawn("metrics", otlp::report(receiver, (sources.clone(), selection), interval, tasks.clone()));
    }
    let Some(settings) = &export.prometheus else { return Ok(()) };
    let tls = settings.tls.as_ref().map(|files| server_config(&PROMETHEUS, files));
    let tls = tls.transpose().map_err(refused)?;
    let selection = selection("prometheus", settings.selecting().read())?;
    let prometheus = Prometheus::bind(settings.listen, tls, selection, sources).await?;
    tracing::info!(address = %settings.listen, "serving metrics for Prometheus");
    tasks.spawn("prometheus", prometheus.run(tasks.clone()));
    Ok(())
}

/// Starts the exporters that the configuration asks for.
///
/// # Errors
/// A file has changed since the configuration was judged.
pub fn open(export: &Export, parts: &ExportParts) -> Result<Exporters, StartError> {
    let mut exporters = Vec::new();
    if let Some(settings) = &export.jsonl {
        let target = settings.path.parse::<JsonLinesTarget>();
        let target = target.map_err(|error| refused(format_args!("`export.jsonl.path`: {error}")))?;
        let is_file = matches!(target, JsonLinesTarget::File(_));
        let sink = JsonLinesSink::new(settings, target, &parts.host.hostname);
        let defaults = Policy::default();
        let save_interval = settings.sync_interval().filter(|_| is_file).unwrap_or(defaults.save_interval);
        let selection = selection("jsonl", settings.selecting().read())?;
        let policy = Policy { save_interval, ..defaults };
        exporters.push(start("jsonl", settings.path.clone(), (sink, selection, policy), parts));
    }
    if let Some(settings) = export.otlp.as_ref().filter(|settings| settings.has_events()) {
        let resource = otlp::Host::new(&parts.host, &settings.resource, &parts.labels);
        let sink = OtlpSink::new(settings, resource)?;
        let selection = selection("otlp", settings.selecting().read())?;
        let order = if settings.traces { Order::Time } else { Order::default() };
        let (chunk_bytes, chunk_events) = (OTLP_CHUNK_BYTES, OTLP_CHUNK_EVENTS);
        let policy = Policy { chunk_bytes, chunk_events, order, ..Policy::default() };
        exporters.push(start("otlp", settings.endpoint.clone(), (sink, selection, policy), parts));
    }
    #[cfg(feature = "nats")]
    if let Some(settings) = &export.nats {
        let sink = NatsSink::new(settings, &parts.host)?;
        let selection = selection("nats", settings.selecting().read())?;
        // With watermarks, so that readers can put the events of many hosts in order.
        let heartbeat = settings.heartbeat();
        let policy = Policy { order: Order::Time, heartbeat, ..Policy::default() };
        exporters.push(start("nats", settings.url.clone(), (sink, selection, policy), parts));
    }
    Ok(Exporters(exporters.into()))
}

/// The filters of the exporters of events, each with the name of its exporter, and what else selects its events.
pub fn filters(export: &Export) -> Vec<(&'static str, View)> {
    let jsonl = export.jsonl.as_ref().map(|settings| ("jsonl", settings.selecting()));
    let otlp = export.otlp.as_ref().filter(|settings| settings.has_events());
    let otlp = otlp.map(|settings| ("otlp", settings.selecting()));
    let nats = export.nats.as_ref().map(|settings| ("nats", settings.selecting()));
    let all = [jsonl, otlp, nats].into_iter().flatten();
    let read = all.filter_map(|(exporter, selecting)| Some((exporter, selecting.read().ok()?)));
    read.filter(|(_, view)| view.filter.is_some()).collect()
}

fn selection(
    exporter: &'static str,
    read: Result<View, Vec<(&'static str, String)>>,
) -> Result<View, StartError> {
    read.map_err(|wrong| {
        let each = wrong.iter().map(|(setting, why)| format!("`export.{exporter}.{setting}`: {why}"));
        refused(each.collect::<Vec<_>>().join("; "))
    })
}

fn start<S: Sink>(
    name: &'static str,
    destination: String,
    (sink, selection, policy): (S, View, Policy),
    parts: &ExportParts,
) -> Arc<Shared> {
    let shared = Arc::new(Shared::new(name, destination, Arc::clone(&parts.hub), parts.log.now));
    let exporter = Exporter { sink, selection, policy, shared: Arc::clone(&shared), parts: parts.clone() };
    parts.tasks.spawn_on(&parts.threads, name, exporter.run());
    shared
}
