//! Tests of the OTLP exporter against a collector in this process, whose services are generated
//! from the same protos.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use kprobed_otlp::common::any_value::Value as Any;
use kprobed_otlp::common::{AnyValue, KeyValue};
use kprobed_otlp::logs::LogRecord;
use kprobed_otlp::logs_service::logs_service_server::{LogsService, LogsServiceServer};
use kprobed_otlp::logs_service::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use kprobed_otlp::trace_service::trace_service_server::{TraceService, TraceServiceServer};
use kprobed_otlp::trace_service::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::server::Router;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use super::*;
use kprobed_trace::pipeline::samples::{return_source, watermark};

/// What the collector answers.
#[derive(Clone, Debug, Default)]
pub(crate) enum Answer {
    #[default]
    Takes,
    Refuses(Status),
    Rejects(i64),
    Hangs,
}

#[derive(Clone, Default)]
pub(crate) struct Collector {
    answer: Arc<Mutex<Answer>>,
    taken: Arc<Mutex<Vec<ExportLogsServiceRequest>>>,
    tokens: Arc<Mutex<BTreeSet<String>>>,
}

#[tonic::async_trait]
impl LogsService for Collector {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let token = request.metadata().get("authorization").and_then(|token| token.to_str().ok());
        self.tokens.lock().unwrap().extend(token.map(ToOwned::to_owned));
        let answer = self.answer.lock().unwrap().clone();
        let mut response = ExportLogsServiceResponse::default();
        match answer {
            Answer::Takes => {}
            Answer::Refuses(status) => return Err(status),
            Answer::Rejects(rejected_log_records) => {
                let error_message = "too old".to_owned();
                response.partial_success =
                    Some(ExportLogsPartialSuccess { rejected_log_records, error_message });
            }
            Answer::Hangs => std::future::pending().await,
        }
        self.taken.lock().unwrap().push(request.into_inner());
        Ok(Response::new(response))
    }
}

