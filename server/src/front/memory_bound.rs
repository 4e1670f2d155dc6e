//! The bound of the memory that clients can make the daemon hold.
//!
//! Owns the formula, whose terms are settings. `deploy/SECURITY.md` explains it. Never measures memory.

use super::admission::{Limits, most_existing};
use super::call_limits::{HEADER_TIMES, SEND_BYTES, WINDOW_BYTES};
use super::descriptors;
use crate::config::Listen;

/// Tasks and buffers of a connection, with those of TLS.
const CONNECTION_BYTES: u64 = 128 << 10;

/// The longest message that is on its way between a queue and the socket.
const STREAM_MESSAGE_BYTES: u64 = 1 << 20;

/// The terms of the bound, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryBound {
    /// What one connection can take, beside its messages and queues.
    pub(super) connection: u64,
    /// Connections that exist at a time, with those that close.
    pub(super) connections: u64,
    /// What one stream can take, beside its queue.
    pub(super) stream: u64,
    /// Streams at a time.
    pub(super) streams: u64,
    /// Messages that are received, and answers that are not read.
    pub(super) calls: u64,
    /// Events that wait for clients.
    pub(super) queues: u64,
}

impl MemoryBound {
    pub(super) fn new(listen: &Listen, limits: Limits) -> Self {
        let header = u64::from(listen.max_header_kib) << 10;
        let calls = u64::from(listen.max_calls_per_connection);
        Self {
            connection: CONNECTION_BYTES + u64::from(WINDOW_BYTES) + calls * header * u64::from(HEADER_TIMES),
            connections: most_existing(limits.total) as u64,
            // One message is in the queue's place, and one goes into the socket.
            stream: 2 * STREAM_MESSAGE_BYTES + u64::from(SEND_BYTES),
            streams: listen.max_streams.into(),
            calls: listen.call_memory_mib << 20,
            queues: listen.queue_memory_mib << 20,
        }
    }

    /// All together.
    pub(super) const fn bytes(&self) -> u64 {
        let Self { connection, connections, stream, streams, calls, queues } = *self;
        connections
            .saturating_mul(connection)
            .saturating_add(streams.saturating_mul(stream))
            .saturating_add(calls)
            .saturating_add(queues)
    }
}

/// The bytes that clients can make a daemon with these settings hold, with as many connections as this
/// process has descriptors for.
pub fn memory_bound(listen: &Listen) -> u64 {
    MemoryBound::new(listen, Limits::new(listen, descriptors::limit())).bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_follows_the_settings() {
        let listen = Listen {
            max_calls_per_connection: 10,
            max_header_kib: 8,
            max_streams: 16,
            call_memory_mib: 32,
            queue_memory_mib: 64,
            ..Listen::default()
        };
        let bound = MemoryBound::new(&listen, Limits { total: 100, per_peer: 50 });
        // 128 KiB, a window of 1 MiB, and 10 calls with 16 KiB of headers.
        assert_eq!((bound.connection, bound.connections), ((128 + 1024 + 10 * 16) << 10, 133));
        assert_eq!((bound.stream, bound.streams), ((2048 + 128) << 10, 16));
        let expected = 133 * (1312 << 10) + 16 * (2176 << 10) + (96 << 20);
        assert_eq!(bound.bytes(), expected);
    }
}
