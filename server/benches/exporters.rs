//! Benchmark of exporters: processor time of the daemon for each event, by exporter.
//!
//! Events are published as fast as they are taken, once for each exporter, and the processor time
//! of the threads that send is divided by the number of events. A gRPC stream of a client is the
//! baseline.
//!
//! The receivers are Debian's NATS server (with the feature `nats`), an OTLP collector and a client
//! in this process that only count, and a file. Their own time is not measured: they have threads,
//! or a process, of their own. For OTLP, the system calls that write as many bytes are measured
//! alone, too.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "support/as_daemon.rs"]
mod as_daemon;
mod support;

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use kprobed::config::Config;
use kprobed::export::{self, ExportParts, Exporters};
use kprobed::rpc::{Access, EventRoutes, EventServer};
use kprobed::shutdown::Tasks;
use kprobed_client::event::{EventStream, StreamItem, StreamRequest};
use kprobed_client::{Client, ConnectOptions};
use kprobed_control::auth::{AuditQueue, Rights};
use kprobed_control::store::Store;
use kprobed_control::{Controller, Registry};
use kprobed_host::kernel::{ClockMapping, HostIdentity};
use kprobed_host::tracefs::format::Format;
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_otlp::logs_service::logs_service_server::{LogsService, LogsServiceServer};
use kprobed_otlp::logs_service::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use kprobed_rights::Roles;
use kprobed_trace::decode::{CompileOptions, CompiledFormat};
use kprobed_trace::feed::Log;
use kprobed_trace::filter::KernelFilterFeatures;
use kprobed_trace::history::History;
use kprobed_trace::pipeline::{Binder, Draft, EventSource, Group, Hub};
use kprobed_trace::spool::{BootId, Cursor, SpoolOptions};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use self::as_daemon::as_daemon;

/// Events of one batch, as readers publish them.
const BATCH: u64 = 4096;

/// Batches between two checks that the history has them: it drops what does not fit into its queue.
const TOGETHER: u64 = 64;

/// The events are of 1970, and none is to expire.
const AGES: Duration = Duration::from_hours(100 * 365 * 24);

/// Bytes of one write in the baseline that only writes: as much as a large request.
const WRITTEN_BYTES: usize = 1 << 20;

/// How the threads that send are called.
const SENDING: &str = "sending";

/// Four arguments, as those of a probe with four.
const FORMAT: &str = "name: four\nID: 7\nformat:\n\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\
\tfield:u64 a;\toffset:16;\tsize:8;\tsigned:0;\n\
\tfield:u64 b;\toffset:24;\tsize:8;\tsigned:0;\n\
\tfield:u64 c;\toffset:32;\tsize:8;\tsigned:0;\n\
\tfield:u64 d;\toffset:40;\tsize:8;\tsigned:0;\n\n\
print fmt: \"(%lx) a=%Lu b=%Lu c=%Lu d=%Lu\", REC->__probe_ip, REC->a, REC->b, REC->c, REC->d\n";

/// Cost of one exporter.
struct Took {
    way: &'static str,
    sending: Duration,
    wall: Duration,
    events: u64,
}

impl Took {
    fn print(&self, stream: &Self) {
        let nanoseconds = |took: &Self| took.sending.as_nanos() as f64 / took.events as f64;
        let own = nanoseconds(self);
        println!(
            "{:<11} {own:>8.1} ns an event  {:>6.2} million a second of one core  {:>5.2} of the stream  {:>6.2} s in all",
            self.way,
            1000.0 / own,
            own / nanoseconds(stream),
            self.wall.as_secs_f64(),
        );
    }
}

/// A daemon without a kernel: everything after the readers.
struct Daemon {
    hub: Arc<Hub>,
    log: Log,
    store: Store,
    tasks: Tasks,
    host: HostIdentity,
    threads: Runtime,
    _directory: tempfile::TempDir,
}

impl Daemon {
    fn start() -> Self {
        let threads =
            Builder::new_multi_thread().worker_threads(1).thread_name(SENDING).enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let hub = Arc::new(Hub::new(Binder::new("here".to_owned(), None)));
        let options =
            SpoolOptions::new(&directory.path().join("spool"), 1 << 30, AGES, Duration::from_secs(1));
        let boot_id = BootId([7; 16]);
        let history = {
            let _context = threads.enter();
            Arc::new(History::start(options, boot_id, &hub).unwrap())
        };
        let now = Cursor { boot_id, epoch: history.epoch(), sequence: 0 };
        let store = threads.block_on(Store::open(directory.path(), SystemTime::now())).unwrap();
        let text = |text: &str| text.to_owned();
        let host = HostIdentity {
            hostname: text("here"),
            kernel_release: text("6.12.0"),
            kernel_version: text("#1 SMP"),
            machine: text("x86_64"),
            boot_id: text("07070707-0707-0707-0707-070707070707"),
        };
        let log = Log { history: Some(history), now };
        Self { hub, log, store, tasks: Tasks::default(), host, threads, _directory: directory }
    }

