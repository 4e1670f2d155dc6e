//! Verdicts on many definitions.
//!
//! Owns the mapping of messages to verdicts, one after the other. What is asked is a text in pieces: the daemon cuts it.

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
    /// When the daemon cannot judge any more, or is gone. All verdicts that were given before it stay good.
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

    /// Verdicts that are here already: while there are any, [`CheckStream::next`] answers without waiting.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }
}
