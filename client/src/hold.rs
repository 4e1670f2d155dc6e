//! Holds: leases that last as long as a client is connected.
//!
//! Owns the stream that keeps the hold. Callers give probes its lease.

use tonic::Streaming;

use crate::api::{HoldProbesRequest, HoldProbesResponse, Lease};
use crate::client::Client;
use crate::error::Error;

/// A hold: when it is dropped, or this program ends in any way, the daemon deletes all probes that
/// were created with its lease.
///
/// ```no_run
/// use kprobed_client::api::CreateProbeRequest;
/// use kprobed_client::{Client, ConnectOptions, Target};
///
/// # async fn example() -> Result<(), kprobed_client::Error> {
/// let client = Client::connect(Target::default(), ConnectOptions::default()).await?;
/// let hold = client.hold().await?;
/// let probe = CreateProbeRequest {
///     definition: "p:fork kernel_clone".to_owned(),
///     enabled: true,
///     lease: Some(hold.lease()),
///     ..CreateProbeRequest::default()
/// };
/// client.create_probe(probe).await?;
/// // ... and here it goes.
/// drop(hold);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Hold {
    key: String,
    /// The daemon deletes the probes when it ends.
    _stream: Streaming<HoldProbesResponse>,
}

impl Client {
    /// Begins a hold, over the connection of this client.
    ///
    /// # Errors
    /// [`Error::Rpc`] when this connection has as many as it can have.
    pub async fn hold(&self) -> Result<Hold, Error> {
        let (first, stream) = self
            .begin_with_first(HoldProbesRequest {}, async |request| self.leases().hold_probes(request).await)
            .await?;
        Ok(Hold { key: first.holder, _stream: stream })
    }
}

impl Hold {
    /// The lease for probes that end with this hold.
    pub fn lease(&self) -> Lease {
        Lease { holder: self.key.clone(), ..Lease::default() }
    }
}