/// A collector that listens. Its connections end with it.
pub(crate) struct Served(Option<Runtime>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

pub(crate) fn field<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Any> {
    attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?.value.as_ref()
}

pub(crate) fn integer(value: Option<&Any>) -> u64 {
    match value {
        Some(Any::IntValue(value)) => u64::try_from(*value).unwrap(),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn body(record: &LogRecord) -> &[KeyValue] {
    match &record.body {
        Some(AnyValue { value: Some(Any::KvlistValue(list)) }) => &list.values,
        other => panic!("{other:?}"),
    }
}

impl Collector {
    pub(crate) fn answers(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    pub(crate) fn listen(&self, address: &str) -> (SocketAddr, Served) {
        self.serve(address, Server::builder())
    }

    fn serve(&self, address: &str, mut server: Server) -> (SocketAddr, Served) {
        Self::serve_router(address, server.add_service(LogsServiceServer::new(self.clone())))
    }

    fn listen_with_spans(&self, address: &str, spans: &Spans) -> (SocketAddr, Served) {
        let logs = Server::builder().add_service(LogsServiceServer::new(self.clone()));
        Self::serve_router(address, logs.add_service(TraceServiceServer::new(spans.clone())))
    }

    fn serve_router(address: &str, router: Router) -> (SocketAddr, Served) {
        let threads = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        threads.spawn(async move {
            let incoming = TcpListenerStream::new(TcpListener::from_std(listener).unwrap());
            router.serve_with_incoming(incoming).await.unwrap();
        });
        (address, Served(Some(threads)))
    }

    fn records(&self) -> Vec<LogRecord> {
        let taken = self.taken.lock().unwrap();
        let logs = taken.iter().flat_map(|request| &request.resource_logs);
        logs.flat_map(|logs| &logs.scope_logs).flat_map(|scope| &scope.log_records).cloned().collect()
    }

    /// The records that it has taken since this was last asked.
    #[cfg(feature = "nats")]
    pub(crate) fn take_records(&self) -> impl Iterator<Item = LogRecord> + use<> {
        let taken = std::mem::take(&mut *self.taken.lock().unwrap());
        let logs = taken.into_iter().flat_map(|request| request.resource_logs);
        logs.flat_map(|logs| logs.scope_logs).flat_map(|scope| scope.log_records)
    }

    /// Places of the events in the log.
    fn sequences(&self) -> Vec<u64> {
        let records = self.records();
        let events = records.iter().filter(|record| record.event_name == "kprobed.event");
        events.map(|event| integer(field(&event.attributes, "kprobed.sequence"))).collect()
    }
}

pub(crate) fn otlp(endpoint: &str, rest: &str) -> Export {
    let text = format!("[export.otlp]\nendpoint = '{endpoint}'\nmetrics_interval_s = 0\n{rest}\n");
    let config: Config = toml::from_str(&text).unwrap();
    config.export
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_arrives_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let collector = Collector::default();
    let (address, _server) = collector.listen("127.0.0.1:0");
    let settings = "[export.otlp.headers]\nauthorization = 'Bearer x'\n[export.otlp.resource]\n\"service.name\" = 'probes'";
    let exporters = run.export(&otlp(&format!("http://{address}"), settings));
    run.drained(&exporters).await;
    let a = source("a", 1);
    for batch in 0..20 {
        publish(&run.hub, &a, 3, 7, (batch + 1) * 1000);
    }
    let status = run.drained(&exporters).await;
    assert_eq!(terms(&status), Terms { acknowledged: 140, ..Terms::default() });
    assert_eq!(collector.sequences(), (0..140).collect::<Vec<_>>());
    assert_eq!(*collector.tokens.lock().unwrap(), BTreeSet::from(["Bearer x".to_owned()]));

    let records = collector.records();
    let event = records.iter().find(|record| record.event_name == "kprobed.event").unwrap();
    assert_eq!((event.time_unix_nano, body(event).len()), (1000, 0));
    assert_eq!(field(&event.attributes, "kprobed.probe"), Some(&Any::StringValue("kprobes/a".to_owned())));
    assert_eq!(integer(field(&event.attributes, "cpu.logical_number")), 3);
    assert_eq!(integer(field(&event.attributes, "thread.id")), 0);
    // What was not selected or has expired would be here: all of the log is accounted for.
    let progress = records.iter().filter(|record| record.event_name == "kprobed.progress");
    let sum = |term: &str| progress.clone().map(|record| integer(field(body(record), term))).sum::<u64>();
    assert_eq!((sum("read"), sum("events"), sum("not_selected"), sum("expired")), (140, 140, 0, 0));

    let taken = collector.taken.lock().unwrap().clone();
    let logs = &taken[0].resource_logs[0];
    let resource = &logs.resource.as_ref().unwrap().attributes;
    for (name, expected) in [
        ("service.name", "probes"),
        ("host.name", "here"),
        ("host.arch", "amd64"),
        ("os.type", "linux"),
        ("os.version", "6.12.0"),
    ] {
        assert_eq!(field(resource, name), Some(&Any::StringValue(expected.to_owned())), "{name}");
    }
    let scope = logs.scope_logs[0].scope.as_ref().unwrap();
    assert_eq!(integer(field(&scope.attributes, "kprobed.epoch")), run.log.now.epoch);
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_gets_everything_later() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let collector = Collector::default();
    let (address, server) = collector.listen("127.0.0.1:0");
    let exporters = run.export(&otlp(&format!("http://{address}"), ""));
    run.drained(&exporters).await;
    let a = source("a", 1);
    publish(&run.hub, &a, 0, 10, 1000);
    run.drained(&exporters).await;
    drop(server);
    publish(&run.hub, &a, 0, 10, 2000);
    let failing = async {
        loop {
            let status = exporters.statuses().remove(0);
            if status.state() == ExporterState::Failing {
                return status.error;
            }
            publish(&run.hub, &a, 0, 10, 3000);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(20), failing).await.unwrap();
    assert!(error.contains("connect to") || error.contains("export logs"), "{error}");
    let (_, _server) = collector.listen(&address.to_string());
    let status = run.drained(&exporters).await;
    let sequences: BTreeSet<u64> = collector.sequences().into_iter().collect();
    assert_eq!(sequences, (0..status.acknowledged).collect());
    let acknowledged = status.acknowledged;
    assert_eq!(terms(&status), Terms { acknowledged, ..Terms::default() });
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_counted_and_failures_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let collector = Collector::default();
    let (address, _server) = collector.listen("127.0.0.1:0");
    let exporters = run.export(&otlp(&format!("http://{address}"), ""));
    run.drained(&exporters).await;
    let a = source("a", 1);

    collector.answers(Answer::Rejects(4));
    publish(&run.hub, &a, 0, 10, 1000);
    let status = run.drained(&exporters).await;
    let expected = Terms { acknowledged: 6, dropped: 4, ..Terms::default() };
    assert_eq!((terms(&status), status.refusal.as_str()), (expected, "too old"));

    collector.answers(Answer::Refuses(Status::invalid_argument("cannot read that")));
    publish(&run.hub, &a, 0, 10, 2000);
    let status = run.drained(&exporters).await;
    let expected = Terms { acknowledged: 6, dropped: 14, ..Terms::default() };
    assert_eq!((terms(&status), status.refusal.as_str()), (expected, "cannot read that"));

    collector.answers(Answer::Refuses(Status::unauthenticated("who are you")));
    publish(&run.hub, &a, 0, 10, 3000);
    let failing = async {
        loop {
            let status = exporters.statuses().remove(0);
            if status.state() == ExporterState::Failing {
                return status.error;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(20), failing).await.unwrap();
    assert!(error.contains("who are you") && error.contains("export.otlp.headers"), "{error}");
    collector.answers(Answer::Takes);
    let status = run.drained(&exporters).await;
    assert_eq!(terms(&status), Terms { acknowledged: 16, dropped: 14, ..Terms::default() });
    run.stop().await;
}

/// A collector with another answer for spans, and none but `Unimplemented` without.
#[derive(Clone, Default)]
struct Spans {
    answer: Arc<Mutex<Answer>>,
    taken: Arc<Mutex<u64>>,
    refused: Arc<Mutex<u64>>,
}

#[tonic::async_trait]
impl TraceService for Spans {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        if let Answer::Refuses(status) = &*self.answer.lock().unwrap() {
            *self.refused.lock().unwrap() += 1;
            return Err(status.clone());
        }
        let request = request.into_inner();
        let scopes = request.resource_spans.iter().flat_map(|spans| &spans.scope_spans);
        *self.taken.lock().unwrap() += scopes.map(|scope| scope.spans.len() as u64).sum::<u64>();
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Publishes calls whose spans can be made once a later event has come.
fn publish_calls(run: &Run, calls: u64, at_ns: u64) {
    let (entry, exit) = (source("a", 1), return_source("b", 2));
    for call in 0..calls {
        publish(&run.hub, &entry, 0, 1, at_ns + 2000 * call);
        publish(&run.hub, &exit, 0, 1, at_ns + 2000 * call + 1000);
    }
    watermark(&run.hub, at_ns + 2000 * calls);
}

/// Lets time pass until something is so.
async fn until(run: &Run, mut now_ns: u64, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE);
        now_ns += 1;
        watermark(&run.hub, now_ns);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_is_not_sent_again_when_spans_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let (collector, spans) = (Collector::default(), Spans::default());
    let (address, _server) = collector.listen_with_spans("127.0.0.1:0", &spans);
    let settings = otlp(&format!("http://{address}"), "traces = true");
    let exporters = run.export(&settings);
    run.drained(&exporters).await;

    // It cannot now: log records are taken once, and spans later.
    *spans.answer.lock().unwrap() = Answer::Refuses(Status::unavailable("later"));
    publish_calls(&run, 5, 1000);
    let error = failing(&exporters).await;
    assert!(error.contains("export traces") && error.contains("later"), "{error}");
    let refused = *spans.refused.lock().unwrap();
    until(&run, 12_000, || *spans.refused.lock().unwrap() > refused).await;
    *spans.answer.lock().unwrap() = Answer::Takes;
    until(&run, 20_000, || *spans.taken.lock().unwrap() == 5).await;
    let status = run.drained(&exporters).await;
    assert_eq!(collector.sequences(), (0..10).collect::<Vec<_>>(), "each record once");
    assert_eq!((status.acknowledged, *spans.taken.lock().unwrap()), (10, 5));

    // It takes none: that is final, and holds up nothing.
    *spans.answer.lock().unwrap() = Answer::Refuses(Status::unimplemented("unknown service"));
    publish_calls(&run, 5, 1_000_000);
    until(&run, 2_000_000, || exporters.statuses()[0].dropped_spans == 5).await;
    let status = run.drained(&exporters).await;
    assert_eq!(collector.sequences(), (0..20).collect::<Vec<_>>());
    assert_eq!((status.acknowledged, status.dropped_spans), (20, 5));
    assert!(status.refusal.contains("takes log records and no traces"), "{}", status.refusal);
    // The records of how far the others go come once too.
    let progress = collector.records();
    let progress = progress.iter().filter(|record| record.event_name == "kprobed.progress");
    assert_eq!(progress.map(|record| integer(field(body(record), "read"))).sum::<u64>(), 20);
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_hangs_does_not_hold_up_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let collector = Collector::default();
    collector.answers(Answer::Hangs);
    let (address, _server) = collector.listen("127.0.0.1:0");
    let exporters = run.export(&otlp(&format!("http://{address}"), ""));
    let a = source("a", 1);
    publish(&run.hub, &a, 0, 10, 1000);
    // `stop` asserts that all tasks end in time.
    run.stop().await;
    assert!(collector.records().is_empty());
    assert_eq!(exporters.statuses()[0].acknowledged, 0);
    // Nothing was acknowledged: another run of the daemon sends it.
    collector.answers(Answer::Takes);
    let run = Run::start(directory.path()).await;
    let exporters = run.export(&otlp(&format!("http://{address}"), ""));
    run.drained(&exporters).await;
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_as_large_as_they_may_be() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let collector = Collector::default();
    let (address, _server) = collector.listen("127.0.0.1:0");
    let exporters = run.export(&otlp(&format!("http://{address}"), "max_request_kib = 16"));
    run.drained(&exporters).await;
    publish(&run.hub, &source("a", 1), 0, 1000, 1000);
    run.drained(&exporters).await;
    assert_eq!(collector.sequences(), (0..1000).collect::<Vec<_>>());
    let sizes: Vec<usize> = collector.taken.lock().unwrap().iter().map(prost::Message::encoded_len).collect();
    assert!(sizes.iter().all(|size| *size <= 16 << 10), "{sizes:?}");
    // Not one record each.
    assert!(sizes.len() < 40, "{sizes:?}");
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_is_that_of_the_authority_only() {
    let directory = tempfile::tempdir().unwrap();
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let path = directory.path().join(name);
        fs::write(&path, issuer.pem()).unwrap();
        (issuer, path)
    };
    let ((issuer, good), (_, other)) = (authority("ca.pem"), authority("other.pem"));
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["collector.example".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let identity = Identity::from_pem(certificate.pem(), key.serialize_pem());
    let server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).unwrap();

    let collector = Collector::default();
    let (address, _server) = collector.serve("127.0.0.1:0", server);
    let settings = |ca: &Path| {
        let tls = format!("[export.otlp.tls]\nca = '{}'\ndomain = 'collector.example'", ca.display());
        otlp(&format!("https://{address}"), &tls)
    };
    let run = Run::start(directory.path()).await;
    let exporters = run.export(&settings(&other));
    let error = failing(&exporters).await;
    assert!(error.contains("invalid peer certificate"), "{error}");
    run.stop().await;

    let run = Run::start(directory.path()).await;
    let exporters = run.export(&settings(&good));
    run.drained(&exporters).await;
    publish(&run.hub, &source("a", 1), 0, 10, 1000);
    run.drained(&exporters).await;
    assert_eq!(collector.sequences(), (0..10).collect::<Vec<_>>());
    run.stop().await;
}
