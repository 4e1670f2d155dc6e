//! One HTTP/2 connection: keep-alive, idle timeout, GOAWAY, and its end.

use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use hyper::server::conn::http2;
use hyper_util::rt::TokioIo;
use kprobed_rights::Roles;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, Chain, Join, ReadHalf, WriteHalf};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::accept::Warnings;
use super::admission::Admitted;
use super::call::Calls;
use super::call_limits::CallLimits;
use super::call_memory::CallMemory;
use super::lane::Lane;
use super::malloc_trim::Trimmer;
use super::resets::{self, Resets};
use crate::auth::Who;
use crate::rpc::ConnectionId;
use crate::shutdown::Tasks;
use kprobed_control::auth::Rights;

/// Connections so far.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// How long a peer that was asked to leave may take.
const CLOSING: Duration = Duration::from_secs(2);

/// How long a connection stays that has broken the rules of HTTP/2, and the next ones of its peer wait. A client that
/// does nothing else takes less time from others.
const HELD_FOR: Duration = Duration::from_millis(20);

/// How a connection begins (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose preface has come, and is read again by HTTP/2.
type Greeted<I> = Join<Chain<&'static [u8], ReadHalf<I>>, WriteHalf<I>>;

/// HTTP/2 on a socket.
type Http2<I> = http2::Connection<TokioIo<Greeted<I>>, Calls, Lane>;

/// A connection that is served.
struct Served<I> {
    connection: Pin<Box<Http2<I>>>,
    admitted: Arc<Admitted>,
    lane: Lane,
    serving: Arc<Serving>,
    resets: Arc<Resets>,
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
        let left = who.not_after.map(|end| end.duration_since(SystemTime::now()).unwrap_or_default());
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
                        && !self.roles.grant_as(&now, principal)
                    {
                        return "its principal has other roles now";
                    }
                    self.roles = now;
                }
            }
        }
    }
}

/// What all connections are served with.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) routes: Routes,
    /// Where streams run.
    pub(super) streams: Handle,
    pub(super) tasks: Tasks,
    pub(super) idle_timeout: Duration,
    pub(super) trimmer: Arc<Trimmer>,
    pub(super) rights: Arc<Rights>,
    pub(super) call_limits: CallLimits,
    pub(super) call_memory: Arc<CallMemory>,
    pub(super) warnings: Warnings,
}

/// Whether a client has, as far as HTTP/2 is concerned. One that just vanishes has not.
fn has_broken_rules(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(h2::Error::is_library)
}

/// Keeps a connection that has broken the rules, unless its place is needed.
async fn hold(admitted: &Admitted, stopping: &CancellationToken) {
    let until = Instant::now() + HELD_FOR;
    admitted.broke_rules(until);
    wait(until, admitted, stopping).await;
}

async fn wait(until: Instant, admitted: &Admitted, stopping: &CancellationToken) {
    tokio::select! {
        () = sleep_until(until) => {}
        () = admitted.closing.cancelled() => {}
        () = stopping.cancelled() => {}
    }
}

/// Waits for the preface, before anything is made for the connection: a client that sends nothing takes a descriptor
/// and a place, and no more. After it, keep-alive finds one that does not answer.
///
/// # Errors
/// Those of the socket, and [`io::ErrorKind::InvalidData`] as soon as a byte is another one.
async fn preface<I>(mut io: I) -> io::Result<Greeted<I>>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let (mut bytes, mut come) = ([0; PREFACE.len()], 0);
    while come < bytes.len() {
        match io.read(&mut bytes[come..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => come += more,
        }
        if !PREFACE.starts_with(&bytes[..come]) {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    let (reader, writer) = tokio::io::split(io);
    Ok(tokio::io::join(PREFACE.as_slice().chain(reader), writer))
}

/// Waits for the first bytes of a connection. Absent if they do not come, or its place is needed for another one.
async fn greeted<I>(io: I, admitted: &Admitted, serving: &Serving) -> Option<Greeted<I>>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    if let Some(until) = admitted.held_until() {
        wait(until, admitted, serving.tasks.stopping()).await;
    }
    let within = serving.call_limits.handshake_time.min(serving.idle_timeout);
    tokio::select! {
        // What has come is served.
        biased;
        read = tokio::time::timeout(within, preface(io)) => match read {
            Ok(Ok(greeted)) => return Some(greeted),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a connection did not begin as HTTP/2 does");
                if error.kind() == io::ErrorKind::InvalidData {
                    hold(admitted, serving.tasks.stopping()).await;
                }
            }
            Err(_elapsed) => tracing::debug!("closed a connection that did not begin in time"),
        },
        () = admitted.closing.cancelled() => {}
        () = serving.tasks.stopping().cancelled() => {}
    }
    None
}

