//! Transport of a connection: deadlines, keep-alive, window and frame sizes, TLS.
//!
//! It never sends a request.

use std::error::Error as _;
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::error::{ConnectError, Error};
use crate::target::Target;

/// Events come in messages of up to a few hundred KiB: large frames and windows keep the daemon
/// from waiting for us on every round trip.
const MAX_FRAME_BYTES: u32 = 1 << 20;
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

/// A peer that vanished is detected after the sum of these.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Certificates and keys. Needed for [`Target::Tls`], ignored for others.
    pub tls: Option<TlsOptions>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long one request may take, from sending it to its answer. Streams have this long to
    /// begin, and no limit after.
    pub request_timeout: Duration,
    /// Hosts that the same command is for. Roles may limit them, so that a wrong pattern cannot reach a
    /// whole fleet.
    pub hosts: usize,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            tls: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            hosts: 1,
        }
    }
}

/// Certificates and keys for mutual TLS, in PEM.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// Certificates of the authorities that may sign the daemon's certificate. No others are
    /// trusted.
    pub ca_pem: Vec<u8>,
    /// Certificate of this client.
    pub identity: Option<Identity>,
    /// The name in the daemon's certificate, if it is not the host of the target.
    pub domain: Option<String>,
}

/// A certificate and its private key, in PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate, with its chain.
    pub cert_pem: Vec<u8>,
    /// The private key.
    pub key_pem: Vec<u8>,
}

impl std::fmt::Debug for Identity {
    /// Leaves the key out: options end up in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Opens a channel to the daemon.
///
/// # Errors
/// [`Error::Connect`], with what to do about it as [`Error::hints`].
pub(crate) async fn connect(target: &Target, options: &ConnectOptions) -> Result<Channel, Error> {
    let failed = |kind| Error::Connect { target: target.clone(), kind };
    let mut endpoint = Endpoint::from_shared(target.uri())
        .map_err(|source| failed(ConnectError::Transport(source)))?
        .connect_timeout(options.connect_timeout)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .tcp_nodelay(true);
    if let Target::Tls(_) = target {
        let tls = options
            .tls
            .as_ref()
            .filter(|tls| !tls.ca_pem.is_empty())
            .ok_or_else(|| failed(ConnectError::NoCa))?;
        endpoint =
            endpoint.tls_config(tls_config(tls)).map_err(|source| failed(ConnectError::Transport(source)))?;
    }
    // The transport's own deadline covers the socket only, not the handshakes on top of it.
    match tokio::time::timeout(options.connect_timeout, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(source)) => Err(failed(ConnectError::from_transport(source, options.connect_timeout))),
        Err(_elapsed) => Err(failed(ConnectError::Timeout(options.connect_timeout))),
    }
}

fn tls_config(tls: &TlsOptions) -> ClientTlsConfig {
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca_pem));
    if let Some(identity) = &tls.identity {
        config = config.identity(tonic::transport::Identity::from_pem(&identity.cert_pem, &identity.key_pem));
    }
    if let Some(domain) = &tls.domain {
        config = config.domain_name(domain);
    }
    config
}

impl ConnectError {
    /// Finds the system's own error below the transport's layers.
    fn from_transport(source: tonic::transport::Error, limit: Duration) -> Self {
        let mut next = source.source();
        while let Some(error) = next {
            if let Some(io) = error.downcast_ref::<std::io::Error>() {
                // TLS reports what it does not like as `InvalidData` or as a socket that closed,
                // inside an I/O error.
                if io.raw_os_error().is_some() {
                    return Self::Io { kind: io.kind(), message: io.to_string(), source };
                }
                // The transport has the same deadline: either may be noticed first.
                if io.kind() == std::io::ErrorKind::TimedOut {
                    return Self::Timeout(limit);
                }
            }
            next = error.source();
        }
        Self::Transport(source)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn a_host_that_takes_no_connection_is_told_with_the_time() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Until its queue of connections is full.
        let mut held = Vec::new();
        let patience = Duration::from_millis(500);
        while let Ok(stream) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
            held.push(stream.unwrap());
        }
        let limit = Duration::from_millis(100);
        let options = ConnectOptions { connect_timeout: limit, ..ConnectOptions::default() };
        let error = connect(&format!("tcp://{address}").parse().unwrap(), &options).await.unwrap_err();
        assert_eq!(error.without_target(), "no connection within 100ms");
        assert_eq!(error.hints(), ["check the address, and whether a firewall lets the port through"]);
    }
}
