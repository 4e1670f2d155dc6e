//! From the global options to a connection.

use std::path::Path;
use std::time::Duration;

use kprobed_client::{Client, ConnectOptions, Identity, TlsOptions};

use super::Failure;
use crate::cli::Global;

/// Connects to the daemon that the global options name.
pub(super) async fn connect(global: &Global) -> Result<Client, Failure> {
    let options = ConnectOptions {
        tls: tls(global)?,
        connect_timeout: global.timeout.min(Duration::from_secs(5)),
        request_timeout: global.timeout,
    };
    Ok(Client::connect(global.server.clone(), options).await?)
}

fn tls(global: &Global) -> Result<Option<TlsOptions>, Failure> {
    let Some(ca) = &global.ca else { return Ok(None) };
    let identity = match (&global.cert, &global.key) {
        (Some(cert), Some(key)) => Some(Identity { cert_pem: read(cert)?, key_pem: read(key)? }),
        (None, None) => None,
        _ => {
            let message = "`--cert` and `--key` belong together, and only one of them is given".to_owned();
            return Err(Failure::usage(message, Some("give both".to_owned())));
        }
    };
    Ok(Some(TlsOptions { ca_pem: read(ca)?, identity, domain: global.domain.clone() }))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|source| Failure::File { path: path.to_owned(), source })
}
