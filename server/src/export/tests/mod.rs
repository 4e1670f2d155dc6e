//! Tests of exporters over a real hub, history and database: every event arrives, once if the
//! receiver can tell, and every log position is in exactly one term of the account.

#[cfg(feature = "nats")]
pub(crate) mod nats;
#[expect(clippy::disallowed_methods, reason = "answers of a receiver")]
pub(crate) mod otlp;
mod sockets;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use kprobed_proto::v1::{ExporterLedger, ExporterState};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::exporter::{Exporter, Policy};
use super::status::Shared;
use super::*;
use crate::config::Config;
use crate::config::export::{Export, JsonLines};
use crate::health::LabelsFile;
use crate::shutdown::Tasks;
use kprobed_control::store::Store;
use kprobed_host::kernel::HostIdentity;
use kprobed_lang::model::Glob;
use kprobed_trace::feed::Log;
use kprobed_trace::history::History;
use kprobed_trace::pipeline::samples::{hub, publish, source};
use kprobed_trace::pipeline::{Hub, Item, View};
use kprobed_trace::spool::{BootId, Cursor, SpoolOptions};

/// The events here are of 1970.
const AGES: Duration = Duration::from_hours(100 * 365 * 24);

fn here() -> HostIdentity {
    let text = |text: &str| text.to_owned();
    HostIdentity {
        hostname: text("here"),
        kernel_release: text("6.12.0"),
        kernel_version: text("#1 SMP"),
        machine: text("x86_64"),
        boot_id: text("07070707-0707-0707-0707-070707070707"),
    }
}

/// A run of the daemon.
pub(crate) struct Run {
    pub(crate) hub: Arc<Hub>,
    pub(crate) log: Log,
    pub(crate) store: Store,
    pub(crate) tasks: Tasks,
    pub(crate) host: HostIdentity,
    pub(crate) labels: Arc<LabelsFile>,
}

impl Run {
    pub(crate) async fn start(directory: &Path) -> Self {
        let store = Store::open(directory, SystemTime::now()).await.unwrap();
        let options = SpoolOptions::new(&directory.join("spool"), 64 << 20, AGES, Duration::from_millis(50));
        let hub = hub();
        let boot_id = BootId([7; 16]);
        let history = Arc::new(History::start(options, boot_id, &hub).unwrap());
        let now = Cursor { boot_id, epoch: history.epoch(), sequence: 0 };
        Self {
            hub,
            log: Log { history: Some(history), now },
            store,
            tasks: Tasks::default(),
            host: here(),
            labels: Arc::default(),
        }
    }

    fn parts(&self) -> ExportParts {
        ExportParts {
            hub: Arc::clone(&self.hub),
            log: self.log.clone(),
            store: self.store.clone(),
            host: self.host.clone(),
            labels: Arc::clone(&self.labels),
            tasks: self.tasks.clone(),
            threads: Handle::current(),
        }
    }

    pub(crate) fn export(&self, export: &Export) -> Exporters {
        open(export, &self.parts()).unwrap()
    }

    fn export_to<S: Sink>(&self, sink: S, selection: View) -> Exporters {
        let shared = Arc::new(Shared::new("test", "here".to_owned(), Arc::clone(&self.hub), self.log.now));
        let exporters = Exporters(Arc::new([Arc::clone(&shared)]));
        let policy =
            Policy { linger: Duration::from_millis(5), timeout: Duration::from_secs(1), ..Policy::default() };
        let exporter = Exporter { sink, selection, policy, shared, parts: self.parts() };
        self.tasks.spawn("test", exporter.run());
        exporters
    }

    pub(crate) async fn stop(self) {
        self.hub.close();
        assert!(self.tasks.stop(Duration::from_secs(5)).await);
        self.log.history.unwrap().stop().await;
    }

