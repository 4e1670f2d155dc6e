//! TLS certificates and keys: reading them, and checking that they belong together.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};

use super::Tls;
use super::export::ClientTls;
use super::problem::Problem;
use crate::auth::{TlsSettings, certificate_end};

/// The section of a server.
#[derive(Debug)]
pub struct ServerSection {
    name: &'static str,
    /// Protocol that is spoken inside.
    protocol: &'static [u8],
}

/// The certificates for clients.
pub const LISTEN: ServerSection = ServerSection { name: "listen.tls", protocol: b"h2" };

/// The certificates for scrapers.
pub const PROMETHEUS: ServerSection = ServerSection { name: "export.prometheus.tls", protocol: b"http/1.1" };

impl ServerSection {
    /// Its certificate, its key and the authority of its clients.
    fn files<'a>(&self, tls: &'a Tls) -> [PemFile<'a>; 3] {
        [("certificate", &tls.certificate), ("key", &tls.key), ("client_ca", &tls.client_ca)]
            .map(|(name, path)| PemFile::new(self.name, name, path))
    }
}

/// All problems of the files of a server.
pub(super) fn problems(section: &ServerSection, tls: &Tls) -> Vec<Problem> {
    let [certificate, key, client_ca] = section.files(tls);
    let found = [certificate.certificates().err(), key.key().err(), client_ca.verifier().err()];
    all_problems(found, || server_config(section, tls).err())
}

/// All problems of the files of a client.
pub(super) fn client_problems(section: &str, tls: &ClientTls) -> Vec<Problem> {
    let found = [
        PemFile::new(section, "ca", &tls.ca).roots().err(),
        tls.certificate
            .as_ref()
            .and_then(|path| PemFile::new(section, "certificate", path).certificates().err()),
        tls.key.as_ref().and_then(|path| PemFile::new(section, "key", path).key().err()),
    ];
    all_problems(found, || client_config(section, tls).err())
}

/// The problems of files, or else what they have together.
fn all_problems(found: [Option<Problem>; 3], together: impl FnOnce() -> Option<Problem>) -> Vec<Problem> {
    let mut found: Vec<_> = found.into_iter().flatten().collect();
    if found.is_empty() {
        // Each is good by itself: do they fit?
        found.extend(together());
    }
    found
}

/// The settings of TLS: clients have to show a certificate.
///
/// # Errors
/// The [`Problem`] of one of the files.
pub fn server_config(section: &ServerSection, tls: &Tls) -> Result<ServerConfig, Problem> {
    let [certificate, key, client_ca] = section.files(tls);
    let (chain, own_key, verifier) = (certificate.certificates()?, key.key()?, client_ca.verifier()?);
    let refused = |error| certificate.unfit(&key, &error);
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, own_key)
        .map_err(refused)?;
    config.alpn_protocols.push(section.protocol.to_vec());
    // A resumed session of TLS 1.3 skips the client's certificate, which may have been withdrawn since.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The settings of TLS towards a server.
///
/// # Errors
/// The [`Problem`] of one of the files.
pub fn client_config(section: &str, tls: &ClientTls) -> Result<ClientConfig, Problem> {
    let ca = PemFile::new(section, "ca", &tls.ca);
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ca.unfit(&ca, &error))?
        .with_root_certificates(ca.roots()?);
    let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) else {
        return Ok(builder.with_no_client_auth());
    };
    let certificate = PemFile::new(section, "certificate", certificate);
    let key = PemFile::new(section, "key", key);
    builder
        .with_client_auth_cert(certificate.certificates()?, key.key()?)
        .map_err(|error| certificate.unfit(&key, &error))
}

/// The settings for clients, with the end of the daemon's certificate.
///
/// # Errors
/// The [`Problem`] of one of the files.
pub fn tls_settings(tls: &Tls) -> Result<TlsSettings, Problem> {
    let config = Arc::new(server_config(&LISTEN, tls)?);
    let [certificate, ..] = LISTEN.files(tls);
    Ok(TlsSettings { config, certificate_end: certificate.end() })
}

/// A file, and the setting that names it.
struct PemFile<'a> {
    setting: String,
    path: &'a Path,
}

impl<'a> PemFile<'a> {
    fn new(section: &str, name: &str, path: &'a Path) -> Self {
        Self { setting: format!("{section}.{name}"), path }
    }

    fn problem(&self, why: impl fmt::Display) -> Problem {
        let hint = if self.setting.rsplit('.').next() == Some("key") {
            "give the private key as PEM, without a passphrase"
        } else {
            "give certificates as PEM (`-----BEGIN CERTIFICATE-----`)"
        };
        Problem::value(&self.setting, self.path.display(), why, hint)
    }

    /// The problem of this certificate and its key, as the TLS library reports it.
    fn unfit(&self, key: &PemFile<'_>, error: &rustls::Error) -> Problem {
        match error {
            rustls::Error::InconsistentKeys(_) => {
                let certificate = self.path.display();
                let why = format!("the key does not belong to the certificate in `{certificate}`");
                let hint =
                    "give the key with which the certificate was requested, or the certificate of this key";
                Problem::value(&key.setting, key.path.display(), why, hint)
            }
            rustls::Error::InvalidCertificate(_) => self.problem(error),
            error => key.problem(error),
        }
    }

    fn not_pem(&self, error: &pem::Error) -> Problem {
        self.problem(format_args!("it is not PEM: {error}"))
    }

    fn read(&self) -> Result<Vec<u8>, Problem> {
        fs::read(self.path).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::PermissionDenied => "let the user of the daemon read it",
                _ => "give the path of a PEM file that exists",
            };
            Problem::value(&self.setting, self.path.display(), error, hint)
        })
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, Problem> {
        let bytes = self.read()?;
        let found: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
            .collect::<Result<_, _>>()
            .map_err(|error| self.not_pem(&error))?;
        if found.is_empty() { Err(self.problem("it holds no certificate")) } else { Ok(found) }
    }

    /// When its first certificate ends. Absent if that cannot be read.
    fn end(&self) -> Option<SystemTime> {
        let chain = self.certificates().ok()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
        certificate_end(&certificate)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, Problem> {
        PrivateKeyDer::from_pem_slice(&self.read()?).map_err(|error| match error {
            pem::Error::NoItemsFound => self.problem("it holds no private key"),
            error => self.not_pem(&error),
        })
    }

    fn roots(&self) -> Result<RootCertStore, Problem> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| self.problem(error))?;
        }
        Ok(roots)
    }

    fn verifier(&self) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, Problem> {
        let (roots, provider) = (Arc::new(self.roots()?), Arc::new(ring::default_provider()));
        let built = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
        built.map_err(|error| self.problem(error))
    }
}
