//! Matrix of rights over a real server: principal, method, transport.
//!
//! Every method of the API is called with every set of rights, over the unix socket and over TLS with
//! real certificates. The services behind are missing, so that a call that is let through ends as
//! `UNIMPLEMENTED`: nothing else tells the two apart.

use std::error::Error as _;
use std::fs;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http_body::Body as _;
use kprobed_rights::{METHODS, Roles, Scope, Verb};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType, date_time_ymd};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, HandshakeKind, RootCertStore};
use tonic::codegen::http::{self, uri::PathAndQuery};
use tonic::service::Routes;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tower::Service as _;

use crate::auth::LiveTls;
use crate::config::{Listen, Tls, tls_settings};
use crate::front::{Gate, Inherited, bind, serve};
use crate::shutdown::Tasks;
use kprobed_control::auth::{AuditQueue, Rights};

/// A server that has no service, and whose roles can be replaced.
struct Door {
    directory: tempfile::TempDir,
    listen: Listen,
    tcp: SocketAddr,
    authority: CertifiedIssuer<'static, KeyPair>,
    rights: Arc<Rights>,
    live: Arc<LiveTls>,
    _tasks: Tasks,
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "authority.test");
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate, and its key, with changes to the usual one.
fn signed(
    authority: &CertifiedIssuer<'static, KeyPair>,
    change: impl FnOnce(&mut CertificateParams),
) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["daemon.test".to_owned()]).unwrap();
    change(&mut params);
    (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}

fn with_uri(uri: &'static str) -> impl FnOnce(&mut CertificateParams) {
    move |params| params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())]
}

impl Door {
    async fn open() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = authority();
        let (certificate, key) = signed(&authority, |_| {});
        let write = |name: &str, text: &str| -> PathBuf {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let tls = Tls {
            certificate: write("server.pem", &certificate),
            key: write("server.key", &key),
            client_ca: write("ca.pem", &authority.pem()),
        };
        // Another program may take the port in between; then the test fails as such, and says so.
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let unix = directory.path().join("k.sock");
        let listen = Listen { unix, tcp: Some(tcp), tls: Some(tls), ..Listen::default() };
        let rights = Arc::new(Rights::new(Roles::default(), AuditQueue::new().0));
        let tasks = Tasks::default();
        let settings = tls_settings(listen.tls.as_ref().unwrap()).unwrap();
        let live = Arc::new(LiveTls::new(settings));
        let gate = Gate { rights: Arc::clone(&rights), procfs: "/proc".into(), tls: Some(Arc::clone(&live)) };
        let sockets = bind(&listen, Inherited::default()).await.unwrap();
        serve(sockets, &listen, Routes::default(), &tasks, &Handle::current(), gate);
        Self { directory, listen, tcp, authority, rights, live, _tasks: tasks }
    }

    fn give(&self, roles: &str) {
        self.rights.replace(Roles::parse(roles).unwrap());
    }

    async fn local(&self) -> Channel {
        let uri = format!("unix://{}", self.directory.path().join("k.sock").display());
        Endpoint::from_shared(uri).unwrap().connect().await.unwrap()
    }

    async fn remote(&self, (certificate, key): (String, String)) -> Result<Channel, tonic::transport::Error> {
        let tls = ClientTlsConfig::new()
            .domain_name("daemon.test")
            .ca_certificate(Certificate::from_pem(self.authority.pem()))
            .identity(Identity::from_pem(certificate, key));
        let endpoint = Endpoint::from_shared(format!("https://{}", self.tcp)).unwrap();
        endpoint.tls_config(tls).unwrap().timeout(Duration::from_secs(20)).connect().await
    }
}

async fn call(channel: &Channel, path: &'static str) -> Status {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let codec = ProstCodec::<(), ()>::default();
    client.unary(Request::new(()), PathAndQuery::from_static(path), codec).await.unwrap_err()
}

fn role(principal: &str, methods: &str) -> String {
    format!(
        "[[role]]\nname = \"one\"\nprincipals = [\"{principal}\"]\n[[role.allow]]\nmethods = [\"{methods}\"]\nreads = [\"all\"]\n"
    )
}

/// A way to the server, for one principal.
enum Way {
    Unix,
    Tls((String, String)),
}

