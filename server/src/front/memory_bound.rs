//! The bound of the memory that clients can make the daemon hold.
//!
//! Owns the formula, whose terms are settings. `deploy/docs/explain/security.md` explains it. Never measures memory.

use super::admission::{Limits, most_existing};
use super::call_limits::{HEADER_TIMES, SEND_BYTES, WINDOW_BYTES};
use super::call_memory::{ALL_ANSWERS, ANSWER_BYTES};
use crate::config::Listen;

/// Tasks and buffers of a connection, with those of TLS.
const CONNECTION_BYTES: u64 = 128 << 10;

/// The longest message of a stream that is on its way between a queue and the socket: of events, a batch of 256 KiB
/// and what the last page of it adds; of others, 256 KiB and what the last part adds.
const STREAM_MESSAGE_BYTES: u64 = 512 << 10;

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
    /// Answers that are being made.
    pub(super) answers: u64,
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
            answers: ALL_ANSWERS as u64 * ANSWER_BYTES,
            queues: listen.queue_memory_mib << 20,
        }
    }

    /// All together.
    pub(super) const fn bytes(&self) -> u64 {
        let Self { connection, connections, stream, streams, calls, answers, queues } = *self;
        connections
            .saturating_mul(connection)
            .saturating_add(streams.saturating_mul(stream))
            .saturating_add(calls)
            .saturating_add(answers)
            .saturating_add(queues)
    }
}

/// The bytes that clients can make a daemon with these settings hold, with as many connections as this
/// process has descriptors for.
pub fn memory_bound(listen: &Listen) -> u64 {
    MemoryBound::new(listen, Limits::new(listen)).bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprobed_control::Holds;

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
        // 128 KiB, a window of 64 KiB, and 10 calls with 16 KiB of headers.
        assert_eq!((bound.connection, bound.connections), ((128 + 64 + 10 * 16) << 10, 133));
        assert_eq!((bound.stream, bound.streams), ((1024 + 128) << 10, 16));
        let expected = 133 * (352 << 10) + 16 * (1152 << 10) + (96 << 20) + (64 << 20);
        assert_eq!(bound.bytes(), expected);
    }

    /// What the daemon takes without clients: programs, facts of the kernel, caches of SQLite, the history's queue.
    const BASE_BYTES: u64 = 384 << 20;

    /// A client's load is refused by the bound, and never ends the streams of others by the limit of the unit.
    #[test]
    fn the_unit_the_page_and_the_example_have_the_same_bound() {
        let listen = Listen::default();
        let (total, per_peer) = (listen.max_connections, listen.max_connections_per_peer);
        let limits = Limits { total: total.try_into().unwrap(), per_peer: per_peer.try_into().unwrap() };
        let bound = MemoryBound::new(&listen, limits);
        assert!(bound.bytes() <= 512 << 20, "{} MiB do not fit a small host", bound.bytes() >> 20);

        // Each hold is a call: a connection can have as many as it may, and others beside them.
        assert!(listen.max_calls_per_connection as usize > Holds::MOST_OF_CONNECTION);

        let unit = include_str!("../../../deploy/systemd/kprobed.service");
        let most = unit.lines().find_map(|line| line.strip_prefix("MemoryMax=")?.strip_suffix('M')).unwrap();
        assert!(bound.bytes() + BASE_BYTES <= most.parse::<u64>().unwrap() << 20, "{most} MiB are too few");

        let page = include_str!("../../../deploy/docs/explain/security.md");
        let text = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let calls = u64::from(listen.max_calls_per_connection);
        let fixed =
            bound.connection - calls * ((u64::from(HEADER_TIMES) * u64::from(listen.max_header_kib)) << 10);
        for term in [
            format!(
                "connections x ({} KiB + max_calls_per_connection x {HEADER_TIMES} x max_header_kib)",
                fixed >> 10
            ),
            format!("max_streams x {} KiB", bound.stream >> 10),
            format!("call_memory_mib + queue_memory_mib + {} MiB", bound.answers >> 20),
            format!("With the defaults it is {} MiB", bound.bytes() >> 20),
            format!("MemoryMax={most}M"),
        ] {
            assert!(text.contains(&term), "explain/security.md does not say: {term}");
        }

        let example: toml::Table = include_str!("../../../deploy/kprobed.example.toml").parse().unwrap();
        let number = |name: &str| u64::try_from(example["listen"][name].as_integer().unwrap()).unwrap();
        for (name, default) in [
            ("max_connections", listen.max_connections),
            ("max_connections_per_peer", listen.max_connections_per_peer),
            ("max_calls_per_connection", listen.max_calls_per_connection.into()),
            ("max_streams", listen.max_streams.into()),
            ("max_header_kib", listen.max_header_kib.into()),
            ("call_memory_mib", listen.call_memory_mib),
            ("queue_memory_mib", listen.queue_memory_mib),
        ] {
            assert_eq!(number(name), default, "{name}");
        }
    }
}
