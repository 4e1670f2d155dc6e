//! Certificates for tests: an authority, certificates of daemons and clients, and daemons that
//! require one.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use kprobed_client::Identity;
use kprobed_vm::machine::{Command, MachineError};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::daemon::DaemonGuest;

/// The name in the certificates of daemons.
pub(crate) const DAEMON: &str = "kprobed.test";

/// A daemon that takes in over TLS those clients only whose certificate is of the right authority.
pub(crate) const TLS_CONFIG: &str = "[[role]]\nname = \"certified\"\nprincipals = [\"uid:0\", \"dns:client.test\"]\n\
                                     [[role.allow]]\nmethods = [\"all\"]\nreads = [\"all\"]\n[listen]\ntcp = \"0.0.0.0:7443\"\n[listen.tls]\ncertificate = \"/etc/kprobed/server.pem\"\n\
                                     key = \"/etc/kprobed/server.key\"\nclient_ca = \"/etc/kprobed/ca.pem\"\n";

/// The background process of such a daemon.
const NAME: &str = "tls";

/// A new authority, in which no program trusts yet.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A certificate of the same name as its issuer passes for one that has signed itself.
        params.distinguished_name.push(DnType::CommonName, "authority.test");
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Its own certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a name, and its key.
    pub(crate) fn sign(&self, name: &str) -> Result<Identity> {
        self.sign_all(&[name])
    }

    /// The same for several names or IP addresses.
    pub(crate) fn sign_all(&self, names: &[&str]) -> Result<Identity> {
        let key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = CertificateParams::new(names)?.signed_by(&key, &self.0)?;
        Ok(Identity { cert_pem: certificate.pem().into_bytes(), key_pem: key.serialize_pem().into_bytes() })
    }

    /// Puts the daemon's certificates into a guest.
    pub(crate) fn certify(&self, guest: &DaemonGuest) -> Result<()> {
        let (server, own) = (self.sign(DAEMON)?, self.pem());
        let files = [
            ("server.pem", server.cert_pem.as_slice()),
            ("server.key", &server.key_pem),
            ("ca.pem", own.as_bytes()),
        ];
        for (name, pem) in files {
            guest.machine.put(&format!("/etc/kprobed/{name}"), 0o600, pem)?;
        }
        Ok(())
    }

    /// Writes what a client needs: `ca.pem`, `client.pem` and `client.key`.
    pub(crate) fn write_client(&self, directory: &Path) -> Result<()> {
        let client = self.sign("client.test")?;
        fs::write(directory.join("ca.pem"), self.pem())?;
        fs::write(directory.join("client.pem"), client.cert_pem)?;
        fs::write(directory.join("client.key"), client.key_pem)?;
        Ok(())
    }
}

/// Starts a daemon with [`TLS_CONFIG`] in the place of one that has ended, on the same forwarded
/// port, and waits until it listens.
pub(crate) fn serve_tls(guest: &DaemonGuest) -> Result<()> {
    guest.machine.put("/etc/kprobed/tls.toml", 0o600, TLS_CONFIG.as_bytes())?;
    guest.machine.spawn(NAME, &Command::new("kprobed").arg("--config").arg("/etc/kprobed/tls.toml"))?;
    // The relay of each guest leads to 7000: one more leads on to the port with TLS, if it is not
    // there from an earlier start.
    match guest.machine.spawn("relay-tls", &Command::shell("exec /init relay 127.0.0.1:7000 127.0.0.1:7443"))
    {
        Ok(()) | Err(MachineError::Refused { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let port = format!(":{:04X} ", 7443);
    let script = format!(
        "for i in $(seq 300); do grep -q '{port}.* 0A ' /proc/net/tcp && exit 0; sleep 0.1; done; exit 1"
    );
    guest.shell(&script).map(drop).with_context(|| log(guest))
}

/// Kills that daemon.
pub(crate) fn kill_tls(guest: &DaemonGuest) -> Result<()> {
    guest.machine.kill_process(NAME)
}

/// What that daemon has logged.
pub(crate) fn log(guest: &DaemonGuest) -> String {
    guest.shell("cat /run/log/tls.log").unwrap_or_else(|error| format!("(no log: {error:#})"))
}
