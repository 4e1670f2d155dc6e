//! The first bytes of a connection: the preface of HTTP/2 has to come within some time.
//!
//! Owns whether it has come. A client that sends nothing takes a descriptor and a place. After the
//! preface, keep-alive finds one that does not answer. Never reads what is in it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of the preface (RFC 9113, section 3.4).
const PREFACE: usize = 24;

/// Whether the preface of a connection has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Greeted(Arc<AtomicBool>);

impl Greeted {
    pub(super) fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A socket that counts its first bytes.
#[derive(Debug)]
pub(super) struct Greeting<I> {
    io: I,
    /// Bytes of the preface that have not come.
    missing: usize,
    greeted: Greeted,
}

impl<I> Greeting<I> {
    pub(super) fn new(io: I) -> (Self, Greeted) {
        let greeted = Greeted::default();
        (Self { io, missing: PREFACE, greeted: greeted.clone() }, greeted)
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Greeting<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        if self.missing > 0 {
            self.missing = self.missing.saturating_sub(buffer.filled().len() - before);
            if self.missing == 0 {
                self.greeted.0.store(true, Ordering::Relaxed);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Greeting<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn the_preface_is_all_of_its_bytes() {
        let (mut greeting, greeted) = Greeting::new(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0"[..]);
        greeting.read_exact(&mut [0; PREFACE - 1]).await.unwrap();
        assert!(!greeted.is_there());
        greeting.read_exact(&mut [0; 1]).await.unwrap();
        assert!(greeted.is_there());
        assert_eq!(greeting.read(&mut [0; 9]).await.unwrap(), 1);
    }
}
