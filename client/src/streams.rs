//! The row form of the event stream.
//!
//! Owns the mapping of its errors, and where it is. The columnar stream, which everything here prefers, is
//! [`crate::event::EventStream`].

use tonic::Streaming;

use crate::api::StreamEventRowsResponse;
use crate::error::Error;
use crate::event::Cursor;

/// Events row by row, as the daemon formed them.
#[derive(Debug)]
pub struct EventRowStream {
    inner: Streaming<StreamEventRowsResponse>,
    cursor: Option<Cursor>,
}

impl EventRowStream {
    pub(crate) fn new(inner: Streaming<StreamEventRowsResponse>) -> Self {
        Self { inner, cursor: None }
    }

    /// The next message; `None` when the daemon ended the stream.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<StreamEventRowsResponse>, Error> {
        let response = self.inner.message().await?;
        if let Some(cursor) = response.as_ref().and_then(|response| response.cursor.as_ref()) {
            self.cursor = Some(cursor.clone().into());
        }
        Ok(response)
    }

    /// Where to go on: behind everything that was read so far. `None` before the first message.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }
}
