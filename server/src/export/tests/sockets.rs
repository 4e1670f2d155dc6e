//! Tests of JSON Lines over unix sockets whose receiver ends, returns and hangs, and on standard output.

use std::collections::BTreeSet;

use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixDatagram, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::super::jsonl::JsonLinesSink;
use super::*;

/// More lines than the kernel keeps for a reader that is stuck.
const MANY: u64 = 100_000;

/// What a program that listens has got: the bytes of each connection, or of each datagram.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<Vec<u8>>>>);

impl Received {
    fn begin(&self) -> usize {
        let mut all = self.0.lock().unwrap();
        all.push(Vec::new());
        all.len() - 1
    }

    /// The events of each connection, as the time stamps that tell them apart. The end of a
    /// connection may have half a line.
    fn connections(&self) -> Vec<Vec<u64>> {
        let all = self.0.lock().unwrap();
        all.iter().map(|bytes| whole_lines(bytes).filter_map(time_of).collect()).collect()
    }

    /// All events in their order, of which none is missing. What a connection did not take before
    /// it was given up comes again over the next one.
    fn events(&self) -> Vec<u64> {
        let mut events: Vec<u64> = Vec::new();
        for connection in self.connections() {
            assert!(connection.is_sorted_by(|a, b| a < b), "repeated within a connection");
            let repeated = connection.iter().take_while(|time| events.last() >= Some(time)).count();
            let known: BTreeSet<_> = events.iter().collect();
            assert!(connection[..repeated].iter().all(|time| known.contains(time)));
            events.extend_from_slice(&connection[repeated..]);
        }
        events
    }

    /// Waits until so many events are there.
    async fn has(&self, events: usize) {
        let all = async {
            while self.events().len() < events {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let all = tokio::time::timeout(Duration::from_secs(30), all).await;
        assert!(all.is_ok(), "{} of {events}", self.events().len());
    }
}

fn whole_lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"))
}

fn time_of(line: &[u8]) -> Option<u64> {
    let line: serde_json::Value = serde_json::from_slice(line).unwrap();
    (line["type"] == "event").then(|| line["timestamp_ns"].as_u64().unwrap())
}

/// A program that listens. It ends with its connections.
struct Program {
    reads: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Program {
    /// Listens on a unix socket.
    fn unix(received: &Received, path: &Path) -> Self {
        drop(fs::remove_file(path));
        let listener = UnixListener::bind(path).unwrap();
        let (reads, may_read) = watch::channel(true);
        let received = received.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(keep(stream, received.clone(), may_read.clone()));
            }
        });
        Self { reads, tasks }
    }

    /// Receives datagrams, as a system's logger does.
    fn datagrams(received: &Received, path: &Path) -> Self {
        drop(fs::remove_file(path));
        let socket = UnixDatagram::bind(path).unwrap();
        let (reads, mut may_read) = watch::channel(true);
        let received = received.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let at = received.begin();
            let mut datagram = vec![0; 1 << 16];
            while may_read.wait_for(|reads| *reads).await.is_ok() {
                let bytes = socket.recv(&mut datagram).await.unwrap();
                assert!(!datagram[..bytes].contains(&b'\n'), "one line each");
                let mut all = received.0.lock().unwrap();
                all[at].extend_from_slice(&datagram[..bytes]);
                all[at].push(b'\n');
            }
        });
        Self { reads, tasks }
    }

    async fn kill(mut self) {
        self.tasks.shutdown().await;
    }
}

async fn keep(mut stream: UnixStream, received: Received, mut may_read: watch::Receiver<bool>) {
    let at = received.begin();
    let mut bytes = vec![0; 1 << 16];
    while may_read.wait_for(|reads| *reads).await.is_ok() {
        match stream.read(&mut bytes).await {
            Ok(0) | Err(_) => break,
            Ok(read) => received.0.lock().unwrap()[at].extend_from_slice(&bytes[..read]),
        }
    }
}

/// Lines to where the settings say.
fn lines(run: &Run, settings: &str) -> Exporters {
    let config: Config = toml::from_str(&format!("[export.jsonl]\n{settings}")).unwrap();
    let settings = config.export.jsonl.unwrap();
    let sink = JsonLinesSink::new(&settings, settings.path.parse().unwrap(), "here");
    run.export_to(sink, View::default())
}

/// Publishes events and answers their times.
fn publish_many(run: &Run, begin: u64, count: u64) -> std::ops::Range<u64> {
    let a = source("a", 1);
    for first_ns in (begin..begin + count).step_by(1000) {
        publish(&run.hub, &a, 0, (begin + count - first_ns).min(1000), first_ns);
    }
    begin..begin + count
}

