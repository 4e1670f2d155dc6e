//! The trait `Sink`: the receiver of an exporter, with its answers and errors.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::Chunk;
use kprobed_trace::feed::FeedError;
use kprobed_trace::spool::Cursor;

/// Why the receiver did not acknowledge something. It is tried again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SinkError {
    message: String,
    /// Shortest wait before the next attempt, as the receiver asked.
    pub(super) wait: Option<Duration>,
}

impl SinkError {
    /// What was tried, and what came of it.
    pub fn new(action: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self { message: format!("{action}: {why}"), wait: None }
    }
}

impl From<FeedError> for SinkError {
    fn from(error: FeedError) -> Self {
        Self::new("read the history", error)
    }
}

/// An error and its causes, each once: libraries mostly name the cause themselves.
pub(super) fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(error) = inner {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        inner = error.source();
    }
    text
}

/// The receiver's answer to a chunk: all events of it but these are acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Events that it refused finally, or that cannot be sent to it.
    pub dropped: u64,
    /// Spans that it refused finally, and calls of which no span could be made.
    pub dropped_spans: u64,
    /// Why. Empty if it refused none.
    pub reason: String,
}

/// The receiver of an exporter.
pub trait Sink: Send + 'static {
    /// Makes it ready. It is called before the first chunk, and again after each failure. Answers
    /// the receiver's own position.
    fn open(&mut self) -> impl Future<Output = Result<Option<Cursor>, SinkError>> + Send;

    /// Sends a chunk. When this returns, the receiver has it.
    ///
    /// Whatever it may have taken of a chunk that failed is sent again, except for what it has acknowledged: a side
    /// that can tell repeats apart, or take them back, does so.
    fn send(&mut self, chunk: &Chunk) -> impl Future<Output = Result<Sent, SinkError>> + Send;

    /// Makes what was sent as durable as the receiver can. Called before the place of the
    /// exporter is written down.
    fn settle(&mut self) -> impl Future<Output = Result<(), SinkError>> + Send {
        async { Ok(()) }
    }
}
