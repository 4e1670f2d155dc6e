//! Who calls: the principal at the other end of a connection.
//!
//! Owns finding out the principal of a connection, and the certificates with which that is done. Whether the roles of
//! this host allow a call is decided in [`kprobed_control::auth`].

mod peer_groups;
mod who;

pub(crate) use peer_groups::peer_groups;
pub(crate) use who::certificate_end;
pub use who::{Peer, Who};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// Certificate, key and authorities of the daemon, and when the certificate ends.
#[derive(Debug)]
pub struct TlsSettings {
    /// What connections are accepted with.
    pub config: Arc<ServerConfig>,
    /// When the daemon's certificate ends. Absent if that cannot be read.
    pub certificate_end: Option<SystemTime>,
}

/// The settings of TLS in force for new connections. A reload replaces them; connections that exist keep theirs.
#[derive(Debug)]
pub struct LiveTls(Mutex<TlsSettings>);

impl LiveTls {
    /// With these settings at first.
    pub fn new(settings: TlsSettings) -> Self {
        Self(Mutex::new(settings))
    }

    /// For the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.now().config))
    }

    /// When the certificate ends that new connections get.
    pub(crate) fn certificate_end(&self) -> Option<SystemTime> {
        self.now().certificate_end
    }

    /// Puts other settings in force, for all connections that are accepted from now on.
    pub fn replace(&self, settings: TlsSettings) {
        *self.now() = settings;
    }

    fn now(&self) -> MutexGuard<'_, TlsSettings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