    fn stop(self) {
        self.hub.close();
        self.threads.block_on(async {
            assert!(self.tasks.stop(Duration::from_secs(5)).await);
            self.log.history.unwrap().stop().await;
        });
    }

    fn export(&self, text: &str) -> Exporters {
        let config: Config = toml::from_str(text).unwrap();
        let _context = self.threads.enter();
        let parts = ExportParts {
            hub: Arc::clone(&self.hub),
            log: self.log.clone(),
            store: self.store.clone(),
            host: self.host.clone(),
            labels: Arc::default(),
            tasks: self.tasks.clone(),
            threads: self.threads.handle().clone(),
        };
        let exporters = export::open(&config.export, &parts).unwrap();
        wait_until(|| exporters.statuses()[0].cursor.is_some());
        exporters
    }

    fn serve(&self) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (control, _) = Controller::channel();
        let registry = Arc::new(Registry::default());
        let service = EventRoutes::new(EventServer {
            hub: Arc::clone(&self.hub),
            control,
            host: self.host.clone(),
            filter_features: KernelFilterFeatures::default(),
            log: self.log.clone(),
            exporters: Exporters::default(),
            access: Access { rights: Arc::new(Rights::new(Roles::default(), AuditQueue::new().0)), registry },
        });
        self.threads.spawn(async move {
            let incoming = TcpListenerStream::new(TcpListener::from_std(listener).unwrap());
            Server::builder()
                .layer(as_daemon())
                .add_service(service)
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
        address
    }

    /// Publishes as many events as are to be measured, and waits until all of them are out.
    fn measure(&self, way: &'static str, events: u64, is_out: impl Fn(u64) -> bool) -> Took {
        let plan =
            CompiledFormat::compile(&Format::parse(FORMAT).unwrap(), &CompileOptions::default()).unwrap();
        let source = EventSource::new(1, ProbeUid(1), ProbeName::new("kprobes", "four").unwrap(), plan);
        let mut columns = source.plan.columns();
        for row in 0..BATCH {
            let mut record = [0_u8; 48];
            record[0] = 7;
            for (field, bytes) in record.chunks_exact_mut(8).enumerate().skip(2) {
                bytes.copy_from_slice(&(row << (field * 4)).to_le_bytes());
            }
            source.plan.decode(&record, 1000 + row, &mut columns).unwrap();
        }
        let groups = vec![Group { origin: Arc::clone(&source.origin), columns }];
        let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0, sampled_at_ns: 0 };
        let draft = Draft { cpu: 0, groups, tasks: vec![], symbols: vec![], clock };
        let history = self.log.history.as_ref().unwrap();
        let (begun, before) = (Instant::now(), support::cpu_time_of(SENDING));
        let mut published = 0;
        while published < events {
            for _ in 0..TOGETHER {
                self.hub.publish(&draft);
            }
            published += TOGETHER * BATCH;
            self.threads.block_on(history.settle()).unwrap();
            // Otherwise what is measured is how the history is read.
            wait_until(|| is_out(published));
        }
        let sending = support::cpu_time_of(SENDING).saturating_sub(before);
        Took { way, sending, wall: begun.elapsed(), events: published }
    }
}

fn wait_until(holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_mins(1), "nothing goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An exporter that gets everything.
fn exporter(way: &'static str, text: &str, events: u64) -> Took {
    let daemon = Daemon::start();
    let exporters = daemon.export(text);
    let took = daemon.measure(way, events, |published| {
        let status = exporters.statuses().remove(0);
        assert_eq!((status.failures, status.dropped), (0, 0), "{status:?}");
        status.acknowledged == published
    });
    let status = exporters.statuses().remove(0);
    let passed = status.acknowledged + status.dropped + status.expired + status.not_selected;
    assert_eq!(status.read, status.queued.map(|queued| passed + queued));
    daemon.stop();
    took
}

/// A client that counts what it gets.
fn stream(others: &Runtime, events: u64) -> Took {
    let daemon = Daemon::start();
    let address = daemon.serve();
    let counted = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&counted);
    let (started, is_there) = std::sync::mpsc::channel();
    others.spawn(async move {
        let target = format!("tcp://{address}").parse().unwrap();
        let client = Client::connect(target, ConnectOptions::default()).await.unwrap();
        let mut stream: EventStream = client.stream_events(StreamRequest::new()).await.unwrap();
        loop {
            // The daemon's end is this one's.
            let Ok(item) = stream.next().await else { return };
            match item {
                Some(StreamItem::Batch(batch)) => {
                    counts.fetch_add(batch.len() as u64, Ordering::Relaxed);
                }
                Some(StreamItem::Loss(loss)) => panic!("{loss:?}"),
                Some(StreamItem::Epoch(_)) => started.send(()).unwrap(),
                Some(_) => {}
                None => return,
            }
        }
    });
    is_there.recv().unwrap();
    let took = daemon.measure("gRPC", events, |published| counted.load(Ordering::Relaxed) == published);
    daemon.stop();
    took
}

