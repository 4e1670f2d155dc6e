//! TLS certificates and keys: reading them, and checking that they belong together.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use thiserror::Error;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};

use super::Tls;
use super::export::ClientTls;
use super::problem::Problem;
use crate::auth::TlsSettings;

/// Why TLS cannot be set up. Each is about one setting.
#[derive(Debug, Error)]
#[error("cannot use `{path}`: {kind}", path = path.display())]
pub struct TlsError {
    /// The setting.
    pub setting: String,
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub kind: TlsErrorKind,
}

/// Error of a certificate or key file.
#[derive(Debug, Error)]
pub enum TlsErrorKind {
    /// It cannot be read.
    #[error("{0}")]
    Io(io::Error),
    /// It is not PEM.
    #[error("it is not PEM: {0}")]
    Pem(pem::Error),
    /// It contains nothing that is needed.
    #[error("it holds no {0}")]
    Missing(&'static str),
    /// TLS does not take what is in it.
    #[error("{0}")]
    Refused(String),
    /// The key is not the certificate's.
    #[error("the key does not belong to the certificate in `{certificate}`", certificate = certificate.display())]
    OtherKey {
        /// The certificate.
        certificate: PathBuf,
    },
}

impl TlsError {
    /// A hint for the operator.
    pub fn hint(&self) -> &'static str {
        match (&self.kind, self.setting.as_str()) {
            (TlsErrorKind::Io(error), _) if error.kind() == io::ErrorKind::PermissionDenied => {
                "let the user of the daemon read it"
            }
            (TlsErrorKind::Io(_), _) => "give the path of a PEM file that exists",
            (TlsErrorKind::OtherKey { .. }, _) => {
                "give the key with which the certificate was requested, or the certificate of this key"
            }
            (_, setting) if setting.rsplit('.').next() == Some("key") => {
                "give the private key as PEM, without a passphrase"
            }
            (_, _) => "give certificates as PEM (`-----BEGIN CERTIFICATE-----`)",
        }
    }

    fn problem(&self) -> Problem {
        Problem::value(&self.setting, self.path.display(), &self.kind, self.hint().to_owned())
    }
}

/// The settings of a server, as they are called in the file.
#[derive(Debug)]
pub struct ServerSettings {
    certificate: &'static str,
    key: &'static str,
    client_ca: &'static str,
    /// Protocol that is spoken inside.
    protocols: &'static [&'static [u8]],
}

/// The certificates for clients.
pub const LISTEN: ServerSettings = ServerSettings {
    certificate: "listen.tls.certificate",
    key: "listen.tls.key",
    client_ca: "listen.tls.client_ca",
    protocols: &[b"h2"],
};

/// The certificates for scrapers.
pub const PROMETHEUS: ServerSettings = ServerSettings {
    certificate: "export.prometheus.tls.certificate",
    key: "export.prometheus.tls.key",
    client_ca: "export.prometheus.tls.client_ca",
    protocols: &[b"http/1.1"],
};

/// All problems of the files of a server.
pub(super) fn problems(settings: &ServerSettings, tls: &Tls) -> Vec<Problem> {
    let found = [
        certificates(settings.certificate, &tls.certificate).err(),
        key(settings.key, &tls.key).err(),
        verifier(settings.client_ca, &tls.client_ca).err(),
    ];
    let problems: Vec<_> = found.into_iter().flatten().map(|error| error.problem()).collect();
    if problems.is_empty() {
        // Each is good by itself: do they fit?
        return server_config(settings, tls).err().map(|error| error.problem()).into_iter().collect();
    }
    problems
}

/// All problems of the files of a client.
pub(super) fn client_problems(section: &str, tls: &ClientTls) -> Vec<Problem> {
    let name = |setting: &str| format!("{section}.{setting}");
    let found = [
        roots(&name("ca"), &tls.ca).err(),
        tls.certificate.as_ref().and_then(|path| certificates(&name("certificate"), path).err()),
        tls.key.as_ref().and_then(|path| key(&name("key"), path).err()),
    ];
    let problems: Vec<_> = found.into_iter().flatten().map(|error| error.problem()).collect();
    if problems.is_empty() {
        return client_config(section, tls).err().map(|error| error.problem()).into_iter().collect();
    }
    problems
}

