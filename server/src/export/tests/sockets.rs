//! Tests of JSON Lines over TCP, TLS and unix sockets whose receiver ends, returns and hangs.

use std::collections::BTreeSet;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::{TcpListener, UnixDatagram, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::super::jsonl::JsonLinesSink;
use super::*;
use crate::config::{Tls, server_config};

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
    fn stream<S, A>(received: &Received, mut accept: impl FnMut() -> A + Send + 'static) -> Self
    where
        S: AsyncRead + Send + Unpin + 'static,
        A: Future<Output = Option<S>> + Send,
    {
        let (reads, may_read) = watch::channel(true);
        let received = received.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                // A client that fails to connect tries again.
                let Some(stream) = accept().await else { continue };
                connections.spawn(keep(stream, received.clone(), may_read.clone()));
            }
        });
        Self { reads, tasks }
    }

    /// Listens on a port, with TLS or without.
    async fn tcp(received: &Received, address: &str, tls: Option<TlsAcceptor>) -> (Self, String) {
        let listener = Arc::new(TcpListener::bind(address).await.unwrap());
        let address = listener.local_addr().unwrap().to_string();
        let program = match tls {
            None => Self::stream(received, move || {
                let listener = Arc::clone(&listener);
                async move { Some(listener.accept().await.unwrap().0) }
            }),
            Some(tls) => Self::stream(received, move || {
                let (listener, tls) = (Arc::clone(&listener), tls.clone());
                async move { tls.accept(listener.accept().await.unwrap().0).await.ok() }
            }),
        };
        (program, address)
    }

    /// Listens on a unix socket.
    fn unix(received: &Received, path: &Path) -> Self {
        drop(fs::remove_file(path));
        let listener = Arc::new(UnixListener::bind(path).unwrap());
        Self::stream(received, move || {
            let listener = Arc::clone(&listener);
            async move { Some(listener.accept().await.unwrap().0) }
        })
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

async fn keep(mut stream: impl AsyncRead + Unpin, received: Received, mut may_read: watch::Receiver<bool>) {
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
    let sink = JsonLinesSink::new(&settings, settings.path.parse().unwrap(), "here").unwrap();
    run.export_to(sink, Selection::default())
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
        assert!(status.account.closes(), "{status:?}");
        assert_eq!(status.queued, Some(10));
        program = again().await;
        run.drained(&exporters).await;
        received.has(expected.len()).await;
    }
    let repeated: usize = received.connections().iter().map(Vec::len).sum();
    assert_eq!((received.events(), repeated), (expected, 60));
    let terms = exporters.statuses().remove(0).account.terms;
    assert_eq!(terms, Terms { acknowledged: 60, ..Terms::default() });
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
    assert_eq!(status.account.terms.acknowledged, MANY);
    let error = failing(&exporters).await;
    assert!(error.contains("no answer within"), "{error}");
    let status = exporters.statuses().remove(0);
    assert!(status.account.closes() && status.queued.unwrap() > 0, "{status:?}");
    program.reads.send(true).unwrap();
    let status = run.drained(&exporters).await;
    assert_eq!(status.account.terms, Terms { acknowledged: MANY, ..Terms::default() });
    received.has(expected.len()).await;
    assert!(received.events() == expected, "in their order");
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tcp_receiver_goes_and_comes_back() {
    let received = Received::default();
    let (program, address) = Program::tcp(&received, "127.0.0.1:0", None).await;
    let again = async || Program::tcp(&received, &address, None).await.0;
    goes_and_comes_back(&format!("path = 'tcp://{address}'"), &received, program, again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tcp_receiver_is_stuck() {
    let received = Received::default();
    let (program, address) = Program::tcp(&received, "127.0.0.1:0", None).await;
    is_stuck(&format!("path = 'tcp://{address}'"), &received, &program).await;
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

/// Certificates of one authority, and the path of another one's.
struct Authority {
    directory: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { directory, issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Certificate and key in files that begin with a name.
    fn issue(&self, name: &str, of: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![of.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let paths = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        fs::write(&paths.0, certificate.pem()).unwrap();
        fs::write(&paths.1, key.serialize_pem()).unwrap();
        paths
    }

    fn acceptor(&self) -> TlsAcceptor {
        let (certificate, key) = self.issue("server", "receiver.example");
        let tls = Tls { certificate, key, client_ca: self.path("ca.pem") };
        TlsAcceptor::from(Arc::new(server_config(&crate::config::PROMETHEUS, &tls).unwrap()))
    }

    /// The settings of a client, with a certificate of this authority.
    fn settings(&self, address: &str, domain: &str, server_ca: &Path) -> String {
        let (certificate, key) = self.issue("client", "here");
        format!(
            "path = 'tcp://{address}'\n[export.jsonl.tls]\nca = '{}'\ncertificate = '{}'\nkey = '{}'\ndomain = '{domain}'",
            server_ca.display(),
            certificate.display(),
            key.display()
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_of_tls_goes_and_comes_back() {
    let (received, authority) = (Received::default(), Authority::new());
    let acceptor = authority.acceptor();
    let (program, address) = Program::tcp(&received, "127.0.0.1:0", Some(acceptor.clone())).await;
    let again = async || Program::tcp(&received, &address, Some(acceptor.clone())).await.0;
    let settings = authority.settings(&address, "receiver.example", &authority.path("ca.pem"));
    goes_and_comes_back(&settings, &received, program, again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_of_tls_is_stuck() {
    let (received, authority) = (Received::default(), Authority::new());
    let (program, address) = Program::tcp(&received, "127.0.0.1:0", Some(authority.acceptor())).await;
    let settings = authority.settings(&address, "receiver.example", &authority.path("ca.pem"));
    is_stuck(&settings, &received, &program).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_go_to_no_other_receiver() {
    let (received, authority, other) = (Received::default(), Authority::new(), Authority::new());
    let (_program, address) = Program::tcp(&received, "127.0.0.1:0", Some(authority.acceptor())).await;
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    for (domain, ca) in [("receiver.example", &other), ("elsewhere.example", &authority)] {
        let exporters = lines(&run, &authority.settings(&address, domain, &ca.path("ca.pem")));
        let error = failing(&exporters).await;
        assert!(error.contains(&address) && error.contains("invalid peer certificate"), "{error}");
    }
    assert_eq!(received.connections(), [[0; 0]; 0]);
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_syslog_have_their_length_before_them() {
    let received = Received::default();
    let (program, address) = Program::tcp(&received, "127.0.0.1:0", None).await;
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let exporters = lines(&run, &format!("path = 'tcp://{address}'\nformat = 'syslog'"));
    run.drained(&exporters).await;
    let expected: Vec<u64> = publish_many(&run, 1000, 2500).collect();
    run.drained(&exporters).await;
    let all = async {
        loop {
            let found = messages(&received.0.lock().unwrap()[0]);
            if found.len() >= expected.len() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert_eq!(tokio::time::timeout(Duration::from_secs(30), all).await.unwrap(), expected);
    run.stop().await;
    program.kill().await;
}

/// Times of the events in messages that have their length before them (RFC 6587, 3.4.1).
fn messages(mut bytes: &[u8]) -> Vec<u64> {
    let mut times = Vec::new();
    while let Some(space) = bytes.iter().position(|byte| *byte == b' ') {
        let length: usize = str::from_utf8(&bytes[..space]).unwrap().parse().unwrap();
        let Some(message) = bytes.get(space + 1..space + 1 + length) else { break };
        let text = message.strip_prefix(b"<134>1 - here kprobed - - - ").unwrap();
        times.extend(time_of(text));
        bytes = &bytes[space + 1 + length..];
    }
    times
}
