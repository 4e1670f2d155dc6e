//! Event streams of a daemon.
//!
//! Owns the request ([`StreamRequest`]), the stream of one connection ([`EventStream`]), and the
//! one that reconnects ([`ResumingStream`]). Events and how to read them are the crate
//! `kprobed-event`, which is re-exported here.

mod filter;
mod request;
mod stream;

pub use filter::{BoundEventFilter, EventFilter, EventFilterError};
pub use kprobed_event::*;
pub use request::StreamRequest;
pub use stream::{Backoff, EventStream, Interruption, ResumingItem, ResumingStream};
