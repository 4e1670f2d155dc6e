//! Events from a daemon.
//!
//! What an event is, and how one is read, is the crate `kprobed-event`, all of which is here too. This module owns the way to it: what a
//! stream is asked for ([`StreamRequest`]), one connection ([`EventStream`]), and as many as it takes ([`ResumingStream`]).

mod request;
mod resume;
mod stream;

pub use kprobed_event::*;
pub use request::StreamRequest;
pub use resume::{Backoff, Interruption, ResumingItem, ResumingStream};
pub use stream::EventStream;
