//! Test of the ways to the daemon: TLS with certificates of both sides, reflection, and places for those who come
//! after clients that do nothing.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kprobed::config::Listen;
use kprobed_client::{Client, ConnectOptions, Identity, Target, TlsOptions};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::server::{PATIENCE, Server, authority};

#[tokio::test(flavor = "multi_thread")]
async fn tls_wants_certificates_from_both_sides() {
    let server = Server::open(Listen::default(), "").await;
    let (certificate, key) = server.client.clone();
    let identity = Identity { cert_pem: certificate.into_bytes(), key_pem: key.into_bytes() };
    let connect = async |identity: Option<Identity>, authority: &str| {
        let ca_pem = authority.as_bytes().to_vec();
        let tls = Some(TlsOptions { ca_pem, identity, domain: Some("daemon.test".to_owned()) });
        let target: Target = format!("https://{}", server.tcp).parse().unwrap();
        Client::connect(target, ConnectOptions { tls, ..ConnectOptions::default() }).await?.host().await
    };
    let host = connect(Some(identity.clone()), &server.authority).await.unwrap();
    assert_eq!(host.kernel_release, "6.12.0-stored-amd64");
    connect(None, &server.authority).await.expect_err("a client without a certificate got in");
    let stranger = authority().pem();
    connect(Some(identity), &stranger).await.expect_err("the client trusts every authority");
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_lists_the_services() {
    let server = Server::open(Listen::default(), "").await;
    let request = ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..Default::default()
    };
    let mut client = ServerReflectionClient::new(server.local().await.unwrap());
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}")
    };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    for service in ["ProbeService", "EventService", "HostService"] {
        assert!(names.contains(&format!("kprobed.v1.{service}")), "{names:?}");
    }
}

/// What a thread logs.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the daemon has left a connection that says nothing.
fn is_open(socket: &UnixStream) -> bool {
    loop {
        match io::Read::read(&mut &*socket, &mut [0; 64]) {
            // What the daemon says first.
            Ok(bytes) if bytes > 0 => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            _ => return false,
        }
    }
}

/// How many sockets a daemon has, its listener among them. The kernel lists each with the place of the listener.
fn sockets_of(server: &Server) -> usize {
    let directory = format!("{}/", server.socket().parent().unwrap().display());
    let list = fs::read_to_string("/proc/net/unix").unwrap();
    list.lines().filter(|line| line.contains(&directory)).count()
}

/// All on one thread, whose log is read.
#[tokio::test]
async fn idle_connections_keep_no_client_out() {
    const MOST: u64 = 32;
    const MOST_OF_PEER: u64 = 16;
    // Fewer than wait at the door.
    const HELD: usize = 100;
    let logged = Logged::default();
    let writer = logged.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let listen =
        Listen { max_connections: MOST, max_connections_per_peer: MOST_OF_PEER, ..Listen::default() };
    let server = Server::open(listen, "").await;
    let connect = || UnixStream::connect(server.socket()).unwrap();
    let held: Vec<_> = (0..HELD).map(|_| connect()).collect();
    for socket in &held {
        socket.set_nonblocking(true).unwrap();
    }
    let open = || held.iter().filter(|socket| is_open(socket)).count() as u64;
    // Behind all of them.
    let mut client = HealthClient::new(server.local().await.unwrap());
    let served = tokio::time::timeout(PATIENCE, client.check(HealthCheckRequest::default())).await;
    served.expect("a client waits for those that do nothing").unwrap();
    // A quarter more than may be open have been asked to leave, and a few more.
    assert!(open() <= MOST + MOST / 4 + 8, "{} are open", open());
    let begun = Instant::now();
    while open() >= MOST_OF_PEER {
        assert!(begun.elapsed() < PATIENCE, "{} stay open", open());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // When they are gone, so is what they took: the listener and the other client stay.
    drop(held);
    let begun = Instant::now();
    while sockets_of(&server) != 2 {
        assert!(begun.elapsed() < PATIENCE, "{} sockets stay", sockets_of(&server));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let text = String::from_utf8(logged.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("closed idle connections to make room"), "{text}");
}
