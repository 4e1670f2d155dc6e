//! Accepting connections: handshakes, refusals, and failures of `accept`.
//!
//! Never ends before the daemon stops, whatever `accept` returns.

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kprobed_rights::Principal;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Request;

use super::admission::{Admission, Peer};
use super::call_limits::CallLimits;
use super::connection::{self, Serving};
use super::lane::Lane;
use super::socket::Following;
use crate::auth::{self, LiveTls, Who};
use crate::turns::Turns;
use kprobed_control::error::Error;

/// How long a client may take to notice that its certificate is refused.
const LINGER: Duration = Duration::from_secs(2);

/// Pause after a failure that would come again at once.
const BACKOFF: Duration = Duration::from_millis(100);

/// Clients that can be refused with a status at the same time.
pub(super) const REFUSALS: usize = 32;

/// How long a client may take for its call and the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time between two lines of a kind.
const EVERY: Duration = Duration::from_secs(10);

/// One kind of line.
#[derive(Debug, Default)]
pub(super) struct RateLimitedLog(Mutex<Option<(Instant, u64)>>);

impl RateLimitedLog {
    /// Calls `log` with the number of times since it was last called, unless that was a moment ago.
    pub(super) fn log(&self, log: impl FnOnce(u64)) {
        self.log_at(Instant::now(), log);
    }

    fn log_at(&self, now: Instant, log: impl FnOnce(u64)) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = match &mut *state {
            Some((last, untold)) if now.duration_since(*last) < EVERY => {
                *untold += 1;
                return;
            }
            Some((_, untold)) => *untold + 1,
            None => 1,
        };
        *state = Some((now, 0));
        drop(state);
        log(times);
    }
}

/// What is logged about clients.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    refused: RateLimitedLog,
    evicted: RateLimitedLog,
    failed: RateLimitedLog,
    /// Floods of resets.
    pub(super) flooded: RateLimitedLog,
}

/// Accepts connections.
#[derive(Debug)]
pub(super) struct Acceptor {
    pub(super) admission: Arc<Admission>,
    pub(super) serving: Arc<Serving>,
    /// Places of clients that are refused with a status.
    pub(super) refusals: Arc<Semaphore>,
    /// Usually `/proc`.
    pub(super) procfs: PathBuf,
}

/// The handshake of TLS, and whose certificate the client has.
async fn secured(
    socket: TcpStream,
    acceptor: TlsAcceptor,
    within: Duration,
    lane: Lane,
) -> io::Result<(TlsStream<Following<TcpStream>>, Who)> {
    let socket = Following::new(socket, lane);
    match tokio::time::timeout(within, acceptor.accept(socket).into_fallible()).await? {
        Ok(stream) => {
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            // The verifier takes no handshake without one.
            let certificate = chain.first().ok_or(io::ErrorKind::InvalidData)?;
            let who = Who::certificate(certificate);
            Ok((stream, who))
        }
        Err((error, socket)) => {
            tokio::time::timeout(LINGER, until_read(socket)).await.ok();
            Err(error)
        }
    }
}

/// Ends a connection after a failed handshake. A client of TLS 1.3 sends its request along with its
/// certificate. If that is still unread when the socket closes, the kernel sends a reset, and the
/// alert that says why is lost on the way.
async fn until_read(mut socket: Following<TcpStream>) {
    socket.shutdown().await.ok();
    let mut unread = [0; 4096];
    while let Ok(1..) = socket.read(&mut unread).await {}
}

/// Answers whatever the client asks first with the reason of a refusal: a connection that is only closed looks like a
/// daemon that does not run.
async fn tell<I>(io: I, refusal: Error, limits: &CallLimits, place: OwnedSemaphorePermit)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |_request: Request<Incoming>| {
        ready(Ok::<_, Infallible>(Status::from(refusal.clone()).into_http::<Body>()))
    });
    let connection = limits.http2(TokioExecutor::new()).serve_connection(TokioIo::new(io), service);
    if tokio::time::timeout(PATIENCE, connection).await.is_err() {
        tracing::debug!("a refused client did not leave");
    }
    drop(place);
}

impl Acceptor {
    pub(super) async fn run_unix(&self, listener: UnixListener) {
        while let Some(accepted) = self.next(listener.accept()).await {
            let Some((socket, _)) = self.look_at(accepted).await else { continue };
            // The kernel knows it from the moment of `connect`.
            let Ok(found) = socket.peer_cred() else { continue };
            let procfs = self.procfs.clone();
            let local = move |lane: Lane| async move {
                let groups = auth::peer_groups(socket.as_fd())?;
                let peer = auth::Peer { uid: found.uid(), gid: found.gid(), groups, pid: found.pid() };
                Ok::<_, io::Error>((Following::new(socket, lane), Who::process(peer, procfs)))
            };
            self.take(Peer::User(found.uid()), local).await;
        }
    }

