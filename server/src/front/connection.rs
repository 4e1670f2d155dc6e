//! One HTTP/2 connection: keep-alive, idle timeout, GOAWAY, and its end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use kprobed_rights::Roles;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::admission::Admitted;
use super::call::{Calls, Services};
use super::lane::Lane;
use super::malloc_trim::Trimmer;
use crate::auth::{Rights, Who};
use crate::rpc::ConnectionId;
use crate::shutdown::Tasks;

/// Keep-alive finds peers that have vanished: a stream to such a peer would otherwise hold its
/// queue without end.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// After so long a peer that does not answer is gone.
pub const VANISHED_AFTER: Duration = KEEP_ALIVE_INTERVAL.saturating_add(KEEP_ALIVE_TIMEOUT);

/// Connections so far.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// What a client may send before it is read.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// How long a peer that was asked to leave may take.
const CLOSING: Duration = Duration::from_secs(2);

/// HTTP/2 as gRPC speaks it.
pub(super) fn http2<E: Clone>(executor: E) -> http2::Builder<E> {
    let mut builder = http2::Builder::new(executor);
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    builder
}

/// A connection that is served.
struct Served<I> {
    connection: Pin<Box<http2::Connection<TokioIo<I>, Calls, Lane>>>,
    admitted: Arc<Admitted>,
    lane: Lane,
    stopping: CancellationToken,
    idle_timeout: Duration,
    /// It was asked to leave, and is cut then unless it has calls.
    leaves_by: Option<Instant>,
    /// The daemon stops: its shutdown closes what is left.
    is_stopping: bool,
    rights: Standing,
}

/// What the calls of a connection are allowed by, and until when.
struct Standing {
    who: Arc<Who>,
    /// The roles when the connection began, or were looked at last.
    roles: Arc<Roles>,
    changes: watch::Receiver<Arc<Roles>>,
    /// When the certificate ends.
    ends: Option<Instant>,
}

impl Standing {
    fn new(who: Who, rights: &Rights) -> Self {
        let mut changes = rights.follow();
        let roles = Arc::clone(&changes.borrow_and_update());
        let left = who.not_after().map(|end| end.duration_since(SystemTime::now()).unwrap_or_default());
        let ends = left.and_then(|left| Instant::now().checked_add(left));
        Self { who: Arc::new(who), roles, changes, ends }
    }

    /// Waits until the connection must end: its certificate has ended, or the principal has other
    /// roles than before. Its streams began by the old ones. A client connects again by itself.
    async fn over(&mut self) -> &'static str {
        loop {
            let ends = async {
                match self.ends {
                    Some(end) => sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ends => return "its certificate has ended",
                Ok(()) = self.changes.changed() => {
                    let now = Arc::clone(&self.changes.borrow_and_update());
                    // Without a principal there was no call.
                    if let Some(principal) = self.who.found()
                        && !self.roles.of(principal).eq(now.of(principal))
                    {
                        return "its principal has other roles now";
                    }
                    self.roles = now;
                }
            }
        }
    }
}

/// What connections are served with.
pub(super) struct Serving {
    pub(super) services: Services,
    pub(super) lane: Lane,
    pub(super) tasks: Tasks,
    pub(super) idle_timeout: Duration,
    pub(super) trimmer: Arc<Trimmer>,
    pub(super) rights: Arc<Rights>,
}

/// Serves a connection to its end, on its lane.
pub(super) async fn serve<I>(io: I, who: Who, admitted: Admitted, serving: Serving)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Serving { services, lane, tasks, idle_timeout, trimmer, rights } = serving;
    let admitted = Arc::new(admitted);
    let connection = ConnectionId(CONNECTIONS.fetch_add(1, Ordering::Relaxed) + 1);
    let standing = Standing::new(who, &rights);
    let who = Arc::clone(&standing.who);
    let calls =
        Calls { services, admitted: Arc::clone(&admitted), lane: lane.clone(), connection, who, rights };
    let served = Served {
        connection: Box::pin(http2(lane.clone()).serve_connection(TokioIo::new(io), calls)),
        admitted,
        lane: lane.clone(),
        stopping: tasks.stopping().clone(),
        idle_timeout,
        leaves_by: None,
        is_stopping: false,
        rights: standing,
    };
    match served.run(true).await {
        None => trimmer.closed(1),
        Some(served) => tasks.spawn_on(lane.streams(), "streams", async move {
            served.lane.moved();
            served.run(false).await;
            trimmer.closed(Trimmer::STREAM);
        }),
    }
}

impl<I> Served<I>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// Until it ends, or has to go on elsewhere.
    async fn run(mut self, may_move: bool) -> Option<Self> {
        loop {
            let look_at = self.leaves_by.unwrap_or_else(|| {
                self.admitted.idle_since().unwrap_or_else(Instant::now) + self.idle_timeout
            });
            tokio::select! {
                outcome = self.connection.as_mut() => {
                    if let Err(error) = outcome {
                        tracing::debug!(%error, "a connection ended");
                    }
                    return None;
                }
                why = self.rights.over() => {
                    let principal = self.rights.who.found().map(ToString::to_string);
                    tracing::info!(principal, "closed a connection: {why}");
                    return None;
                }
                () = self.lane.changed(), if may_move => return Some(self),
                () = self.stopping.cancelled(), if !self.is_stopping => {
                    self.is_stopping = true;
                    self.connection.as_mut().graceful_shutdown();
                }
                () = self.admitted.closing().cancelled(), if self.leaves_by.is_none() => self.ask_to_leave(),
                // A call that has come in meanwhile is finished, and then it ends.
                () = self.admitted.cut().cancelled(), if self.admitted.idle_since().is_some() => return None,
                () = sleep_until(look_at) => {
                    let idle_since = self.admitted.idle_since();
                    if self.leaves_by.is_some() {
                        if idle_since.is_some() {
                            return None;
                        }
                        // A call slipped in, and is finished.
                        self.leaves_by = Some(Instant::now() + CLOSING);
                    } else if idle_since.is_some_and(|since| since.elapsed() >= self.idle_timeout) {
                        tracing::debug!("closing an idle connection");
                        self.ask_to_leave();
                    }
                }
            }
        }
    }

    /// GOAWAY: what is under way is finished, and the client makes a new connection for what comes
    /// next.
    fn ask_to_leave(&mut self) {
        self.connection.as_mut().graceful_shutdown();
        self.leaves_by = Some(Instant::now() + CLOSING);
    }
}