/// The settings of TLS: clients have to show a certificate.
///
/// # Errors
/// See [`TlsError`].
pub fn server_config(settings: &ServerSettings, tls: &Tls) -> Result<ServerConfig, TlsError> {
    let certificates = certificates(settings.certificate, &tls.certificate)?;
    let key = key(settings.key, &tls.key)?;
    let verifier = verifier(settings.client_ca, &tls.client_ca)?;
    let refused = |error| unfit(settings.certificate, settings.key, (&tls.certificate, &tls.key), &error);
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates, key)
        .map_err(refused)?;
    config.alpn_protocols.extend(settings.protocols.iter().map(|protocol| protocol.to_vec()));
    // A resumed session of TLS 1.3 skips the client's certificate, which may have been withdrawn since.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The settings of TLS towards a server.
///
/// # Errors
/// See [`TlsError`].
pub fn client_config(section: &str, tls: &ClientTls) -> Result<ClientConfig, TlsError> {
    let name = |setting: &str| format!("{section}.{setting}");
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unfit(&name("ca"), &name("ca"), (&tls.ca, &tls.ca), &error))?
        .with_root_certificates(roots(&name("ca"), &tls.ca)?);
    let (Some(certificate), Some(key_file)) = (&tls.certificate, &tls.key) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(&name("certificate"), certificate)?;
    let own_key = key(&name("key"), key_file)?;
    builder
        .with_client_auth_cert(chain, own_key)
        .map_err(|error| unfit(&name("certificate"), &name("key"), (certificate, key_file), &error))
}

/// The problem of a certificate and its key, as the TLS library reports it.
fn unfit(
    certificate_setting: &str,
    key_setting: &str,
    (certificate, key): (&Path, &Path),
    error: &rustls::Error,
) -> TlsError {
    let refused = |setting: &str, path: &Path, kind| TlsError {
        setting: setting.to_owned(),
        path: path.to_owned(),
        kind,
    };
    match error {
        rustls::Error::InconsistentKeys(_) => {
            refused(key_setting, key, TlsErrorKind::OtherKey { certificate: certificate.to_owned() })
        }
        rustls::Error::InvalidCertificate(_) => {
            refused(certificate_setting, certificate, TlsErrorKind::Refused(error.to_string()))
        }
        error => refused(key_setting, key, TlsErrorKind::Refused(error.to_string())),
    }
}

/// The settings for clients, with the end of the daemon's certificate.
///
/// # Errors
/// See [`TlsError`].
pub fn tls_settings(tls: &Tls) -> Result<TlsSettings, TlsError> {
    let config = Arc::new(server_config(&LISTEN, tls)?);
    Ok(TlsSettings { config, certificate_end: certificate_end(&tls.certificate) })
}

/// When the first certificate of a file ends. Absent if that cannot be read.
fn certificate_end(path: &Path) -> Option<SystemTime> {
    let chain = certificates(LISTEN.certificate, path).ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn read(setting: &str, path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError {
        setting: setting.to_owned(),
        path: path.to_owned(),
        kind: TlsErrorKind::Io(source),
    })
}

fn certificates(setting: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |kind| TlsError { setting: setting.to_owned(), path: path.to_owned(), kind };
    let bytes = read(setting, path)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(TlsErrorKind::Pem(error)))?;
    if found.is_empty() { Err(wrong(TlsErrorKind::Missing("certificate"))) } else { Ok(found) }
}

fn key(setting: &str, path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let wrong = |kind| TlsError { setting: setting.to_owned(), path: path.to_owned(), kind };
    let bytes = read(setting, path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        wrong(match error {
            pem::Error::NoItemsFound => TlsErrorKind::Missing("private key"),
            error => TlsErrorKind::Pem(error),
        })
    })
}

fn roots(setting: &str, path: &Path) -> Result<RootCertStore, TlsError> {
    let wrong = |why: String| TlsError {
        setting: setting.to_owned(),
        path: path.to_owned(),
        kind: TlsErrorKind::Refused(why),
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(setting, path)? {
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(roots)
}

fn verifier(
    setting: &str,
    path: &Path,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let roots = Arc::new(roots(setting, path)?);
    WebPkiClientVerifier::builder_with_provider(roots, Arc::new(ring::default_provider())).build().map_err(
        |error| TlsError {
            setting: setting.to_owned(),
            path: path.to_owned(),
            kind: TlsErrorKind::Refused(error.to_string()),
        },
    )
}
