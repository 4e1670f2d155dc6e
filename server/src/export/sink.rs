//! The other side of an exporter, as the exporter sees it.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::Chunk;
use kprobed_trace::spool::Cursor;

/// Why the other side did not take something. It is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkError {
    message: String,
    /// How long the other side wants to be left alone, at least.
    wait: Option<Duration>,
}

impl SinkError {
    /// What was tried, and what came of it.
    pub fn new(action: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self { message: format!("{action}: {why}"), wait: None }
    }

    /// The other side said how long it wants to be left alone.
    #[must_use]
    pub fn not_before(self, wait: Option<Duration>) -> Self {
        Self { wait, ..self }
    }

    /// How long to wait at least before it is tried again.
    pub const fn wait(&self) -> Option<Duration> {
        self.wait
    }
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SinkError {}

/// What the other side has taken of a chunk: all of it but these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Events that it refused for good, or that cannot be sent to it.
    pub dropped: u64,
    /// Why. Empty if it refused none.
    pub reason: String,
}

/// The other side.
pub trait Sink: Send + 'static {
    /// Makes it ready. It is called before the first chunk, and again after each failure. Answers where the other side itself knows that it is.
    fn open(&mut self) -> impl Future<Output = Result<Option<Cursor>, SinkError>> + Send;

    /// Sends a chunk. When this returns, the other side has it.
    ///
    /// Whatever it may have taken of a chunk that failed is sent again: a side that can tell repeats apart, or take them back, does so.
    fn send(&mut self, chunk: &Chunk) -> impl Future<Output = Result<Sent, SinkError>> + Send;

    /// Makes what was sent as durable as the other side can. Called before the place of the exporter is written down.
    fn settle(&mut self) -> impl Future<Output = Result<(), SinkError>> + Send {
        async { Ok(()) }
    }
}