/// Gives roles, connects (a connection ends with the roles that it began with), calls every method, and
/// returns how many there are.
async fn check_all(door: &Door, way: &Way, roles: &str, is_allowed: impl Fn(Verb) -> bool) -> usize {
    door.give(roles);
    let channel = match way {
        Way::Unix => door.local().await,
        Way::Tls(pair) => door.remote(pair.clone()).await.unwrap(),
    };
    for method in METHODS {
        let status = call(&channel, method.path).await;
        let is_allowed = method.scope == Scope::Everybody || is_allowed(method.verb);
        let expected = if is_allowed { Code::Unimplemented } else { Code::PermissionDenied };
        assert_eq!(status.code(), expected, "{roles}\n{}: {}", method.path, status.message());
    }
    // A method that is not in the table reaches no service.
    let status = call(&channel, "/kprobed.v1.ProbeService/BurnProbe").await;
    assert!(status.message().contains("the daemon has no method"), "{status}");
    METHODS.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_is_refused_unless_a_role_allows_it() {
    let door = Door::open().await;
    let here = format!("uid:{}", nix::unistd::getuid());
    let there = "spiffe://test/ops".to_owned();
    let certified = Way::Tls(signed(&door.authority, with_uri("spiffe://test/ops")));
    let mut cells = 0;
    for (way, own, others) in [(Way::Unix, &here, &there), (certified, &there, &here)] {
        cells += check_all(&door, &way, "", |_| false).await;
        // The role is another principal's.
        cells += check_all(&door, &way, &role(others, "all"), |_| false).await;
        cells += check_all(&door, &way, &role(own, "all"), |_| true).await;
        for verb in Verb::ALL {
            cells += check_all(&door, &way, &role(own, verb.name()), |other| other == verb).await;
            let but = format!("{}[[role.deny]]\nmethods = [\"{}\"]\n", role(own, "all"), verb.name());
            cells += check_all(&door, &way, &but, |other| other != verb).await;
        }
    }
    assert_eq!(cells, 2 * (3 + 2 * Verb::ALL.len()) * METHODS.len());
}

/// The library of this project finds a status also in headers that something follows. Others do not.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_ends_with_its_headers() {
    let door = Door::open().await;
    let own = role(&format!("uid:{}", nix::unistd::getuid()), "all");
    for (roles, status) in [("", "7"), (own.as_str(), "12")] {
        door.give(roles);
        let mut channel = door.local().await;
        poll_fn(|context| channel.poll_ready(context)).await.unwrap();
        let call = http::Request::post("/kprobed.v1.HostService/GetHost")
            .header("content-type", "application/grpc")
            .body(tonic::body::Body::empty());
        let response = channel.call(call.unwrap()).await.unwrap();
        assert_eq!(response.headers()["grpc-status"], status);
        assert!(response.body().is_end_stream(), "{:?}", response.headers());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_must_be_valid_and_have_a_name_with_a_role() {
    let door = Door::open().await;
    door.give(&role("spiffe://test/ops", "all"));
    let get_host = "/kprobed.v1.HostService/GetHost";
    let usual = with_uri("spiffe://test/ops");
    let good = door.remote(signed(&door.authority, usual)).await.unwrap();
    assert_eq!(call(&good, get_host).await.code(), Code::Unimplemented);
    for (what, other) in [("another name", "spiffe://test/dev"), ("a longer name", "spiffe://test/ops/x")] {
        let channel = door.remote(signed(&door.authority, with_uri(other))).await.unwrap();
        let status = call(&channel, get_host).await;
        assert_eq!(status.code(), Code::PermissionDenied, "{what}");
        assert!(status.message().contains("it has no role"), "{status}");
    }
    let expired = signed(&door.authority, |params| {
        with_uri("spiffe://test/ops")(params);
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    });
    let not_yet = signed(&door.authority, |params| {
        with_uri("spiffe://test/ops")(params);
        (params.not_before, params.not_after) = (date_time_ymd(4000, 1, 1), date_time_ymd(4001, 1, 1));
    });
    let of_another = signed(&authority(), with_uri("spiffe://test/ops"));
    for (what, pair) in [("expired", expired), ("not yet valid", not_yet), ("another authority", of_another)]
    {
        // With TLS 1.3 a client can believe that it is connected before the daemon has looked.
        if let Ok(channel) = door.remote(pair).await {
            let mut client = tonic::client::Grpc::new(channel);
            let Ok(()) = client.ready().await else { continue };
            let codec = ProstCodec::<(), ()>::default();
            let path = PathAndQuery::from_static(get_host);
            let status = client.unary(Request::new(()), path, codec).await.unwrap_err();
            // Of the connection, and not of the server.
            assert!(status.source().is_some(), "{what}: {status:?}");
        }
    }
}

/// A socket on which the client's side of TLS has finished, with the same settings as before.
async fn handshake(door: &Door, client: &Arc<ClientConfig>) -> TlsStream<TcpStream> {
    let connector = TlsConnector::from(Arc::clone(client));
    let socket = TcpStream::connect(door.tcp).await.unwrap();
    let mut stream = connector.connect("daemon.test".try_into().unwrap(), socket).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    // The daemon's settings of HTTP/2 come after what could have been a ticket for a session.
    stream.read_exact(&mut [0; 9]).await.unwrap();
    stream
}

fn client_settings(door: &Door, (certificate, key): (String, String)) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(door.authority.der().clone()).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let mut settings = builder.with_client_auth_cert(chain, key).unwrap();
    settings.alpn_protocols.push(b"h2".to_vec());
    Arc::new(settings)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_never_resumed() {
    let door = Door::open().await;
    let settings = client_settings(&door, signed(&door.authority, with_uri("spiffe://test/ops")));
    for _ in 0..3 {
        let stream = handshake(&door, &settings).await;
        let (_, session) = stream.get_ref();
        assert_eq!(session.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(session.tls13_tickets_received(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn authorities_are_replaced_without_a_lost_connection() {
    let door = Door::open().await;
    door.give(&role("spiffe://test/ops", "all"));
    let get_host = "/kprobed.v1.HostService/GetHost";
    let pair = || signed(&door.authority, with_uri("spiffe://test/ops"));
    let before = door.remote(pair()).await.unwrap();
    assert_eq!(call(&before, get_host).await.code(), Code::Unimplemented);
    // Both authorities at once, as during a change.
    let other = authority();
    let files = door.listen.tls.as_ref().unwrap();
    fs::write(&files.client_ca, format!("{}{}", door.authority.pem(), other.pem())).unwrap();
    door.live.replace(tls_settings(files).unwrap());
    for of in [&door.authority, &other] {
        let channel = door.remote(signed(of, with_uri("spiffe://test/ops"))).await.unwrap();
        assert_eq!(call(&channel, get_host).await.code(), Code::Unimplemented);
    }
    fs::write(&files.client_ca, other.pem()).unwrap();
    door.live.replace(tls_settings(files).unwrap());
    if let Ok(channel) = door.remote(pair()).await {
        let mut client = tonic::client::Grpc::new(channel);
        if client.ready().await.is_ok() {
            let path = PathAndQuery::from_static(get_host);
            let codec = ProstCodec::<(), ()>::default();
            let status = client.unary(Request::new(()), path, codec).await.unwrap_err();
            assert!(status.source().is_some(), "a withdrawn authority: {status:?}");
        }
    }
    // A connection that exists goes on.
    assert_eq!(call(&before, get_host).await.code(), Code::Unimplemented);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_with_its_certificate_and_with_its_roles() {
    let door = Door::open().await;
    door.give(&role("spiffe://test/ops", "all"));
    let short = signed(&door.authority, |params| {
        with_uri("spiffe://test/ops")(params);
        // Certificates count in whole seconds.
        params.not_after = (SystemTime::now() + Duration::from_secs(3)).into();
    });
    let settings = client_settings(&door, short);
    let mut stream = handshake(&door, &settings).await;
    // It ends without a request: the client has sent nothing but its handshakes.
    let rest = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut Vec::new())).await;
    assert!(rest.is_ok(), "the connection outlives its certificate");
    let settings = client_settings(&door, signed(&door.authority, with_uri("spiffe://test/ops")));
    let mut stream = handshake(&door, &settings).await;
    // A role of others changes nothing for it.
    door.give(&format!(
        "{}{}",
        role("spiffe://test/ops", "all"),
        role("uid:7", "read").replace("one", "two")
    ));
    let soon = tokio::time::timeout(Duration::from_millis(300), stream.read_u8()).await;
    assert!(!matches!(soon, Ok(Err(_))), "{soon:?}");
    door.give(&role("spiffe://test/ops", "read"));
    let rest = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut Vec::new())).await;
    assert!(rest.is_ok(), "the connection outlives its roles");
}
