//! Watch of probes that reconnects.
//!
//! Owns where a watch continues. If changes were missed meanwhile, the daemon reports a restart and
//! sends all of its probes.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Streaming;

use crate::api::{WatchEvent, WatchProbesRequest, WatchProbesResponse};
use crate::client::Client;
use crate::error::Error;

/// Time between two attempts to connect again.
const RETRY: Duration = Duration::from_secs(1);

/// One item of a watch.
#[derive(Debug)]
pub enum WatchItem {
    /// A message of the daemon.
    Message(Box<WatchProbesResponse>),
    /// The connection was lost: what happens until the next message is not known. The watch tries again by itself.
    /// `None`: the daemon ended the stream in order, as it does when it stops.
    Interrupted(Option<Error>),
}

impl WatchItem {
    /// The message, if it is one.
    pub fn message(self) -> Option<WatchProbesResponse> {
        match self {
            Self::Message(message) => Some(*message),
            Self::Interrupted(_) => None,
        }
    }
}

/// Endless stream of changes of probes.
#[derive(Debug)]
pub struct ProbeWatch {
    client: Client,
    /// With the resume token after the last message.
    request: WatchProbesRequest,
    inner: Option<Streaming<WatchProbesResponse>>,
    /// When the watch connects again, if it has no connection.
    retry_at: Instant,
    /// The interruption was reported, and no message came after it.
    is_lost: bool,
}

impl ProbeWatch {
    /// The next item. If the connection is lost, the watch says so once, reconnects and continues after the
    /// last message or, if the daemon cannot, with [`WatchEvent::Restarted`].
    ///
    /// # Errors
    /// What keeps the daemon from answering such a request at all.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<WatchItem, Error> {
        loop {
            let read = if let Some(inner) = &mut self.inner {
                inner.message().await.map_err(Error::from)
            } else {
                tokio::time::sleep_until(self.retry_at).await;
                match self.client.begin_watch(self.request.clone()).await {
                    Ok(inner) => {
                        self.inner = Some(inner);
                        continue;
                    }
                    Err(error) => Err(error),
                }
            };
            let error = match read {
                Ok(Some(message)) => {
                    if !message.resume_token.is_empty() {
                        self.request.resume_token.clone_from(&message.resume_token);
                    } else if message.event() == WatchEvent::Restarted {
                        // Before all probes were read once, the watch cannot resume.
                        self.request.resume_token.clear();
                    }
                    self.is_lost = false;
                    return Ok(WatchItem::Message(Box::new(message)));
                }
                Ok(None) => None,
                Err(error) if error.is_transient() => Some(error),
                Err(error) => return Err(error),
            };
            self.inner = None;
            self.retry_at = Instant::now() + RETRY;
            if !std::mem::replace(&mut self.is_lost, true) {
                return Ok(WatchItem::Interrupted(error));
            }
        }
    }
}

impl Client {
    async fn begin_watch(
        &self,
        request: WatchProbesRequest,
    ) -> Result<Streaming<WatchProbesResponse>, Error> {
        self.begin(request, async |request| self.probes().watch_probes(request).await).await
    }

    /// Watches the probes that a request selects.
    ///
    /// # Errors
    /// A request that the daemon refuses, or a daemon that cannot be reached.
    pub async fn watch_probes(&self, request: WatchProbesRequest) -> Result<ProbeWatch, Error> {
        let inner = Some(self.begin_watch(request.clone()).await?);
        Ok(ProbeWatch { client: self.clone(), request, inner, retry_at: Instant::now(), is_lost: false })
    }
}