/// Takes everything, and counts its bytes.
struct Collector(Arc<AtomicU64>);

#[tonic::async_trait]
impl LogsService for Collector {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        self.0.fetch_add(request.get_ref().encoded_len() as u64, Ordering::Relaxed);
        Ok(Response::new(ExportLogsServiceResponse::default()))
    }
}

/// Returns what it took, and how many bytes that was.
fn otlp(others: &Runtime, events: u64) -> (Took, u64) {
    let bytes = Arc::new(AtomicU64::new(0));
    let collector = Collector(Arc::clone(&bytes));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    others.spawn(async move {
        let incoming = TcpListenerStream::new(TcpListener::from_std(listener).unwrap());
        let service = LogsServiceServer::new(collector).max_decoding_message_size(usize::MAX);
        Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
    });
    let text = format!("[export.otlp]\nendpoint = 'http://{address}'\nmetrics_interval_s = 0\n");
    let took = exporter("OTLP", &text, events);
    (took, bytes.load(Ordering::Relaxed))
}

/// Only the system calls that bring so many bytes to another thread: what they take cannot be
/// saved.
fn written(others: &Runtime, way: &'static str, bytes: u64, events: u64) -> Took {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let reader = others.spawn_blocking(move || {
        let mut stream = listener.accept().unwrap().0;
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap()
    });
    let writer = std::thread::Builder::new().name(SENDING.to_owned()).spawn(move || {
        let (begun, before) = (Instant::now(), support::cpu_time_of(SENDING));
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let buffer = vec![7; WRITTEN_BYTES];
        let mut left = bytes;
        while left > 0 {
            let size = left.min(WRITTEN_BYTES as u64);
            stream.write_all(&buffer[..usize::try_from(size).unwrap()]).unwrap();
            left -= size;
        }
        let sending = support::cpu_time_of(SENDING).saturating_sub(before);
        Took { way, sending, wall: begun.elapsed(), events }
    });
    let took = writer.unwrap().join().unwrap();
    assert_eq!(others.block_on(reader).unwrap(), bytes);
    took
}

#[cfg(feature = "nats")]
fn nats(events: u64, stream: &Took) {
    use std::process::{Command, Stdio};

    use kprobed_vm::{cache::Cache, unpacked::Unpacked};

    let package = Unpacked::ensure(&Cache::from_environment().unwrap(), "nats-server").unwrap();
    let found = ["usr/sbin/nats-server", "usr/bin/nats-server"].map(|path| package.program(path));
    let program = found.into_iter().find(|path| path.exists()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = directory.path().join("server.conf");
    let store = directory.path().join("store");
    let text = format!(
        "host: 127.0.0.1\nport: {}\njetstream {{ store_dir: '{}' }}\n",
        address.port(),
        store.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut server = Command::new(program);
    server.arg("-c").arg(config).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = server.spawn().unwrap();
    wait_until(|| std::net::TcpStream::connect(address).is_ok());
    let text = format!(
        "[export.nats]\nurl = 'nats://{address}'\nheartbeat_ms = 0\n[export.nats.create]\nmax_mib = 1024\n"
    );
    exporter("NATS", &text, events).print(stream);
    server.kill().unwrap();
    server.wait().unwrap();
}

#[cfg(not(feature = "nats"))]
fn nats(_: u64, _: &Took) {
    println!("NATS        not measured: this build has no feature `nats`");
}

fn main() {
    let events = support::much(20_000_000, 300_000) as u64;
    // A tenth, for what takes ten times as long.
    let fewer = events / 10;
    let others =
        Builder::new_multi_thread().worker_threads(1).thread_name("others").enable_all().build().unwrap();
    let stream = stream(&others, events);
    stream.print(&stream);
    nats(events, &stream);
    let (took, bytes) = otlp(&others, fewer);
    let records = took.events;
    took.print(&stream);
    println!("{:<11} {:>8} bytes an event", "", bytes / records);
    written(&others, "its bytes", bytes, records).print(&stream);
    let file = tempfile::tempdir().unwrap();
    let path = file.path().join("events.jsonl");
    exporter(
        "JSON Lines",
        &format!("[export.jsonl]\npath = '{}'\nsync_interval_ms = 0\n", path.display()),
        fewer,
    )
    .print(&stream);
    others.shutdown_background();
}
