//! Watching probes over lost connections.
//!
//! Owns where a watch goes on. When changes were missed while the daemon was away, the daemon says that the watch begins anew, and sends all
//! probes that it has then.

use std::time::Duration;

use tonic::Streaming;

use crate::api::{WatchEvent, WatchProbesRequest, WatchProbesResponse};
use crate::client::Client;
use crate::error::Error;

/// Time between two attempts to connect again.
const RETRY: Duration = Duration::from_secs(1);

/// What becomes of probes, without an end.
#[derive(Debug)]
pub struct ProbeWatch {
    client: Client,
    /// With the token behind what was read.
    request: WatchProbesRequest,
    inner: Option<Streaming<WatchProbesResponse>>,
}

impl ProbeWatch {
    /// The next message. When the connection is lost, it is made again, and the watch goes on behind the last message or, if the daemon cannot,
    /// with [`WatchEvent::Restarted`].
    ///
    /// # Errors
    /// What keeps the daemon from answering such a request at all.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<WatchProbesResponse, Error> {
        loop {
            let read = match &mut self.inner {
                Some(inner) => inner.message().await.map_err(Error::from),
                None => match self.client.begin_watch(self.request.clone()).await {
                    Ok(inner) => {
                        self.inner = Some(inner);
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            match read {
                Ok(Some(message)) => {
                    if !message.resume_token.is_empty() {
                        self.request.resume_token.clone_from(&message.resume_token);
                    } else if message.event() == WatchEvent::Restarted {
                        // Until all that there is has been read, there is no place to go on from.
                        self.request.resume_token.clear();
                    }
                    return Ok(message);
                }
                Ok(None) => {}
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error),
            }
            self.inner = None;
            tokio::time::sleep(RETRY).await;
        }
    }

    /// A watch with the same selection that begins with this token goes on behind what was read. Empty while that is not possible.
    pub fn resume_token(&self) -> &str {
        &self.request.resume_token
    }
}

impl Client {
    /// Watches the probes that a request selects.
    ///
    /// # Errors
    /// A request that the daemon refuses, or a daemon that cannot be reached.
    pub async fn watch_probes(&self, request: WatchProbesRequest) -> Result<ProbeWatch, Error> {
        let inner = Some(self.begin_watch(request.clone()).await?);
        Ok(ProbeWatch { client: self.clone(), request, inner })
    }
}
