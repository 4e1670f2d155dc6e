//! End-to-end test of all exporters: the same million events by gRPC, NATS, OTLP and JSON Lines,
//! while each receiver is killed and stopped in turn.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use kprobed_client::api::{Delivery, OverflowPolicy};
use kprobed_client::event::{
    EventFilter, Projection, ResumingItem, ResumingStream, StreamItem, StreamRequest, Value,
};
use kprobed_client::nats::{NatsOptions, NatsRequest, NatsSource, NatsStart, ProbePredicate};
use kprobed_client::{Client, ConnectOptions};
use kprobed_otlp::common::KeyValue;
use kprobed_otlp::common::any_value::Value as Any;
use nix::sys::signal::Signal;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;

#[path = "../../benches/support/as_daemon.rs"]
mod as_daemon;

use self::as_daemon::as_daemon;
use super::Engine;
use crate::auditor::Auditor;
use crate::export::Exporters;
use crate::export::tests::nats::{Server, drained_again, nats};
use crate::export::tests::otlp::{Answer, Collector, body, field, integer, otlp};
use crate::export::tests::{Place, Run, Terms, failing, jsonl, terms};
use crate::rpc::{Access, EventRoutes, EventServer};
use crate::shutdown::Tasks;
use kprobed_audit::{Action, Entry};
use kprobed_control::auth::{AuditQueue, Rights};
use kprobed_control::store::Store;
use kprobed_control::{Controller, Probe, Registry, samples};
use kprobed_host::kernel::ClockMapping;
use kprobed_host::tracefs::format::Format;
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_rights::Roles;
use kprobed_trace::decode::{CompileOptions, CompiledFormat};
use kprobed_trace::filter::KernelFilterFeatures;
use kprobed_trace::pipeline::{Draft, EventSource, Group};
use kprobed_trace::wire::Task;

const BATCH: u64 = 1000;
/// Batches between two changes of what is wrong: a million events in all with full effort, else a tenth of that.
fn stage_batches() -> u64 {
    if std::env::var("KPROBED_VM_EFFORT").is_ok_and(|effort| effort == "full") { 100 } else { 10 }
}

const STAGES: u64 = 10;

const FORMAT: &str = "name: values\nID: 7\nformat:\n\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\
\tfield:u64 large;\toffset:16;\tsize:8;\tsigned:0;\n\
\tfield:s64 small;\toffset:24;\tsize:8;\tsigned:1;\n\n\
print fmt: \"(%lx) large=%Lu small=%Ld\", REC->__probe_ip, REC->large, REC->small\n";

/// An event: its time, its thread, and its values.
type Event = (u64, i64, u64, i64);

/// The event of a number. JSON has no number as large as most of its values.
fn event(number: u64) -> Event {
    let large = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1;
    let small = -i64::try_from(number).unwrap();
    (number + 1, i64::try_from(number % 30_000).unwrap(), large, small)
}

fn values() -> Arc<EventSource> {
    let plan = CompiledFormat::compile(&Format::parse(FORMAT).unwrap(), &CompileOptions::default()).unwrap();
    let name = ProbeName::new("kprobes", "values").unwrap();
    Arc::new(EventSource::new(1, ProbeUid(1), name, plan))
}

/// Publishes a stage, and waits until it is in the history.
async fn publish_stage(run: &Run, source: &Arc<EventSource>, next: &mut u64) {
    for _ in 0..stage_batches() {
        let mut columns = source.plan.columns();
        for number in *next..*next + BATCH {
            let (time_ns, tid, large, small) = event(number);
            let mut record = [0_u8; 32];
            record[0] = 7;
            record[4..8].copy_from_slice(&i32::try_from(tid).unwrap().to_le_bytes());
            record[16..24].copy_from_slice(&large.to_le_bytes());
            record[24..].copy_from_slice(&small.to_le_bytes());
            source.plan.decode(&record, time_ns, &mut columns).unwrap();
        }
        *next += BATCH;
        let groups = vec![Group { origin: Arc::clone(&source.origin), columns }];
        let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0, sampled_at_ns: 0 };
        run.hub.publish(&Draft { cpu: 0, groups, tasks: vec![], symbols: vec![], clock });
    }
    run.log.history.as_ref().unwrap().settle().await.unwrap();
}

