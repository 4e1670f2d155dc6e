//! The first bytes of a connection: the preface of HTTP/2 has to come within some time.
//!
//! Owns waiting for it, before anything is made for the connection: a client that sends nothing takes a
//! descriptor and a place, and no more. After the preface, keep-alive finds one that does not answer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// The preface (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose preface has come, and is read again by HTTP/2.
#[derive(Debug)]
pub(super) struct Greeted<I> {
    io: I,
    /// What is left of it.
    preface: &'static [u8],
}

impl<I: AsyncRead + Unpin> Greeted<I> {
    /// Waits for the preface.
    ///
    /// # Errors
    /// Those of the socket, and [`io::ErrorKind::InvalidData`] as soon as a byte is another one.
    pub(super) async fn read(mut io: I) -> io::Result<Self> {
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
        Ok(Self { io, preface: PREFACE })
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Greeted<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.preface.is_empty() {
            return Pin::new(&mut self.io).poll_read(context, buffer);
        }
        let (now, later) = self.preface.split_at(self.preface.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.preface = later;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Greeted<I> {
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
            Greeted::read(server).await.unwrap().read_to_end(&mut bytes).await.unwrap();
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
            let error = Greeted::read(server).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        let error = Greeted::read(&PREFACE[..20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
