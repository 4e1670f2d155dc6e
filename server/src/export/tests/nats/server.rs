//! A NATS server of a test, and what a reader finds on it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;

use async_nats::jetstream;
use async_nats::jetstream::stream::Stream;
use kprobed_event::published::{HostLog, READ, Subjects};
use kprobed_event::{LossCause, StreamItem};
use kprobed_vm::cache::Cache;
use kprobed_vm::unpacked::Unpacked;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::*;

/// A server, and its directory.
pub(crate) struct Server {
    program: PathBuf,
    pub(super) directory: TempDir,
    port: u16,
    pub(super) process: Child,
    settings: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with("")
    }

    pub(super) fn with(settings: &str) -> Self {
        let cache = Cache::from_environment().unwrap();
        let package = Unpacked::ensure(&cache, "nats-server").unwrap();
        let program = ["usr/sbin/nats-server", "usr/bin/nats-server"]
            .map(|path| package.program(path))
            .into_iter()
            .find(|path| path.exists())
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let process = Self::spawn(&program, &directory, port, settings);
        Self { program, directory, port, process, settings: settings.to_owned() }
    }

    fn spawn(program: &Path, directory: &TempDir, port: u16, settings: &str) -> Child {
        let file = directory.path().join("server.conf");
        let store = directory.path().join("store");
        let text = format!(
            "host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: '{}' }}\n{settings}\n",
            store.display()
        );
        fs::write(&file, text).unwrap();
        let mut server = Command::new(program);
        let process = server.arg("-c").arg(file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "the server does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        process
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn restart(&mut self) {
        self.process = Self::spawn(&self.program, &self.directory, self.port, &self.settings);
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(super) async fn stream(&self) -> Stream {
        let client =
            async_nats::ConnectOptions::new().retry_on_initial_connect().connect(self.url()).await.unwrap();
        jetstream::new(client).get_stream("KPROBED").await.unwrap()
    }

    /// Everything that the stream holds.
    pub(super) async fn read(&self) -> Published {
        let mut stream = self.stream().await;
        let last = stream.info().await.unwrap().state.last_sequence;
        let subjects = Subjects::new("kprobed").unwrap();
        let mut read = Published::default();
        for sequence in 1..=last {
            let message = stream.get_raw_message(sequence).await.unwrap();
            let value = |name: &str| message.headers.get(name).map(|value| value.as_str().to_owned());
            let read_sum: u64 = value(READ).map_or(0, |read| read.parse().unwrap());
            let (host, received) =
                subjects.received(&message.subject, value, message.payload.clone()).unwrap();
            assert_eq!(host, "here");
            read.largest = read.largest.max(message.payload.len());
            read.read += read_sum;
            read.subjects.insert(message.subject.to_string());
            *read.ids.entry(received.id.clone()).or_default() += 1;
            for item in read.log.take(&received, |_| true).unwrap() {
                match item {
                    StreamItem::Batch(batch) => {
                        let rows = batch.rows().map(|row| (row.probe().to_owned(), row.timestamp_ns()));
                        read.events.extend(rows);
                    }
                    StreamItem::Loss(loss) => read.losses.push((read.events.len(), loss.cause, loss.count)),
                    StreamItem::Epoch(epoch) => read.epochs.push(epoch.cursor.epoch),
                    StreamItem::Watermark(watermark) => read.watermark_ns = watermark.watermark_ns,
                    StreamItem::Started(started) => read.kernel = started.kernel_release,
                    _ => {}
                }
            }
        }
        read
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// What a reader finds.
#[derive(Debug, Default)]
pub(super) struct Published {
    pub(super) log: HostLog,
    pub(super) events: Vec<(String, u64)>,
    pub(super) losses: Vec<(usize, LossCause, Option<u64>)>,
    pub(super) epochs: Vec<u64>,
    pub(super) subjects: BTreeSet<String>,
    pub(super) ids: BTreeMap<String, u32>,
    /// Bytes of the largest payload.
    pub(super) largest: usize,
    pub(super) read: u64,
    pub(super) watermark_ns: u64,
    pub(super) kernel: String,
}

impl Published {
    pub(super) fn times(&self) -> Vec<u64> {
        self.events.iter().map(|(_, time_ns)| *time_ns).collect()
    }
}
