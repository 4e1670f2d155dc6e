//! Event streams of one connection.

use kprobed_event::{Cursor, Decoder, StreamItem};
use tonic::Streaming;

use crate::api;
use crate::error::Error;

/// Event stream that has begun: the daemon has subscribed this client.
#[derive(Debug)]
pub struct EventStream {
    inner: Streaming<api::StreamEventsResponse>,
    decoder: Decoder,
    started: api::StreamStarted,
    /// Whether the caller has taken that as the first item.
    is_taken: bool,
}

impl EventStream {
    pub(crate) fn new(
        first: api::StreamEventsResponse,
        rest: Streaming<api::StreamEventsResponse>,
    ) -> Result<Self, Error> {
        let mut decoder = Decoder::default();
        match decoder.item(first)? {
            Some(StreamItem::Started(started)) => Ok(Self { inner: rest, decoder, started, is_taken: false }),
            _ => Err(Error::Incomplete("started")),
        }
    }

    /// What the daemon said when the stream began: the first item.
    pub fn started(&self) -> &api::StreamStarted {
        &self.started
    }

    /// The next item; `None` when the daemon ended the stream in order.
    ///
    /// A slow caller slows down no other client: when the windows of the connection are full, the
    /// daemon's queue for this client fills, and the overflow policy decides. A
    /// [`StreamItem::Loss`] reports the events that it drops.
    ///
    /// # Errors
    /// [`Error::Malformed`] if a message does not fit the API; the stream can be read on after
    /// that. [`Error::Disconnected`] and [`Error::Rpc`] end it.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<StreamItem>, Error> {
        if !std::mem::replace(&mut self.is_taken, true) {
            return Ok(Some(StreamItem::Started(self.started.clone())));
        }
        while let Some(response) = self.inner.message().await? {
            if let Some(item) = self.decoder.item(response)? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    /// Where to continue: after everything that was read so far. `None` before
    /// [`StreamItem::Epoch`].
    pub fn cursor(&self) -> Option<&Cursor> {
        self.decoder.cursor()
    }
}