/// A program goes and comes back, with nothing on its way: every event arrives once, and the
/// account says when.
async fn goes_and_comes_back(
    settings: &str,
    received: &Received,
    mut program: Program,
    again: impl AsyncFn() -> Program,
) {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let exporters = lines(&run, settings);
    run.drained(&exporters).await;
    let mut expected = Vec::new();
    for round in 0..3 {
        expected.extend(publish_many(&run, (round * 2 + 1) * 10_000, 10));
        run.drained(&exporters).await;
        received.has(expected.len()).await;
        program.kill().await;
        expected.extend(publish_many(&run, (round * 2 + 2) * 10_000, 10));
        let error = failing(&exporters).await;
        assert!(
            error.contains("the receiver") || error.contains("refused") || error.contains("roken pipe"),
            "{error}"
        );
        let status = exporters.statuses().remove(0);
        assert!(exporters.accounts_close(), "{status:?}");
        assert_eq!(status.queued, Some(10));
        program = again().await;
        run.drained(&exporters).await;
        received.has(expected.len()).await;
    }
    let repeated: usize = received.connections().iter().map(Vec::len).sum();
    assert_eq!((received.events(), repeated), (expected, 60));
    let status = exporters.statuses().remove(0);
    assert_eq!(terms(&status), Terms { acknowledged: 60, ..Terms::default() });
    run.stop().await;
    program.kill().await;
}

/// A program is stuck: the exporter waits, others do not, and nothing is missing later.
async fn is_stuck(settings: &str, received: &Received, program: &Program) {
    let (directory, place) = (tempfile::tempdir().unwrap(), Place::new());
    let run = Run::start(directory.path()).await;
    let exporters = lines(&run, settings);
    run.drained(&exporters).await;
    let others = run.export(&jsonl(&place.file));
    run.drained(&others).await;
    program.reads.send(false).unwrap();
    let expected: Vec<u64> = publish_many(&run, 1_000_000, MANY).collect();
    let status = run.drained(&others).await;
    assert_eq!(status.acknowledged, MANY);
    let error = failing(&exporters).await;
    assert!(error.contains("no answer within"), "{error}");
    let status = exporters.statuses().remove(0);
    assert!(exporters.accounts_close() && status.queued.unwrap() > 0, "{status:?}");
    program.reads.send(true).unwrap();
    let status = run.drained(&exporters).await;
    assert_eq!(terms(&status), Terms { acknowledged: MANY, ..Terms::default() });
    received.has(expected.len()).await;
    assert!(received.events() == expected, "in their order");
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_receiver_goes_and_comes_back() {
    let (directory, received) = (tempfile::tempdir().unwrap(), Received::default());
    let path = directory.path().join("lines.socket");
    let program = Program::unix(&received, &path);
    let again = async || Program::unix(&received, &path);
    goes_and_comes_back(&format!("path = 'unix:{}'", path.display()), &received, program, again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_receiver_is_stuck() {
    let (directory, received) = (tempfile::tempdir().unwrap(), Received::default());
    let path = directory.path().join("lines.socket");
    let program = Program::unix(&received, &path);
    is_stuck(&format!("path = 'unix:{}'", path.display()), &received, &program).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_of_datagrams_goes_and_comes_back() {
    let (directory, received) = (tempfile::tempdir().unwrap(), Received::default());
    let path = directory.path().join("log");
    let program = Program::datagrams(&received, &path);
    let again = async || Program::datagrams(&received, &path);
    goes_and_comes_back(&format!("path = 'unix:{}'", path.display()), &received, program, again).await;
}

/// The test runs itself: standard output is that of a whole process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standard_output_gets_every_line() {
    const INSIDE: &str = "KPROBED_TEST_WRITES_LINES";
    const NAME: &str = "export::tests::sockets::standard_output_gets_every_line";
    if std::env::var_os(INSIDE).is_some() {
        let directory = tempfile::tempdir().unwrap();
        let run = Run::start(directory.path()).await;
        let exporters = lines(&run, "path = '-'");
        run.drained(&exporters).await;
        publish_many(&run, 1000, 2500);
        run.drained(&exporters).await;
        run.stop().await;
        return;
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let output = again.args(["--exact", NAME, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // The harness has words of its own before the first line, and behind the last.
    let text = String::from_utf8(output.stdout).unwrap();
    let objects = text.lines().filter_map(|line| line.get(line.find('{')?..));
    let times: Vec<u64> = objects.filter_map(|line| time_of(line.as_bytes())).collect();
    assert_eq!(times, (1000..3500).collect::<Vec<_>>());
}
