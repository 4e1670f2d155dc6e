//! The row form of the event stream.
//!
//! Owns the mapping of its errors. The columnar stream, which everything here prefers, is [`crate::event::EventStream`].

use tonic::Streaming;

use crate::api::StreamEventRowsResponse;
use crate::error::Error;

/// Events row by row, as the daemon formed them.
#[derive(Debug)]
pub struct EventRowStream {
    inner: Streaming<StreamEventRowsResponse>,
}

impl EventRowStream {
    pub(crate) fn new(inner: Streaming<StreamEventRowsResponse>) -> Self {
        Self { inner }
    }

    /// The next message; `None` when the daemon ended the stream.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<StreamEventRowsResponse>, Error> {
        Ok(self.inner.message().await?)
    }
}