/// Serves a connection to its end, on its lane.
pub(super) async fn serve<I>(io: I, who: Who, admitted: Admitted, lane: Lane, serving: Arc<Serving>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(io) = greeted(io, &admitted, &serving).await else { return };
    let admitted = Arc::new(admitted);
    let connection = ConnectionId(CONNECTIONS.fetch_add(1, Ordering::Relaxed) + 1);
    let rights = Standing::new(who, &serving.rights);
    let http2 = serving.call_limits.http2(lane.clone());
    let resets = Arc::<Resets>::default();
    let calls = Calls {
        serving: Arc::clone(&serving),
        admitted: Arc::clone(&admitted),
        lane: lane.clone(),
        connection,
        who: Arc::clone(&rights.who),
        resets: Arc::clone(&resets),
        place: Arc::default(),
    };
    let served = Served {
        connection: Box::pin(http2.serve_connection(TokioIo::new(io), calls)),
        admitted,
        lane: lane.clone(),
        serving: Arc::clone(&serving),
        resets,
        leaves_by: None,
        is_stopping: false,
        rights,
    };
    let trimmer = Arc::clone(&serving.trimmer);
    match served.run(true).await {
        None => trimmer.closed(1),
        Some(served) => serving.tasks.spawn_on(lane.streams(), "streams", async move {
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
                self.admitted.idle_since().unwrap_or_else(Instant::now) + self.serving.idle_timeout
            });
            tokio::select! {
                outcome = self.connection.as_mut() => {
                    if let Err(error) = outcome {
                        tracing::debug!(%error, "a connection ended");
                        if has_broken_rules(&error) {
                            hold(&self.admitted, self.serving.tasks.stopping()).await;
                        }
                    }
                    return None;
                }
                why = self.rights.over() => {
                    let principal = self.rights.who.found().map(ToString::to_string);
                    tracing::info!(principal, "closed a connection: {why}");
                    return None;
                }
                () = self.resets.flooded().cancelled() => {
                    let peer = self.admitted.peer;
                    self.serving.warnings.flooded.log(|times| {
                        let most = resets::MOST;
                        tracing::warn!(%peer, most, times, "closed connections that took too many calls back");
                    });
                    return None;
                }
                () = self.lane.changed(), if may_move => return Some(self),
                () = self.serving.tasks.stopping().cancelled(), if !self.is_stopping => {
                    self.is_stopping = true;
                    self.connection.as_mut().graceful_shutdown();
                }
                () = self.admitted.closing.cancelled(), if self.leaves_by.is_none() => self.ask_to_leave(),
                // A call that has come in meanwhile is finished, and then it ends.
                () = self.admitted.cut.cancelled(), if self.admitted.idle_since().is_some() => return None,
                () = sleep_until(look_at) => {
                    let idle_since = self.admitted.idle_since();
                    if self.leaves_by.is_some() {
                        if idle_since.is_some() {
                            return None;
                        }
                        // A call slipped in, and is finished.
                        self.leaves_by = Some(Instant::now() + CLOSING);
                    } else if idle_since.is_some_and(|since| since.elapsed() >= self.serving.idle_timeout) {
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn the_preface_is_read_again() {
        let (mut client, server) = tokio::io::duplex(7);
        let send = async move {
            client.write_all(PREFACE).await.unwrap();
            client.write_all(b"and more").await.unwrap();
        };
        let read = async {
            let mut bytes = Vec::new();
            preface(server).await.unwrap().read_to_end(&mut bytes).await.unwrap();
            bytes
        };
        let ((), bytes) = tokio::join!(send, read);
        assert_eq!(bytes, [PREFACE, b"and more".as_slice()].concat());
    }

    #[tokio::test]
    async fn anything_else_is_refused_at_once() {
        for wrong in [b"GET / HTTP/1.1\r\n".as_slice(), b"PRI * HTTP/2.1"] {
            // The other end stays open.
            let (mut client, server) = tokio::io::duplex(64);
            client.write_all(wrong).await.unwrap();
            let error = preface(server).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(&PREFACE[..20]).await.unwrap();
        drop(client);
        let error = preface(server).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
