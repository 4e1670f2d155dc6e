//! Certificates of one authority: one for all daemons, and one for the client.

use std::fs;
use std::path::{Path, PathBuf};

use crate::server::{authority, signed};

/// The name in the daemons' certificate.
pub(crate) const DOMAIN: &str = "kprobed.fleet.test";

/// Where they are, in PEM.
pub(crate) struct Certificates {
    pub(crate) authority: PathBuf,
    pub(crate) daemon: Pair,
    pub(crate) client: Pair,
}

/// A certificate and its key.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificates {
    pub(crate) fn make(directory: &Path) -> anyhow::Result<Self> {
        let issuer = authority();
        let authority = directory.join("ca.pem");
        fs::write(&authority, issuer.pem())?;
        let pair = |name: &str, domain: &str| -> anyhow::Result<Pair> {
            let (certificate, key) = signed(&issuer, domain);
            let pair = Pair {
                certificate: directory.join(format!("{name}.pem")),
                key: directory.join(format!("{name}.key")),
            };
            fs::write(&pair.certificate, certificate)?;
            fs::write(&pair.key, key)?;
            Ok(pair)
        };
        Ok(Self { daemon: pair("daemon", DOMAIN)?, client: pair("client", "client.fleet.test")?, authority })
    }
}
