//! Tests of the front end with real clients on real sockets.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kprobed_rights::Roles;
use tokio::runtime::Handle;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::{Gate, Inherited, bind, serve};
use crate::config::Listen;
use crate::shutdown::Tasks;
use kprobed_control::auth::{AuditQueue, Rights};

mod rights;

/// Without a role for anybody. Health needs none.
fn nobody() -> Gate {
    Gate {
        rights: Arc::new(Rights::new(Roles::default(), AuditQueue::new().0)),
        procfs: "/proc".into(),
        tls: None,
    }
}

/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(20);

struct Served {
    directory: tempfile::TempDir,
    tasks: Tasks,
}

impl Served {
    async fn new(listen: Listen) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tasks = Tasks::default();
        let (_, health) = tonic_health::server::health_reporter();
        let listen = Listen { unix: directory.path().join("k.sock"), ..listen };
        let sockets = bind(&listen, Inherited::default()).await.unwrap();
        serve(sockets, &listen, Routes::new(health), &tasks, &Handle::current(), nobody());
        Self { directory, tasks }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("k.sock")
    }

    async fn client(&self) -> HealthClient<Channel> {
        let uri = format!("unix://{}", self.socket().display());
        HealthClient::new(Endpoint::from_shared(uri).unwrap().connect().await.unwrap())
    }
}

async fn check(client: &mut HealthClient<Channel>) -> Result<(), Status> {
    let call = client.check(HealthCheckRequest { service: String::new() });
    tokio::time::timeout(PATIENCE, call).await.unwrap().map(|_| ())
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_do_nothing_keep_nobody_out() {
    let served = Served::new(Listen { max_connections_per_peer: 3, ..Listen::default() }).await;
    let mut first = served.client().await;
    check(&mut first).await.unwrap();
    for _ in 0..20 {
        let mut client = served.client().await;
        check(&mut client).await.unwrap();
    }
    // It had to go, and comes back by itself.
    check(&mut first).await.unwrap();
    assert!(served.tasks.stop(PATIENCE).await);
}

/// New connections do not wait for those that were asked to leave: these may take two seconds, and
/// others connect faster than that.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_connections_keeps_nobody_out() {
    let served = Served::new(Listen { max_connections: 4, ..Listen::default() }).await;
    let _flood: Vec<_> = (0..300).map(|_| UnixStream::connect(served.socket()).unwrap()).collect();
    check(&mut served.client().await).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_is_busy_everywhere_is_told() {
    let served = Served::new(Listen { max_connections_per_peer: 1, ..Listen::default() }).await;
    let mut busy = served.client().await;
    let request = HealthCheckRequest { service: String::new() };
    let watch = busy.watch(request).await.unwrap();
    let refused = check(&mut served.client().await).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("`listen.max_connections_per_peer`"), "{refused}");
    drop(watch);
    drop(busy);
    // The end of the first one has to arrive.
    let again = tokio::time::timeout(PATIENCE, async {
        while check(&mut served.client().await).await.is_err() {
            tokio::task::yield_now().await;
        }
    });
    again.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_closed() {
    let served = Served::new(Listen { idle_timeout_s: 1, ..Listen::default() }).await;
    let mut silent = UnixStream::connect(served.socket()).unwrap();
    let mut greeting = UnixStream::connect(served.socket()).unwrap();
    greeting.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let read = tokio::task::spawn_blocking(move || {
        for socket in [&mut silent, &mut greeting] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.read_to_end(&mut Vec::new()).unwrap();
        }
    });
    read.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_is_not_taken_from_another() {
    let served = Served::new(Listen::default()).await;
    let listen = Listen { unix: served.socket(), ..Listen::default() };
    let error = bind(&listen, Inherited::default()).await.unwrap_err();
    assert!(error.message.ends_with(": another process listens there"), "{error}");
    assert_eq!(error.hint.unwrap(), "stop it, or set `listen.unix` to another place");
    check(&mut served.client().await).await.unwrap();
    // What a daemon that was killed leaves is replaced; a file is not.
    let left = served.directory.path().join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    super::listen::unix(&left, "root").await.unwrap();
    let file = served.directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = super::listen::unix(&file, "root").await.unwrap_err();
    assert!(error.message.ends_with(": there is something of that name that is not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "precious");
}
