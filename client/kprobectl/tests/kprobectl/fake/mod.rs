//! Fake daemon with canned answers, on a unix socket in a directory of its own.
//!
//! It proves nothing about the real daemon (`server/tests/daemon/commands` does): only what a client makes of answers.
//! The examples of the library are run against it too (`client/tests/examples.rs`).

mod aggregations;
pub(crate) mod answers;
mod audit;
mod calls;
mod history;
mod keeping;
mod leases;
mod line;
mod probes;
mod scripted;
mod services;

pub(crate) use history::History;
pub(crate) use keeping::Kept;
pub(crate) use scripted::{Scripted, Way};

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use kprobed_client::api::aggregation_service_server::AggregationServiceServer;
use kprobed_client::api::audit_service_server::AuditServiceServer;
use kprobed_client::api::event_service_server::EventServiceServer;
use kprobed_client::api::host_service_server::HostServiceServer;
use kprobed_client::api::kernel_service_server::KernelServiceServer;
use kprobed_client::api::lease_service_server::LeaseServiceServer;
use kprobed_client::api::probe_service_server::ProbeServiceServer;
use kprobed_client::api::{HostView, StreamEventsRequest};
use kprobed_client::{Client, ConnectOptions, Target};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::Router;

use self::aggregations::Aggregations;
use self::services::Services;

/// How the stream of events goes on after the canned events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It stays open, and nothing comes.
    #[default]
    Open,
    /// More of the same, without end.
    Endless,
    /// Some more events, and a while after them what the queue left out.
    LateLosses,
    /// The daemon ends it.
    Ended,
    /// It breaks off with an error.
    Broken,
    /// The first breaks off with an error, and the next one stays open.
    BrokenOnce,
    /// The first breaks off with an error, and no other begins.
    Gone,
}

/// When a stream of events begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// With the answer to the request.
    #[default]
    AtOnce,
    /// A while after it, as on a busy host.
    Late,
    Never,
}

impl Beginning {
    /// Waits until a stream begins.
    async fn wait(self) {
        match self {
            Self::AtOnce => {}
            Self::Late => tokio::time::sleep(Duration::from_millis(300)).await,
            Self::Never => std::future::pending().await,
        }
    }
}

/// A running fake.
pub(crate) struct Fake {
    directory: TempDir,
    socket: PathBuf,
    services: Services,
    aggregations: Aggregations,
}

impl Fake {
    /// Starts a fake whose event stream ends in this way. It lives in a thread until the process
    /// ends.
    pub(crate) fn start(ending: Ending) -> Self {
        Self::beginning(Beginning::AtOnce, ending)
    }

    /// The same, with streams that begin then.
    pub(crate) fn beginning(beginning: Beginning, ending: Ending) -> Self {
        Self::launch(Services { beginning, ending, ..Services::default() })
    }

    /// Starts a fake that keeps the probes that it is given.
    pub(crate) fn keeping(kept: Kept) -> Self {
        Self::launch(Services { kept: Some(kept), ..Services::default() })
    }

    fn launch(services: Services) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let socket = directory.path().join("kprobed.sock");
        let aggregations = Aggregations::default();
        let server = tonic::transport::Server::builder()
            .add_service(AggregationServiceServer::new(aggregations.clone()))
            .add_service(AuditServiceServer::new(services.clone()))
            .add_service(ProbeServiceServer::new(services.clone()))
            .add_service(KernelServiceServer::new(services.clone()))
            .add_service(EventServiceServer::new(services.clone()))
            .add_service(HostServiceServer::new(services.clone()))
            .add_service(LeaseServiceServer::new(services.clone()));
        serve(&socket, server);
        Self { directory, socket, services, aggregations }
    }

    /// The last stream that was requested.
    pub(crate) fn asked(&self) -> StreamEventsRequest {
        self.services.asked.lock().unwrap().last().cloned().unwrap()
    }

    /// How many changes each request for several of them asked for.
    pub(crate) fn changed_at_once(&self) -> Vec<usize> {
        self.services.changed_at_once.lock().unwrap().clone()
    }

    /// Holds and changes until now, when the last hold has ended.
    pub(crate) fn log_of_holds(&self) -> Vec<String> {
        self.log_when(|log| log.last().is_some_and(|last| last == "hold ended"))
    }

    /// Holds and changes until now, when this is among them.
    pub(crate) fn log_with(&self, entry: &str) -> Vec<String> {
        self.log_when(|log| log.iter().any(|one| one == entry))
    }

    fn log_when(&self, is_there: impl Fn(&[String]) -> bool) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let log = self.services.log.lock().unwrap().clone();
            if is_there(&log) {
                return log;
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "{log:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a stream is requested.
    pub(crate) fn wait_for_request(&self) {
        wait_until("a stream is requested", || !self.services.asked.lock().unwrap().is_empty());
    }

    /// How much of the host was requested, in order.
    pub(crate) fn views(&self) -> Vec<HostView> {
        self.services.views.lock().unwrap().clone()
    }

    /// Aggregations that were made and deleted until now.
    pub(crate) fn counted(&self) -> Vec<String> {
        self.aggregations.log()
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file with this text, and gives its path.
    pub(crate) fn file(&self, text: &str) -> String {
        let path = self.directory().join("probes.txt");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its address, as in an inventory.
    pub(crate) fn address(&self) -> String {
        self.socket.display().to_string()
    }
}

/// Serves on a new socket, in a thread that lives until the process ends.
fn serve(socket: &Path, server: Router) {
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = UnixListener::from_std(listener).unwrap();
            server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
        });
    });
}

/// The library, talking to the fake behind this socket.
pub(crate) async fn client(socket: &Path) -> Client {
    Client::connect(Target::Unix(socket.to_owned()), ConnectOptions::default()).await.unwrap()
}

/// The bit of SIGINT in the masks of `/proc/PID/status`.
const SIGINT_BIT: u64 = 1 << 1;

/// Waits until a command handles Ctrl-C: before, it ends it.
pub(crate) fn await_handler(child: &Child) {
    let status = format!("/proc/{}/status", child.id());
    let caught = || {
        let status = fs::read_to_string(&status).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() & SIGINT_BIT != 0
    };
    wait_until("it handles Ctrl-C", caught);
}

pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ctrl-C.
pub(crate) fn interrupt(child: &Child) {
    signal(child, "-INT");
}

pub(crate) fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Exit code, stdout and stderr in one text.
pub(crate) fn shown(output: &Output) -> String {
    format!(
        "exit: {}\n-- stdout\n{}-- stderr\n{}",
        output.status.code().map_or("none".to_owned(), |code| code.to_string()),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    )
}