/// The daemon's service of events. Its connections end with it.
struct Served(Option<Runtime>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

fn serve(run: &Run, address: &str) -> (SocketAddr, Served) {
    serve_with(run, address, Arc::default())
}

/// With these probes, by whose fields requests are judged.
fn serve_with(run: &Run, address: &str, registry: Arc<Registry>) -> (SocketAddr, Served) {
    let threads = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = std::net::TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let (control, _) = Controller::channel();
    let service = EventRoutes::new(EventServer {
        hub: Arc::clone(&run.hub),
        control,
        host: run.host.clone(),
        filter_features: KernelFilterFeatures::default(),
        log: run.log.clone(),
        exporters: Exporters::default(),
        access: Access { rights: Arc::new(Rights::new(Roles::default(), AuditQueue::new().0)), registry },
    });
    threads.spawn(async move {
        let incoming = TcpListenerStream::new(TcpListener::from_std(listener).unwrap());
        let server = tonic::transport::Server::builder().layer(as_daemon()).add_service(service);
        server.serve_with_incoming(incoming).await.unwrap();
    });
    (address, Served(Some(threads)))
}

/// A client of the daemon, which can be held.
struct Follower {
    seen: Arc<Mutex<Vec<Event>>>,
    reads: tokio::sync::watch::Sender<bool>,
    /// It ends with this.
    _task: JoinSet<()>,
}

impl Follower {
    async fn start(address: SocketAddr) -> Self {
        let client =
            Client::connect(format!("tcp://{address}").parse().unwrap(), ConnectOptions::default()).await;
        let overflow = OverflowPolicy::Disconnect.into();
        let request = StreamRequest::new().delivery(Delivery { overflow, ..Delivery::default() });
        let mut stream = ResumingStream::open(&client.unwrap(), request).await.unwrap();
        let (reads, mut may_read) = tokio::sync::watch::channel(true);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let events = Arc::clone(&seen);
        let (started, is_there) = tokio::sync::oneshot::channel();
        let mut started = Some(started);
        let mut task = JoinSet::new();
        task.spawn(async move {
            while may_read.wait_for(|reads| *reads).await.is_ok() {
                match stream.next().await.unwrap() {
                    Some(ResumingItem::Item(StreamItem::Batch(batch))) => {
                        let mut events = events.lock().unwrap();
                        for row in batch.rows() {
                            let (
                                Some(Value::Unsigned { value: large, .. }),
                                Some(Value::Signed { value: small, .. }),
                            ) = (row.field("large"), row.field("small"))
                            else {
                                panic!("{row:?}")
                            };
                            events.push((row.timestamp_ns(), row.tid().unwrap().into(), large, small));
                        }
                    }
                    Some(ResumingItem::Item(StreamItem::Loss(loss))) => panic!("{loss:?}"),
                    Some(ResumingItem::Item(StreamItem::Epoch(_))) => {
                        if let Some(started) = started.take() {
                            started.send(()).unwrap();
                        }
                    }
                    Some(_) => {}
                    None => break,
                }
            }
        });
        is_there.await.unwrap();
        Self { seen, reads, _task: task }
    }

    async fn has(&self, events: u64) {
        let all = async {
            while (self.seen.lock().unwrap().len() as u64) < events {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let all = tokio::time::timeout(Duration::from_mins(1), all).await;
        assert!(all.is_ok(), "{} of {events}", self.seen.lock().unwrap().len());
    }
}

/// Waits until an exporter has sent all of these.
async fn has_sent(run: &Run, exporters: &Exporters, events: u64) {
    let status = run.drained(exporters).await;
    assert_eq!(terms(&status), Terms { acknowledged: events, ..Terms::default() });
}

fn of_attributes(attributes: &[KeyValue]) -> (u64, i64) {
    let Some(Any::IntValue(small)) = field(attributes, "small") else { panic!("{attributes:?}") };
    (integer(field(attributes, "large")), *small)
}

/// Events of the collector, in the order of the log. What was on its way when it was killed comes
/// twice.
fn collected(collector: &Collector, into: &mut Vec<Event>) {
    for record in collector.take_records().filter(|record| record.event_name == "kprobed.event") {
        let tid = i64::try_from(integer(field(&record.attributes, "thread.id"))).unwrap();
        let (large, small) = of_attributes(body(&record));
        let event = (record.time_unix_nano, tid, large, small);
        match into.last() {
            Some(last) if last.0 >= event.0 => assert!(into.binary_search(&event).is_ok(), "{event:?}"),
            _ => into.push(event),
        }
    }
}

fn of_file(path: &Path) -> Vec<Event> {
    let mut events = Vec::new();
    for line in BufReader::new(fs::File::open(path).unwrap()).lines() {
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        if line["type"] != "event" {
            assert_ne!(line["type"], "loss", "{line}");
            continue;
        }
        let fields = &line["fields"];
        // As text if a number of JSON would lose digits.
        let large = fields["large"].as_u64().or_else(|| fields["large"].as_str()?.parse().ok());
        events.push((
            line["timestamp_ns"].as_u64().unwrap(),
            line["tid"].as_i64().unwrap(),
            large.unwrap(),
            fields["small"].as_i64().unwrap(),
        ));
    }
    events
}

async fn of_nats(server: &Server) -> Vec<Event> {
    let source = NatsSource::connect(NatsOptions::new(server.url())).await.unwrap();
    let request = NatsRequest { start: NatsStart::Oldest, until_now: true, ..NatsRequest::default() };
    let mut stream = source.open("here", request).await.unwrap();
    let mut events = Vec::new();
    while let Some(item) = stream.next().await.unwrap() {
        match item {
            StreamItem::Batch(batch) => events.extend(batch.rows().map(|row| {
                let (Some(Value::Unsigned { value: large, .. }), Some(Value::Signed { value: small, .. })) =
                    (row.field("large"), row.field("small"))
                else {
                    panic!("{row:?}")
                };
                (row.timestamp_ns(), i64::from(row.tid().unwrap()), large, small)
            })),
            StreamItem::Loss(loss) => panic!("{loss:?}"),
            _ => {}
        }
    }
    events
}

/// The file of the lines, as a test takes it away.
struct OtherFile<'a> {
    path: &'a Path,
    aside: PathBuf,
    lease: Option<Child>,
}

impl<'a> OtherFile<'a> {
    fn of(path: &'a Path) -> Self {
        Self { path, aside: path.with_extension("aside"), lease: None }
    }

    /// Puts a directory where it was: nothing can be written.
    fn kill(&self) {
        fs::rename(self.path, &self.aside).unwrap();
        fs::create_dir(self.path).unwrap();
    }

    fn restart(&self) {
        fs::remove_dir(self.path).unwrap();
        fs::rename(&self.aside, self.path).unwrap();
    }

    /// Puts a copy there whose opening waits for a program that has a lease on it (`fcntl(2)`,
    /// `F_SETLEASE`).
    fn hold(&mut self) {
        fs::copy(self.path, &self.aside).unwrap();
        fs::rename(&self.aside, self.path).unwrap();
        let program = "$SIG{IO} = 'IGNORE'; open(my $file, '<', $ARGV[0]) or die $!; \
                       fcntl($file, 1024, 0) or die $!; $| = 1; print \"held\\n\"; sleep 1 while 1";
        let mut lease =
            Command::new("perl").args(["-e", program]).arg(self.path).stdout(Stdio::piped()).spawn().unwrap();
        let mut held = String::new();
        BufReader::new(lease.stdout.take().unwrap()).read_line(&mut held).unwrap();
        assert_eq!(held, "held\n");
        self.lease = Some(lease);
    }

    fn release(&mut self) {
        let mut lease = self.lease.take().unwrap();
        lease.kill().unwrap();
        lease.wait().unwrap();
    }
}

/// Whether these are all events, each once and with its values.
fn check(way: &str, events: &[Event]) {
    let expected = STAGES * stage_batches() * BATCH;
    assert_eq!(events.len() as u64, expected, "{way}");
    for (number, seen) in (0..expected).zip(events) {
        assert_eq!(*seen, event(number), "{way}");
    }
}

/// What is written at the end is in the database before it is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_stores_where_exporters_are() {
    let (directory, place) = (tempfile::tempdir().unwrap(), Place::new());
    let run = Run::start(directory.path()).await;
    let exporters = run.export(&jsonl(&place.file));
    run.drained(&exporters).await;
    publish_stage(&run, &values(), &mut 0).await;
    let end = run.drained(&exporters).await.cursor.unwrap();
    let Run { hub, log, store, tasks, .. } = run;
    let (queue, inbox) = AuditQueue::new();
    let auditing = Tasks::default();
    let auditor = Auditor { store: store.clone(), inbox, most: 100 };
    auditing.spawn("audit", auditor.run(auditing.stopping().clone()));
    let engine = Engine {
        hub: Some(hub),
        history: log.history,
        control: None,
        exporting: tasks,
        auditing,
        store: Some(store),
    };
    queue.note(Entry::new(Action::Refused, "uid:1"));
    assert!(engine.stop().await);
    let store = Store::open(directory.path(), SystemTime::now()).await.unwrap();
    let stored = store.exporter_place("jsonl").await.unwrap().unwrap();
    let stored = (stored.boot_id.to_string(), stored.epoch, stored.sequence);
    assert_eq!(stored, (end.boot_id, end.epoch, end.sequence));
    assert_eq!(store.audit_page(0, 10).await.unwrap().entries.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_the_same_on_all_ways() {
    let (directory, place) = (tempfile::tempdir().unwrap(), Place::new());
    let run = Run::start(directory.path()).await;
    let (source, mut next) = (values(), 0);
    let collector = Collector::default();
    let (collector_address, collector_server) = collector.listen("127.0.0.1:0");
    let mut collector_server = Some(collector_server);
    let mut nats_server = Server::start();
    let (address, served) = serve(&run, "127.0.0.1:0");
    let mut served = Some(served);
    let follower = Follower::start(address).await;
    let by_file = run.export(&jsonl(&place.file));
    let mut file = OtherFile::of(&place.file);
    let by_otlp = run.export(&otlp(&format!("http://{collector_address}"), ""));
    let by_nats = run.export(&nats(&nats_server, ""));
    for exporters in [&by_file, &by_otlp, &by_nats] {
        run.drained(exporters).await;
    }
    let mut by_collector = Vec::new();
    for stage in 0..STAGES {
        match stage {
            1 => nats_server.kill(),
            2 => nats_server.signal(Signal::SIGSTOP),
            3 => drop(collector_server.take()),
            4 => collector.answers(Answer::Hangs),
            5 => drop(served.take()),
            6 => drop(follower.reads.send(false)),
            7 => file.kill(),
            8 => file.hold(),
            _ => {}
        }
        publish_stage(&run, &source, &mut next).await;
        // The other receivers are not affected.
        if ![7, 8].contains(&stage) {
            has_sent(&run, &by_file, next).await;
        }
        if ![1, 2].contains(&stage) {
            has_sent(&run, &by_nats, next).await;
        }
        if ![3, 4].contains(&stage) {
            has_sent(&run, &by_otlp, next).await;
        }
        if ![5, 6].contains(&stage) {
            follower.has(next).await;
        }
        match stage {
            1 | 2 => {
                let error = failing(&by_nats).await;
                assert!(
                    error.contains("connect to")
                        || error.contains("publish to")
                        || error.contains("no answer"),
                    "{error}"
                );
                if stage == 1 {
                    nats_server.restart();
                } else {
                    nats_server.signal(Signal::SIGCONT);
                }
                drained_again(&run, &by_nats).await;
            }
            3 | 4 => {
                failing(&by_otlp).await;
                if stage == 3 {
                    collector_server = Some(collector.listen(&collector_address.to_string()).1);
                }
                collector.answers(Answer::Takes);
                drained_again(&run, &by_otlp).await;
            }
            5 => served = Some(serve(&run, &address.to_string()).1),
            6 => follower.reads.send(true).unwrap(),
            7 | 8 => {
                let error = failing(&by_file).await;
                if stage == 7 {
                    assert!(error.contains("directory"), "{error}");
                    file.restart();
                } else {
                    assert!(error.contains("no answer within"), "{error}");
                    file.release();
                }
                drained_again(&run, &by_file).await;
            }
            _ => {}
        }
        follower.has(next).await;
        collected(&collector, &mut by_collector);
    }
    for exporters in [&by_file, &by_otlp, &by_nats] {
        has_sent(&run, exporters, next).await;
    }
    let failures =
        [&by_file, &by_otlp, &by_nats].map(|exporters| exporters.statuses().remove(0).failures > 0);
    assert_eq!(failures, [true; 3]);
    check("gRPC", &follower.seen.lock().unwrap());
    check("NATS", &of_nats(&nats_server).await);
    check("JSON Lines", &of_file(&place.file));
    check("OTLP", &by_collector);
    run.stop().await;
}

/// Lines of JSON, sorted: the ways have batches in orders of their own.
#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    fn take(&mut self, item: StreamItem) {
        match item {
            StreamItem::Batch(batch) => {
                let mut json = kprobed_event::format::JsonLines::new();
                for row in batch.rows() {
                    let mut line = Vec::new();
                    json.push(&mut line, &row);
                    self.0.push(String::from_utf8(line).unwrap());
                }
            }
            StreamItem::Loss(loss) => panic!("{loss:?}"),
            _ => {}
        }
    }

    fn sorted(mut self) -> Vec<String> {
        self.0.sort_unstable();
        self.0
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_nats_selects_what_a_daemon_selects() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let source = values();
    let server = Server::start();
    let by_nats = run.export(&nats(&server, ""));
    run.drained(&by_nats).await;
    let task = |tid: i32, comm: &str| Task { tid, comm: comm.as_bytes().into(), tgid: tid - 1 };
    let tasks = [task(5, "ssh"), task(6, "sshd"), task(7, "cat")];
    for batch in 0..30_u64 {
        let mut columns = source.plan.columns();
        for number in 0..20_u64 {
            let mut record = [0_u8; 32];
            record[0] = 7;
            let tid = 5 + i32::try_from((batch + number) % 4).unwrap();
            record[4..8].copy_from_slice(&tid.to_le_bytes());
            record[16..24].copy_from_slice(&(batch * 1000 + number).to_le_bytes());
            source.plan.decode(&record, batch * 1000 + number + 1, &mut columns).unwrap();
        }
        let groups = vec![Group { origin: Arc::clone(&source.origin), columns }];
        let clock = ClockMapping { wall_offset_ns: 9, error_bound_ns: 0, sampled_at_ns: 0 };
        let cpu = u32::try_from(batch % 3).unwrap();
        run.hub.publish(&Draft { cpu, groups, tasks: tasks.to_vec(), symbols: vec![], clock });
    }
    run.log.history.as_ref().unwrap().settle().await.unwrap();
    run.drained(&by_nats).await;
    let registry = Arc::<Registry>::default();
    let schema = Some(Arc::clone(&source.origin.schema));
    samples::note(&registry, Probe { schema, ..samples::probe(1, "kprobes/values") });
    let (address, _served) = serve_with(&run, "127.0.0.1:0", registry);
    let target = format!("tcp://{address}").parse().unwrap();
    let client = Client::connect(target, ConnectOptions::default()).await.unwrap();
    let published = NatsSource::connect(NatsOptions::new(server.url())).await.unwrap();
    let (asked, wanted) = (StreamRequest::new, NatsRequest::default);
    let filtered = |text: &str| NatsRequest { filter: Some(EventFilter::new(text).unwrap()), ..wanted() };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let pairs = [
        (600, asked(), wanted()),
        (150, asked().filter("pid == 6"), filtered("pid == 6")),
        (200, asked().filter("cpu == 1"), filtered("cpu == 1")),
        (300, asked().filter("comm ~ \"ssh*\""), filtered("comm ~ \"ssh*\"")),
        (
            80,
            asked().filter("large >= 26000 && host == \"here\" && small != 3"),
            filtered("large >= 26000 && host == \"here\" && small != 3"),
        ),
        (
            225,
            asked().filter("tgid != 5 && probe ~ \"*/values\" && !(fields.large & 1) || tgid == 4"),
            filtered("tgid != 5 && probe ~ \"*/values\" && !(fields.large & 1) || tgid == 4"),
        ),
        (200, asked().sample_one_in(3), NatsRequest { sample_one_in: 3, ..wanted() }),
        (
            19,
            asked().filter("pid == 6").sample_one_in(8),
            NatsRequest { sample_one_in: 8, ..filtered("pid == 6") },
        ),
        (
            600,
            asked().field("small").field("comm"),
            NatsRequest { fields: Projection::new(names(&["small", "comm"])), ..wanted() },
        ),
        (
            150,
            asked().filter("pid == 6").field("large").field("location"),
            NatsRequest { fields: Projection::new(names(&["large", "location"])), ..filtered("pid == 6") },
        ),
        (
            0,
            asked().probe("kprobes/other"),
            NatsRequest { probes: Some(ProbePredicate::new(|probe| probe == "kprobes/other")), ..wanted() },
        ),
    ];
    for (events, request, own) in pairs {
        let (mut by_daemon, mut by_reader) = (Lines::default(), Lines::default());
        let what = format!("{request:?}");
        let mut stream = client.stream_events(request.oldest().until_now()).await.unwrap();
        while let Some(item) = stream.next().await.unwrap() {
            by_daemon.take(item);
        }
        let own = NatsRequest { start: NatsStart::Oldest, until_now: true, ..own };
        let mut stream = published.open("here", own).await.unwrap();
        while let Some(item) = stream.next().await.unwrap() {
            by_reader.take(item);
        }
        let by_daemon = by_daemon.sorted();
        assert_eq!(by_daemon.len(), events, "{what}");
        assert_eq!(by_reader.sorted(), by_daemon, "{what}");
    }
    run.stop().await;
}