    /// Waits until nothing is queued for the only exporter.
    pub(crate) async fn drained(&self, exporters: &Exporters) -> ExporterLedger {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let status = exporters.statuses().remove(0);
            assert!(exporters.accounts_close(), "{status:?}");
            if status.queued == Some(0) && status.cursor.is_some() {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("not drained within {PATIENCE:?}: {:?}", exporters.statuses());
    }
}

/// How long a busy machine may take to send what waits.
const PATIENCE: Duration = Duration::from_mins(1);

/// The terms of an account: where the events that an exporter has passed went.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) acknowledged: u64,
    pub(crate) dropped: u64,
    pub(crate) expired: u64,
    pub(crate) not_selected: u64,
}

pub(crate) fn terms(status: &ExporterLedger) -> Terms {
    let ExporterLedger { acknowledged, dropped, expired, not_selected, .. } = *status;
    Terms { acknowledged, dropped, expired, not_selected }
}

/// Waits until the only exporter fails, and answers its error.
pub(crate) async fn failing(exporters: &Exporters) -> String {
    let failing = async {
        loop {
            let status = exporters.statuses().remove(0);
            if status.state() == ExporterState::Failing {
                return status.error;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), failing).await.unwrap()
}

pub(crate) fn jsonl(path: &Path) -> Export {
    let text = format!("[export.jsonl]\npath = '{}'\n", path.display());
    let config: Config = toml::from_str(&text).unwrap();
    config.export
}

/// Every event of a file, as the time stamp and the thread id that tell them apart; checks that
/// progress adds up.
fn events(path: &Path) -> Vec<u64> {
    let mut since_report = 0;
    let mut events = Vec::new();
    for line in fs::read_to_string(path).unwrap().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["host"], "here");
        match line["type"].as_str().unwrap() {
            "event" => {
                since_report += 1;
                events.push(line["timestamp_ns"].as_u64().unwrap());
            }
            "progress" => {
                assert_eq!(line["events"].as_u64().unwrap(), since_report);
                let sum: u64 = ["events", "not_selected", "expired"]
                    .iter()
                    .map(|term| line[term].as_u64().unwrap())
                    .sum();
                assert_eq!(line["read"].as_u64().unwrap(), sum);
                since_report = 0;
            }
            "epoch" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(since_report, 0, "the file ends with a report");
    events
}

pub(crate) struct Place {
    directory: TempDir,
    pub(crate) file: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("events.jsonl");
        Self { directory, file }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_in_the_file_once_over_restarts() {
    let place = Place::new();
    let a = source("a", 1);
    let mut expected = Vec::new();
    for round in 0..3_u64 {
        let run = Run::start(place.directory.path()).await;
        let exporters = run.export(&jsonl(&place.file));
        if round == 0 {
            // It begins with the present, and the present begins when it is there.
            run.drained(&exporters).await;
        }
        for batch in 0..20 {
            let first_ns = (round * 100 + batch + 1) * 1000;
            publish(&run.hub, &a, 0, 7, first_ns);
            expected.extend(first_ns..first_ns + 7);
        }
        if round == 1 {
            // Killed while it wrote: what was not written is read again from the history, and half
            // a line at the end goes.
            assert!(run.tasks.stop(Duration::from_secs(5)).await);
            run.stop().await;
            let mut file = fs::OpenOptions::new().append(true).open(&place.file).unwrap();
            file.write_all(br#"{"type":"event","host":"here","ti"#).unwrap();
        } else {
            let status = run.drained(&exporters).await;
            assert_eq!(status.state(), ExporterState::Running);
            run.stop().await;
        }
    }
    assert_eq!(events(&place.file), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_selected_has_its_term() {
    let place = Place::new();
    let run = Run::start(place.directory.path()).await;
    let mut export = jsonl(&place.file);
    let settings: &mut JsonLines = export.jsonl.as_mut().unwrap();
    settings.probes = vec!["kprobes/b".to_owned()];
    settings.filter = "pid < 2".to_owned();
    let exporters = run.export(&export);
    run.drained(&exporters).await;
    let (a, b) = (source("a", 1), source("b", 2));
    for batch in 1..=10 {
        publish(&run.hub, &a, 0, 100_000, batch * 1_000_000);
        publish(&run.hub, &b, 1, 5, batch * 1_000_000 + 500_000);
    }
    let status = run.drained(&exporters).await;
    let expected = Terms { acknowledged: 20, not_selected: 1_000_030, ..Terms::default() };
    assert_eq!((terms(&status), status.read), (expected, Some(1_000_050)));
    assert_eq!(events(&place.file).len(), 20);
    run.stop().await;
}

/// A receiver that behaves as a test wants.
#[derive(Clone, Default)]
struct Fake {
    got: Arc<Mutex<Vec<u64>>>,
    fails: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
    refuses: Arc<AtomicBool>,
    own: Arc<Mutex<Option<Cursor>>>,
}

impl Sink for Fake {
    async fn open(&mut self) -> Result<Option<Cursor>, SinkError> {
        Ok(*self.own.lock().unwrap())
    }

    async fn send(&mut self, chunk: &Chunk) -> Result<Sent, SinkError> {
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.fails.load(Ordering::Relaxed) {
            return Err(SinkError::new("send", "it is broken"));
        }
        let events = chunk.items.iter().filter_map(|item| match item {
            Item::Batch(delivery) => Some(delivery.sequence..delivery.sequence + delivery.events),
            _ => None,
        });
        self.got.lock().unwrap().extend(events.flatten());
        let dropped = u64::from(self.refuses.load(Ordering::Relaxed)) * 3;
        let reason = if dropped > 0 { "too odd".to_owned() } else { String::new() };
        Ok(Sent { dropped, reason, ..Sent::default() })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_side_that_fails_or_hangs_gets_everything_later() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let sink = Fake::default();
    let exporters = run.export_to(sink.clone(), View::default());
    run.drained(&exporters).await;
    let a = source("a", 1);
    for (round, bad) in [&sink.fails, &sink.hangs].into_iter().enumerate() {
        bad.store(true, Ordering::Relaxed);
        for batch in 0..50 {
            publish(&run.hub, &a, 0, 100, (round as u64 * 100 + batch + 1) * 1000);
        }
        let failing = async {
            loop {
                let status = exporters.statuses().remove(0);
                if status.state() == ExporterState::Failing {
                    assert_eq!(status.queued, Some(5000));
                    return status.error;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let error = tokio::time::timeout(Duration::from_secs(20), failing).await.unwrap();
        assert_eq!(error, ["send: it is broken", "send: no answer within 1 s"][round]);
        bad.store(false, Ordering::Relaxed);
        run.drained(&exporters).await;
    }
    assert_eq!(*sink.got.lock().unwrap(), (0..10_000).collect::<Vec<_>>());
    sink.refuses.store(true, Ordering::Relaxed);
    publish(&run.hub, &a, 0, 10, 1_000_000);
    let status = run.drained(&exporters).await;
    let expected = Terms { acknowledged: 10_007, dropped: 3, ..Terms::default() };
    assert_eq!((terms(&status), status.refusal.as_str()), (expected, "too odd"));
    assert_eq!(status.failures, 2);
    run.stop().await;
    // It goes on where it was, without the file of a receiver to tell.
    let run = Run::start(directory.path()).await;
    publish(&run.hub, &a, 0, 5, 2_000_000);
    let again = Fake::default();
    let exporters = run.export_to(again.clone(), View::default());
    run.drained(&exporters).await;
    assert_eq!(*again.got.lock().unwrap(), (0..5).collect::<Vec<_>>());
    run.stop().await;
}

/// A new exporter begins when it is started, not when its receiver takes something for the first time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_before_the_first_acknowledgement_is_sent() {
    for is_restarted in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let mut run = Run::start(directory.path()).await;
        let sink = Fake::default();
        sink.fails.store(true, Ordering::Relaxed);
        let mut exporters = run.export_to(sink.clone(), View::default());
        failing(&exporters).await;
        publish(&run.hub, &source("a", 1), 0, 100, 1000);
        assert_eq!(exporters.statuses().remove(0).queued, Some(100));
        if is_restarted {
            run.stop().await;
            run = Run::start(directory.path()).await;
            exporters = run.export_to(sink.clone(), View::default());
        }
        sink.fails.store(false, Ordering::Relaxed);
        let status = run.drained(&exporters).await;
        assert_eq!(terms(&status), Terms { acknowledged: 100, ..Terms::default() });
        assert_eq!(*sink.got.lock().unwrap(), (0..100).collect::<Vec<_>>());
        run.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_without_an_answer_is_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let sink = Fake::default();
    let selection = View { probes: vec![Glob::new("kprobes/a")], ..View::default() };
    let exporters = run.export_to(sink.clone(), selection);
    run.drained(&exporters).await;
    sink.hangs.store(true, Ordering::Relaxed);
    for batch in 1..=10 {
        publish(&run.hub, &source("a", 1), 0, 100, batch * 1000);
        publish(&run.hub, &source("b", 2), 1, 10, batch * 1000 + 500);
    }
    failing(&exporters).await;
    // It has six of the batches, and says so when it is asked.
    let status = exporters.statuses().remove(0);
    let sequence = status.cursor.as_ref().unwrap().sequence;
    let answered = Cursor { sequence, ..run.log.now };
    assert_eq!((terms(&status), status.unknown_gaps), (Terms::default(), 0));
    assert_eq!(status.read, status.queued, "nothing is passed");
    *sink.own.lock().unwrap() = Some(Cursor { sequence: answered.sequence + 330, ..answered });
    sink.hangs.store(false, Ordering::Relaxed);
    let status = run.drained(&exporters).await;
    let expected = Terms { acknowledged: 1000, not_selected: 100, ..Terms::default() };
    assert_eq!(terms(&status), expected);
    let first = answered.sequence + 330;
    let sent = sink.got.lock().unwrap().clone();
    assert_eq!((sent.len(), sent.first()), (700, Some(&first)));
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_side_that_connects_and_takes_nothing_fails_until_it_takes_something() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let sink = Fake::default();
    let exporters = run.export_to(sink.clone(), View::default());
    run.drained(&exporters).await;
    sink.hangs.store(true, Ordering::Relaxed);
    publish(&run.hub, &source("a", 1), 0, 100, 1000);
    let mut since = None;
    loop {
        let status = exporters.statuses().remove(0);
        match (status.failing_since, since) {
            (Some(now), begun) => {
                assert_eq!(status.state(), ExporterState::Failing);
                assert_eq!(*since.get_or_insert(now), begun.unwrap_or(now));
                if status.failures_in_a_row == 3 {
                    break;
                }
            }
            (None, since) => assert_eq!((status.state(), since), (ExporterState::Running, None)),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    sink.hangs.store(false, Ordering::Relaxed);
    assert_eq!(run.drained(&exporters).await.state(), ExporterState::Running);
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_side_that_is_slower_than_the_events_reads_the_history() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let sink = Fake::default();
    let exporters = run.export_to(sink.clone(), View::default());
    run.drained(&exporters).await;
    let a = source("a", 1);
    sink.hangs.store(true, Ordering::Relaxed);
    // More than its queue holds: some twenty bytes an event.
    for batch in 0..100 {
        publish(&run.hub, &a, 0, 10_000, (batch + 1) * 100_000);
        run.log.history.as_ref().unwrap().settle().await.unwrap();
    }
    sink.hangs.store(false, Ordering::Relaxed);
    let status = run.drained(&exporters).await;
    assert_eq!(terms(&status), Terms { acknowledged: 1_000_000, ..Terms::default() });
    assert_eq!(sink.got.lock().unwrap().len(), 1_000_000);
    assert!(run.hub.counts().is_empty(), "an exporter is no subscriber of anybody");
    run.stop().await;
}
