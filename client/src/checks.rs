//! Stream of verdicts on the definitions of a text.
//!
//! It sends the text in chunks; the daemon divides it into definitions.

use std::collections::VecDeque;

use tonic::Streaming;

use crate::api::{CheckProbesResponse, CheckedDefinition};
use crate::error::Error;

/// Verdicts in the order of the text.
#[derive(Debug)]
pub struct CheckStream {
    inner: Streaming<CheckProbesResponse>,
    ready: VecDeque<CheckedDefinition>,
}

impl CheckStream {
    pub(crate) fn new(inner: Streaming<CheckProbesResponse>) -> Self {
        Self { inner, ready: VecDeque::new() }
    }

    /// The next verdict; `None` when the text has ended and all of it was judged.
    ///
    /// # Errors
    /// When the daemon cannot judge any more, or is gone. All verdicts that were given before it
    /// stay good.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<CheckedDefinition>, Error> {
        while self.ready.is_empty() {
            let Some(response) = self.inner.message().await? else { return Ok(None) };
            self.ready = response.checked.into();
        }
        Ok(self.ready.pop_front())
    }

    /// Verdicts that have arrived: while there are any, [`CheckStream::next`] returns without
    /// waiting.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }
}