    pub(super) async fn run_tcp(&self, listener: TcpListener, tls: Option<Arc<LiveTls>>) {
        while let Some(accepted) = self.next(listener.accept()).await {
            let Some((socket, address)) = self.look_at(accepted).await else { continue };
            let peer = Peer::Address(address.ip().to_canonical());
            // Answers are small, and should not wait for one another.
            if let Err(error) = socket.set_nodelay(true) {
                tracing::debug!(%error, "cannot set TCP_NODELAY");
            }
            if let Some(tls) = &tls {
                let (acceptor, within) = (tls.acceptor(), self.serving.call_limits.handshake_time);
                self.take(peer, move |lane| secured(socket, acceptor, within, lane)).await;
            } else {
                let loopback = move |lane: Lane| {
                    ready(Ok((Following::new(socket, lane), Who::known(Principal::Loopback))))
                };
                self.take(peer, loopback).await;
            }
        }
    }

    /// The next connection, or why there is none. `None` when the daemon stops.
    async fn next<T>(&self, accept: impl Future<Output = io::Result<T>>) -> Option<io::Result<T>> {
        // Those that are served have their turn between two new ones, however many wait at the door.
        tokio::task::yield_now().await;
        tokio::select! {
            biased;
            () = self.serving.tasks.stopping().cancelled() => None,
            accepted = accept => Some(accepted),
        }
    }

    /// Skips connections that cannot be served, and waits if accepting would fail again at once.
    async fn look_at<S: AsFd, A>(&self, accepted: io::Result<(S, A)>) -> Option<(S, A)> {
        match accepted {
            Ok((socket, _)) if has_left(&socket) => {
                // It waited here until it gave up. Its request must not be carried out without it.
                tracing::debug!("a client left before it was served");
                None
            }
            Ok(accepted) => Some(accepted),
            Err(error) if is_of_one_connection(&error) => None,
            Err(error) => {
                self.serving.warnings.failed.log(|times| {
                    let open = self.admission.existing();
                    tracing::warn!(%error, open, times, "cannot accept connections");
                });
                self.admission.make_room();
                tokio::time::sleep(BACKOFF).await;
                None
            }
        }
    }

    /// Serves a socket, or refuses it with a reason. On the lane of its connection, `handshake` finds out who is at the
    /// other end.
    async fn take<I, F>(&self, peer: Peer, handshake: impl FnOnce(Lane) -> F + Send + 'static)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = io::Result<(I, Who)>> + Send + 'static,
    {
        if !self.admission.room_to_exist().await {
            self.serving.warnings.refused.log(|times| {
                tracing::warn!(%peer, times, "refused connections: too many finish their last calls");
            });
            return;
        }
        match self.admission.admit(peer, Instant::now()) {
            Ok((admitted, evicted)) => {
                if let Some(evicted) = evicted {
                    self.serving.warnings.evicted.log(|times| {
                        tracing::warn!(peer = %evicted, times, "closed idle connections to make room for new ones");
                    });
                }
                let turns = admitted.shared.turns.clone();
                let lane = Lane::new(self.serving.streams.clone(), turns.clone());
                let serving = Arc::clone(&self.serving);
                let connection = async move {
                    let closing = admitted.closing.clone();
                    match closing.run_until_cancelled(handshake(lane.clone())).await {
                        Some(Ok((io, who))) => {
                            connection::serve(io, who, admitted, lane, serving).await;
                        }
                        Some(Err(error)) => tracing::debug!(%error, "a handshake failed"),
                        None => tracing::debug!("closed a connection during its handshake"),
                    }
                };
                self.serving.tasks.spawn("connection", turns.take(connection));
            }
            Err(refusal) => {
                self.serving.warnings.refused.log(|times| {
                    tracing::warn!(%peer, reason = %refusal, times, "refused connections");
                });
                if let Ok(place) = Arc::clone(&self.refusals).try_acquire_owned() {
                    // There are few of them at a time.
                    let lane = Lane::new(self.serving.streams.clone(), Turns::new(Arc::default()));
                    let limits = self.serving.call_limits.clone();
                    self.serving.tasks.spawn("refusal", async move {
                        match handshake(lane).await {
                            Ok((io, _)) => tell(io, refusal, &limits, place).await,
                            Err(error) => tracing::debug!(%error, "a handshake failed"),
                        }
                    });
                }
            }
        }
    }
}

/// Whether a failure is about one connection, so that the next one may be good.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
            | io::ErrorKind::WouldBlock
    )
}

/// Whether the peer has closed its end.
fn has_left(socket: &impl AsFd) -> bool {
    // Nothing else is requested: whatever is reported is an end, or an error.
    let hung_up = PollFlags::from_bits_retain(libc::POLLRDHUP);
    let mut fds = [PollFd::new(socket.as_fd(), hung_up)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_that_has_left_is_known() {
        let (near, far) = UnixStream::pair().unwrap();
        assert!(!has_left(&near));
        io::Write::write_all(&mut &far, b"what it asked for").unwrap();
        assert!(!has_left(&near));
        drop(far);
        assert!(has_left(&near));
    }

    #[test]
    fn what_was_not_logged_is_counted() {
        let (rarely, mut told) = (RateLimitedLog::default(), Vec::new());
        let begin = Instant::now();
        for seconds in [0, 1, 2, 9, 10, 11, 30] {
            rarely.log_at(begin + Duration::from_secs(seconds), |times| told.push((seconds, times)));
        }
        assert_eq!(told, [(0, 1), (10, 4), (30, 2)]);
    }
}
