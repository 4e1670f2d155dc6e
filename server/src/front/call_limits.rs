//! Limits of calls, and the settings of HTTP/2 that follow from them.
//!
//! Owns the numbers, as far as they are not settings, and the places of streams. Never refuses a call.

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::TokioTimer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::codegen::http::HeaderMap;

use crate::config::Listen;
use kprobed_control::error::{Error, Reason};

/// Keep-alive finds peers that have vanished: a stream to such a peer would otherwise hold its
/// queue without end. The time for the answer is as gRPC has it: a daemon that was held up itself, as in a guest that
/// was paused, finds it over before it reads the answer.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// After so long a peer that does not answer is gone.
pub const VANISHED_AFTER: Duration = KEEP_ALIVE_INTERVAL.saturating_add(KEEP_ALIVE_TIMEOUT);

/// What a client may send before it is read, for one call and for all calls of a connection.
pub(super) const WINDOW_BYTES: u32 = 64 << 10;

/// What waits for the socket, for one call. An answer in one piece is not cut; it is charged to the
/// memory of calls.
pub(super) const SEND_BYTES: u32 = 128 << 10;

/// The headers of a call are refused with a status up to this many times their limit. Beyond it HTTP/2
/// refuses them, with 431 and without a reason.
pub(super) const HEADER_TIMES: u32 = 2;

/// Limits of calls.
#[derive(Clone, Debug)]
pub(super) struct CallLimits {
    /// The longest message of a request.
    pub(super) message_bytes: u64,
    /// The headers of a request, counted as HTTP/2 does.
    pub(super) header_bytes: u32,
    /// Calls under way of one connection.
    pub(super) calls: u32,
    /// How long a request may take to arrive.
    pub(super) request_time: Duration,
    /// How long a connection may take for the handshake of TLS, and then for its first bytes.
    pub(super) handshake_time: Duration,
    streams: Arc<Semaphore>,
    most_streams: u32,
}

impl CallLimits {
    pub(super) fn new(listen: &Listen) -> Self {
        Self {
            message_bytes: u64::from(listen.max_message_kib) << 10,
            header_bytes: listen.max_header_kib << 10,
            calls: listen.max_calls_per_connection,
            request_time: Duration::from_secs(listen.request_timeout_s.into()),
            handshake_time: Duration::from_secs(listen.handshake_timeout_s.into()),
            streams: Arc::new(Semaphore::new(usize::try_from(listen.max_streams).unwrap_or(usize::MAX))),
            most_streams: listen.max_streams,
        }
    }

    /// A place for a stream.
    pub(super) fn stream(&self) -> Result<OwnedSemaphorePermit, Error> {
        let place = Arc::clone(&self.streams).try_acquire_owned();
        place.map_err(|_none| {
            let most = self.most_streams;
            let message =
                format!("the daemon has {most} streams, and can have no more (`listen.max_streams`)");
            Error::new(Reason::TOO_MANY_STREAMS, message)
                .fix("end streams that are not needed, or raise `listen.max_streams`")
        })
    }

    /// The bytes of the headers of a call, if they are too many.
    pub(super) fn too_long(&self, headers: &HeaderMap) -> Option<u64> {
        // As HTTP/2 counts: 32 bytes for each in addition (RFC 9113, section 10.5.1).
        let of_one = |name: &str, value: &[u8]| name.len() + value.len() + 32;
        let bytes: usize = headers.iter().map(|(name, value)| of_one(name.as_str(), value.as_bytes())).sum();
        let bytes = bytes as u64;
        (bytes > u64::from(self.header_bytes)).then_some(bytes)
    }

    /// HTTP/2 as gRPC speaks it.
    pub(super) fn http2<E: Clone>(&self, executor: E) -> http2::Builder<E> {
        let mut builder = http2::Builder::new(executor);
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_concurrent_streams(self.calls)
            .max_header_list_size(self.header_bytes.saturating_mul(HEADER_TIMES))
            .max_send_buf_size(SEND_BYTES as usize);
        builder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_streams_are_counted() {
        let limits = CallLimits::new(&Listen { max_header_kib: 1, max_streams: 1, ..Listen::default() });
        let headers = |bytes: usize| {
            let mut headers = HeaderMap::new();
            headers.insert("x", "v".repeat(bytes).parse().unwrap());
            limits.too_long(&headers)
        };
        assert_eq!((headers(991), headers(992)), (None, Some(1025)));
        let place = limits.stream().unwrap();
        assert!(limits.stream().unwrap_err().to_string().contains("`listen.max_streams`"));
        drop(place);
        assert!(limits.stream().is_ok());
    }
}
