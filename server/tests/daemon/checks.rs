//! Test of CheckProbe streams through gRPC, on a stored kernel.

#![expect(clippy::disallowed_methods, reason = "tasks of a test end with it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use kprobed::auth::as_daemon;
use kprobed::rpc::ProbeServer;
use kprobed_client::api::{Arming, CheckProbeResponse, CheckedDefinition, Verdict};
use kprobed_client::{Client, ConnectOptions, Target};
use kprobed_control::ProbeStates;
use kprobed_control::auth::{AuditQueue, Rights};
use kprobed_control::store::Store;
use kprobed_control::{Controller, Observer, Registry};
use kprobed_host::kernel::FactsCache;
use kprobed_host::tracefs::{CurrentInstance, Instance, Tracefs};
use kprobed_lang::definition::Features;
use kprobed_proto::v1::probe_service_server::ProbeServiceServer;
use kprobed_rights::Roles;
use kprobed_verdict::checker::Checker;
use tokio::net::UnixListener;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};

// Lints know a helper of tests by `cfg(test)`.
struct Daemon {
    socket: PathBuf,
    _world: crate::world::World,
    _directory: tempfile::TempDir,
}

#[cfg(test)]
impl Daemon {
    async fn start() -> Self {
        let sites = std::fs::read_to_string(crate::world::fixture("patch-sites-6.12.tsv")).unwrap();
        let world = crate::world::world("6.12", &sites);
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("kprobed.sock");
        let features = Features::from_readme("char, string, ustring kernel return probes support");
        let (control, _queue) = Controller::channel();
        std::fs::create_dir_all(directory.path().join("instances/i")).unwrap();
        let tracefs = Tracefs::new(directory.path(), "/nonexistent");
        let instance = CurrentInstance::new(Instance::find(&tracefs, "i").unwrap());
        let nowhere = "/nonexistent";
        let observer = Observer::new(tracefs, Arc::new(instance), nowhere.into(), nowhere.into());
        let probes = ProbeServer {
            states: ProbeStates { observer, control: control.clone(), registry: Arc::default() },
            control,
            registry: Arc::<Registry>::default(),
            checker: Arc::new(Checker::new(features, Arc::new(FactsCache::new(world.paths.clone())))),
            store: Store::open(directory.path(), SystemTime::now()).await.unwrap().store,
            declarations: Arc::default(),
            costs: Arc::default(),
            rights: Arc::new(Rights::new(Roles::default(), AuditQueue::new().0)),
        };
        let listener = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let server = tonic::transport::Server::builder()
            .layer(as_daemon())
            .add_service(ProbeServiceServer::new(probes));
        tokio::spawn(server.serve_with_incoming(listener));
        Self { socket, _world: world, _directory: directory }
    }

    async fn client(&self) -> Client {
        connect(&self.socket).await
    }
}

#[cfg(test)]
async fn connect(socket: &Path) -> Client {
    Client::connect(Target::Unix(socket.to_owned()), ConnectOptions::default()).await.unwrap()
}

/// The verdicts on a text that is sent in pieces of this many bytes.
#[cfg(test)]
async fn check_all(
    client: &Client,
    text: &str,
    piece_bytes: usize,
    listings: bool,
) -> Vec<CheckedDefinition> {
    let pieces: Vec<_> = text.as_bytes().chunks(piece_bytes).map(<[u8]>::to_vec).collect();
    let mut stream = client.check_probes(tokio_stream::iter(pieces), listings).await.unwrap();
    let mut checked = Vec::new();
    while let Some(one) = stream.next().await.unwrap() {
        checked.push(one);
    }
    checked
}

/// Answer of a stream without listings.
fn brief(answer: CheckProbeResponse) -> CheckProbeResponse {
    // If this place is refused, other places matter, and not what a probe would read there.
    let elsewhere = answer.verdict() == Verdict::Refused && answer.rule != "NOFENTRY_ARGS";
    CheckProbeResponse {
        nearest_before: answer.nearest_before.filter(|_| elsewhere),
        nearest_after: answer.nearest_after.filter(|_| elsewhere),
        listing: Vec::new(),
        // The checker distinguishes these only if there is time for it.
        arming: if answer.arming() == Arming::Optimised { Arming::Breakpoint.into() } else { answer.arming },
        spec: None,
        meaning: None,
        hit_cost: None,
        ..answer
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_says_what_single_checks_say() {
    let daemon = Daemon::start().await;
    let client = daemon.client().await;
    let rows = crate::world::rows("oracle", "6.12");
    let places =
        rows.iter().step_by(131).map(|row| format!("p:x {}+{} a=$arg1:u64\n", row.function, row.offset));
    let returns = rows.iter().step_by(977).map(|row| format!("r:x {}+{} rv\n", row.function, row.offset));
    let others = [
        "p:x no_such_function\n",
        "# nothing\n",
        "\n",
        "-:x # gone\n",
        "p:x vfs_read \\\n a=+0(\n",
        "p:x vfs_read",
    ];
    let text: String = places.chain(returns).chain(others.map(str::to_owned)).collect();
    let checked = check_all(&client, &text, 1000, false).await;
    assert_eq!(checked.len(), text.lines().count() - 3, "all but comments, blank lines and joined ones");
    for one in &checked {
        let alone = client.check_probe(&one.definition).await.unwrap();
        assert_eq!(one.check.clone().unwrap(), brief(alone), "{}", one.definition);
        let offset = usize::try_from(one.offset).unwrap();
        assert_eq!(text[..offset].lines().count() + 1, usize::try_from(one.line).unwrap());
        let first_line = one.definition.split('\\').next().unwrap();
        assert!(text[offset..].starts_with(first_line.split("  ").next().unwrap()), "{one:?}");
    }
    let [.., deletes, unreadable, last] = checked.as_slice() else { panic!() };
    let deletes = deletes.check.as_ref().unwrap();
    assert_eq!((deletes.verdict(), deletes.canonical.as_str()), (Verdict::Accepted, "-:x"));
    assert_eq!(deletes.diagnostics[0].code, "NOTHING_TO_CHECK");
    assert_eq!(unreadable.check.as_ref().unwrap().rule, "DEREF_OPEN_BRACE");
    assert_eq!(last.check.as_ref().unwrap().canonical, "p:kprobes/x vfs_read");
    let with_listings = check_all(&client, "p:x vfs_read\np:x do_sys_openat2+1", 64, true).await;
    assert_eq!(with_listings.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_is_not_read_from() {
    const PIECE_BYTES: usize = 64 << 10;
    let daemon = Daemon::start().await;
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let (pieces, endless) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        while pieces.send(b"p:x no_such_function\n".repeat(PIECE_BYTES / 21)).await.is_ok() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let silent = daemon.client().await;
    let mut stream = silent.check_probes(ReceiverStream::new(endless), false).await.unwrap();
    // However slow this machine is, the daemon takes no more input from some time on.
    let mut waiting = 0;
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = sent.load(Ordering::Relaxed);
        assert!(now * PIECE_BYTES < 32 << 20, "{now} pieces were taken");
        if now == waiting {
            break;
        }
        waiting = now;
    }
    let other = daemon.client().await;
    let answer =
        tokio::time::timeout(Duration::from_secs(5), other.check_probe("p:x no_such_function")).await;
    assert_eq!(answer.unwrap().unwrap().verdict(), Verdict::Refused);
    assert_eq!(stream.next().await.unwrap().unwrap().line, 1, "and nothing was lost");
}
