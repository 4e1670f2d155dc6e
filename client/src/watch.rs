//! Watch of probes that reconnects.
//!
//! Owns where a watch continues. If changes were missed meanwhile, the daemon reports a restart and
//! sends all of its probes.

use std::time::Duration;

use tonic::Streaming;

use crate::api::{WatchEvent, WatchProbesRequest, WatchProbesResponse};
use crate::client::Client;
use crate::error::Error;

/// Time between two attempts to connect again.
const RETRY: Duration = Duration::from_secs(1);

/// Endless stream of changes of probes.
#[derive(Debug)]
pub struct ProbeWatch {
    client: Client,
    /// With the resume token after the last message.
    request: WatchProbesRequest,
    inner: Option<Streaming<WatchProbesResponse>>,
}

impl ProbeWatch {
    /// The next message. If the connection is lost, the watch reconnects and continues after the
    /// last message or, if the daemon cannot, with [`WatchEvent::Restarted`].
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
                        // Before all probes were read once, the watch cannot resume.
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

    /// A watch with the same selection continues from this token. Empty while it cannot resume.
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
