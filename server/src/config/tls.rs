//! Certificates and keys: reading them, and whether they belong together.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};

use super::Tls;
use super::problem::Problem;

/// Why TLS cannot be set up. Each is about one setting of `[listen.tls]`.
#[derive(Debug, Error)]
#[error("cannot use `{path}`: {kind}", path = path.display())]
pub struct TlsError {
    /// The setting.
    pub setting: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub kind: TlsErrorKind,
}

/// What is wrong with a file.
#[derive(Debug, Error)]
pub enum TlsErrorKind {
    /// It cannot be read.
    #[error("{0}")]
    Io(io::Error),
    /// It is not PEM.
    #[error("it is not PEM: {0}")]
    Pem(pem::Error),
    /// There is nothing in it that is needed.
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
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match (&self.kind, self.setting) {
            (TlsErrorKind::Io(error), _) if error.kind() == io::ErrorKind::PermissionDenied => {
                "let the user of the daemon read it"
            }
            (TlsErrorKind::Io(_), _) => "give the path of a PEM file that exists",
            (TlsErrorKind::OtherKey { .. }, _) => {
                "give the key with which the certificate was requested, or the certificate of this key"
            }
            (_, "listen.tls.key") => "give the private key as PEM, without a passphrase",
            (_, _) => "give certificates as PEM (`-----BEGIN CERTIFICATE-----`)",
        }
    }

    fn problem(&self) -> Problem {
        Problem::value(self.setting, self.path.display(), &self.kind, self.hint().to_owned())
    }
}

const CERTIFICATE: &str = "listen.tls.certificate";
const KEY: &str = "listen.tls.key";
const CLIENT_CA: &str = "listen.tls.client_ca";

/// What is wrong with the files, all at once.
pub(super) fn judge(tls: &Tls) -> Vec<Problem> {
    let certificate = certificates(CERTIFICATE, &tls.certificate);
    let found = [certificate.err(), key(&tls.key).err(), verifier(&tls.client_ca).err()];
    let problems: Vec<_> = found.into_iter().flatten().map(|error| error.problem()).collect();
    if problems.is_empty() {
        // Each is good by itself: do they fit?
        return server_config(tls).err().map(|error| error.problem()).into_iter().collect();
    }
    problems
}

/// The settings of TLS: HTTP/2, and clients have to show a certificate.
///
/// # Errors
/// See [`TlsError`].
pub fn server_config(tls: &Tls) -> Result<ServerConfig, TlsError> {
    let certificates = certificates(CERTIFICATE, &tls.certificate)?;
    let key = key(&tls.key)?;
    let verifier = verifier(&tls.client_ca)?;
    let refused = |setting, path: &Path, kind| TlsError { setting, path: path.to_owned(), kind };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(CERTIFICATE, &tls.certificate, TlsErrorKind::Refused(error.to_string())))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates, key)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                let certificate = tls.certificate.clone();
                refused(KEY, &tls.key, TlsErrorKind::OtherKey { certificate })
            }
            rustls::Error::InvalidCertificate(_) => {
                refused(CERTIFICATE, &tls.certificate, TlsErrorKind::Refused(error.to_string()))
            }
            error => refused(KEY, &tls.key, TlsErrorKind::Refused(error.to_string())),
        })?;
    config.alpn_protocols.push(b"h2".to_vec());
    Ok(config)
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError {
        setting,
        path: path.to_owned(),
        kind: TlsErrorKind::Io(source),
    })
}

fn certificates(setting: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |kind| TlsError { setting, path: path.to_owned(), kind };
    let bytes = read(setting, path)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(TlsErrorKind::Pem(error)))?;
    if found.is_empty() { Err(wrong(TlsErrorKind::Missing("certificate"))) } else { Ok(found) }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let wrong = |kind| TlsError { setting: KEY, path: path.to_owned(), kind };
    let bytes = read(KEY, path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        wrong(match error {
            pem::Error::NoItemsFound => TlsErrorKind::Missing("private key"),
            error => TlsErrorKind::Pem(error),
        })
    })
}

fn verifier(path: &Path) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let wrong = |why: String| TlsError {
        setting: CLIENT_CA,
        path: path.to_owned(),
        kind: TlsErrorKind::Refused(why),
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CLIENT_CA, path)? {
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()))
        .build()
        .map_err(|error| wrong(error.to_string()))
}
