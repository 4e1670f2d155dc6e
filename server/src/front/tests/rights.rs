//! Matrix of rights over a real server: principal, method, transport.
//!
//! Every method of the API is called with every set of rights, over the unix socket and over TLS with
//! real certificates. The services behind are missing, so that a call that is let through ends as
//! `UNIMPLEMENTED`: nothing else tells the two apart.

use std::error::Error as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kprobed_rights::{METHODS, Roles, Verb};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType, date_time_ymd};
use tokio::runtime::Handle;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::service::Routes;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::auth::Rights;
use crate::config::{Listen, Tls};
use crate::front::open;
use crate::shutdown::Tasks;

/// A server that has no service, and whose roles can be replaced.
struct Door {
    directory: tempfile::TempDir,
    tcp: SocketAddr,
    authority: CertifiedIssuer<'static, KeyPair>,
    rights: Arc<Rights>,
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
        let rights = Arc::new(Rights::new(Roles::default()));
        let tasks = Tasks::default();
        let authority_of_calls = (Arc::clone(&rights), Path::new("/proc"));
        open(&listen, Routes::default(), &tasks, &Handle::current(), authority_of_calls).await.unwrap();
        Self { directory, tcp, authority, rights, _tasks: tasks }
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

/// Checks every method, and returns how many.
async fn check_all(channel: &Channel, is_allowed: impl Fn(Verb) -> bool, what: &str) -> usize {
    for method in METHODS {
        let status = call(channel, method.path).await;
        let expected = if is_allowed(method.verb) { Code::Unimplemented } else { Code::PermissionDenied };
        assert_eq!(status.code(), expected, "{what}: {}: {}", method.path, status.message());
    }
    METHODS.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_is_refused_unless_a_role_allows_it() {
    let door = Door::open().await;
    let uid = nix::unistd::getuid();
    let local = door.local().await;
    let remote = door.remote(signed(&door.authority, with_uri("spiffe://test/ops"))).await.unwrap();
    let here = format!("uid:{uid}");
    let mut cells = 0;
    for (channel, own, others) in
        [(&local, here.as_str(), "spiffe://test/ops"), (&remote, "spiffe://test/ops", &here)]
    {
        door.give("");
        cells += check_all(channel, |_| false, "no role").await;
        // The role is another principal's.
        door.give(&role(others, "all"));
        cells += check_all(channel, |_| false, "another's role").await;
        door.give(&role(own, "all"));
        cells += check_all(channel, |_| true, "all").await;
        for verb in Verb::ALL {
            door.give(&role(own, verb.name()));
            cells += check_all(channel, |other| other == verb, verb.name()).await;
        }
        for verb in Verb::ALL {
            let forbidden = format!("[[role.deny]]\nmethods = [\"{verb}\"]\n");
            door.give(&format!("{}{forbidden}", role(own, "all")));
            cells += check_all(channel, |other| other != verb, &format!("all but {verb}")).await;
        }
        // A method that is not in the table reaches no service.
        let status = call(channel, "/kprobed.v1.ProbeService/BurnProbe").await;
        assert!(status.message().contains("the daemon has no method"), "{status}");
    }
    assert_eq!(cells, 2 * 17 * METHODS.len());
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
