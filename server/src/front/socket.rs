//! Sockets that follow their connection to the threads that serve it.
//!
//! A socket is registered with the event loop of one runtime, which wakes the task that waits for it. Left
//! with the threads for control calls, it would have them wake those for streams with everything that a
//! client acknowledges: two more switches for each message. So it is registered again once its connection
//! has moved.
//!
//! They also see to it that a connection takes turns: HTTP/2 works through everything that its socket has, and
//! the thread serves no other one meanwhile.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use super::lane::Lane;

/// How long a connection may read before it is the turn of others.
const TURN: Duration = Duration::from_micros(200);

/// What is read at once, in bytes: some forty calls that are begun and taken back.
const AT_ONCE: usize = 4096;

/// A socket of the operating system.
pub(super) trait Registered: AsyncRead + AsyncWrite + Unpin + Sized {
    /// The same, registered with the runtime of the thread that calls.
    fn register_here(self) -> io::Result<Self>;
}

impl Registered for UnixStream {
    fn register_here(self) -> io::Result<Self> {
        Self::from_std(self.into_std()?)
    }
}

impl Registered for TcpStream {
    fn register_here(self) -> io::Result<Self> {
        Self::from_std(self.into_std()?)
    }
}

/// A socket on the lane of its connection.
#[derive(Debug)]
pub(super) struct Following<S> {
    /// Absent after it could not be registered.
    socket: Option<S>,
    lane: Lane,
    has_moved: bool,
    /// Since when it reads without a pause.
    turn: Option<Instant>,
}

impl<S: Registered> Following<S> {
    pub(super) const fn new(socket: S, lane: Lane) -> Self {
        Self { socket: Some(socket), lane, has_moved: false, turn: None }
    }

    fn socket(&mut self) -> io::Result<Pin<&mut S>> {
        if !self.has_moved && self.lane.has_moved() {
            self.has_moved = true;
            self.socket = self.socket.take().map(S::register_here).transpose()?;
        }
        let socket = self.socket.as_mut().map(Pin::new);
        socket.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))
    }
}

impl<S: Registered> AsyncRead for Following<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let begun = *self.turn.get_or_insert_with(Instant::now);
        if begun.elapsed() >= TURN {
            self.turn = None;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let most = AT_ONCE.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        let read = self.socket()?.poll_read(context, &mut part);
        let come = part.filled().len();
        if read.is_pending() {
            self.turn = None;
        }
        buffer.advance(come);
        read
    }
}

impl<S: Registered> AsyncWrite for Following<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.socket()?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.socket()?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket()?.poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::runtime::Builder;

    use std::sync::Arc;

    use super::*;
    use crate::turns::Turns;

    #[tokio::test]
    async fn a_connection_takes_turns() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let lane = Lane::new(tokio::runtime::Handle::current(), Turns::new(Arc::default()));
        let mut socket = Following::new(server, lane);
        client.write_all(&[7; 3 * AT_ONCE]).await.unwrap();
        let mut bytes = vec![0; 2 * AT_ONCE];
        assert_eq!(socket.read(&mut bytes).await.unwrap(), AT_ONCE);
        // Long ago.
        socket.turn = Instant::now().checked_sub(TURN);
        let mut read = std::pin::pin!(socket.read(&mut bytes));
        let first = std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context).is_pending()));
        assert!(first.await, "others have their turn");
        assert_eq!(read.await.unwrap(), AT_ONCE);
        assert_eq!(bytes[..AT_ONCE], [7; AT_ONCE]);
    }

    #[test]
    fn a_socket_goes_on_where_its_connection_is_served() {
        let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (control, streams) = (runtime(), runtime());
        let (mut client, mut socket, lane) = control.block_on(async {
            let (client, server) = UnixStream::pair().unwrap();
            let lane = Lane::new(streams.handle().clone(), Turns::new(Arc::default()));
            (client, Following::new(server, lane.clone()), lane)
        });
        let mut bytes = [0; 3];
        control.block_on(async {
            client.write_all(b"one").await.unwrap();
            socket.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"one");
        });
        streams.block_on(async {
            lane.moved();
            socket.write_all(b"two").await.unwrap();
        });
        let answer = control.spawn(async move {
            let mut bytes = [0; 3];
            client.read_exact(&mut bytes).await.unwrap();
            client.write_all(&bytes).await.unwrap();
        });
        // Its event loop is that of the streams: the other one is not needed any more.
        streams.block_on(async {
            answer.await.unwrap();
            control.shutdown_background();
            socket.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"two");
            assert_eq!(socket.read(&mut bytes).await.unwrap(), 0, "the client has gone");
        });
    }
}
