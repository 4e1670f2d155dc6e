//! Feed of one host into the merge from a stream of NATS.

use super::feed::{BACKOFF, Gone, Link, Signal};
use super::stream::{MergeOptions, MergedStream};
use crate::event::StreamItem;
use crate::fleet::Outcome;
use crate::nats::{NatsError, NatsRequest, NatsSource, NatsStream};

impl MergedStream {
    /// Begins with hosts of a stream of NATS. Their clocks cannot be compared over it: the order is
    /// by the wall clock of each host, and exact up to the error of those. Hosts of which nothing
    /// is published, not even that nothing happens, delay the others for
    /// [`MergeOptions::max_wait`].
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn from_nats(
        source: &NatsSource,
        hosts: Vec<String>,
        request: &NatsRequest,
        options: MergeOptions,
    ) -> Self {
        Self::over(hosts, request.until_now, options, |host, link| {
            let (source, host, request) = (source.clone(), host.to_owned(), request.clone());
            Some(Feed { host, source, request, link }.follow())
        })
    }
}

struct Feed {
    host: String,
    source: NatsSource,
    request: NatsRequest,
    link: Link,
}

impl Feed {
    async fn follow(self) -> Result<(), Gone> {
        let Ok(place) = self.link.gate.acquire().await else { return Ok(()) };
        self.link.tell(Signal::Connecting)?;
        let opened = self.source.open(&self.host, self.request.clone()).await;
        drop(place);
        let mut stream = match opened {
            Ok(stream) => stream,
            Err(error) => return self.give_up(&error),
        };
        let mut wall_offset_ns = None;
        loop {
            let Ok(permit) = self.link.permits.acquire().await else { return Ok(()) };
            match stream.next().await {
                Ok(Some(item)) => {
                    permit.forget();
                    if let StreamItem::Started(started) = &item {
                        wall_offset_ns = started.clock.map(|clock| clock.wall_offset_ns);
                    }
                    let is_epoch = matches!(item, StreamItem::Epoch(_));
                    self.link.tell(Signal::Item(item))?;
                    // An idle host has no event that shows its clock.
                    if let Some(offset_ns) = wall_offset_ns.filter(|_| is_epoch) {
                        self.link.tell(Signal::WallOffset(offset_ns))?;
                    }
                }
                Ok(None) => return self.link.tell(Signal::Ended),
                Err(error @ NatsError::Request { .. }) if self.link.options.reconnect => {
                    self.link.tell(Signal::Lost { reason: error.to_string(), outcome: Outcome::Failed })?;
                    Self::open_again(&mut stream).await;
                }
                Err(error) => return self.give_up(&error),
            }
        }
    }

    fn give_up(&self, error: &NatsError) -> Result<(), Gone> {
        self.link.tell(Signal::GivenUp { reason: error.to_string(), outcome: Outcome::Failed })
    }

    async fn open_again(stream: &mut NatsStream) {
        let mut delay = BACKOFF.initial;
        while stream.reopen().await.is_err() {
            tokio::time::sleep(delay).await;
            delay = delay.saturating_mul(2).min(BACKOFF.longest);
        }
    }
}
