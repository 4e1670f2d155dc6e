//! Event streams of one connection, in the columnar and the row form of the API.
//!
//! The columnar form costs less, and is what everything else here uses.

use kprobed_event::{Cursor, Decoder, Started, StreamItem};
use tonic::Streaming;

use crate::api;
use crate::error::Error;

/// Columnar event stream that has begun: the daemon has subscribed this client.
#[derive(Debug)]
pub struct EventStream {
    inner: Streaming<api::StreamEventsResponse>,
    decoder: Decoder,
    subscriber_id: u64,
    /// The first item, until the caller takes it.
    started: Option<Started>,
}

impl EventStream {
    pub(crate) fn new(
        first: api::StreamEventsResponse,
        rest: Streaming<api::StreamEventsResponse>,
    ) -> Result<Self, Error> {
        let mut decoder = Decoder::default();
        match decoder.item(first)? {
            Some(StreamItem::Started(started)) => {
                let subscriber_id = started.subscriber_id;
                Ok(Self { inner: rest, decoder, subscriber_id, started: Some(started) })
            }
            _ => Err(Error::Incomplete("started")),
        }
    }

    /// Identifies this subscriber in the ledger.
    pub fn subscriber_id(&self) -> u64 {
        self.subscriber_id
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
        if let Some(started) = self.started.take() {
            return Ok(Some(StreamItem::Started(started)));
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

/// Row-form event stream.
#[derive(Debug)]
pub struct EventRowStream {
    inner: Streaming<api::StreamEventRowsResponse>,
    cursor: Option<Cursor>,
}

impl EventRowStream {
    pub(crate) fn new(inner: Streaming<api::StreamEventRowsResponse>) -> Self {
        Self { inner, cursor: None }
    }

    /// The next message; `None` when the daemon ended the stream.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<api::StreamEventRowsResponse>, Error> {
        let response = self.inner.message().await?;
        if let Some(cursor) = response.as_ref().and_then(|response| response.cursor.as_ref()) {
            self.cursor = Some(cursor.clone().into());
        }
        Ok(response)
    }

    /// Where to continue: after everything that was read so far. `None` before the first message.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }
}
