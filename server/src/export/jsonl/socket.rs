//! A connection for JSON lines: TCP, TLS, a unix socket, or a pipe.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixDatagram, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::super::SinkError;
use super::encode::Encoder;
use crate::config::export::NetworkAddress;

/// TLS towards the receiver.
#[derive(Debug)]
pub(super) struct Tls {
    pub(super) config: Arc<ClientConfig>,
    /// Name in its certificate, if it is not the host of the address.
    pub(super) domain: Option<String>,
}

/// The address of the receiver.
#[derive(Debug)]
enum Peer {
    Unix(PathBuf),
    Pipe(PathBuf),
    Tcp(NetworkAddress, Option<Tls>),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Pipe(path) => write!(f, "{}", path.display()),
            Self::Tcp(address, _) => write!(f, "tcp://{address}"),
        }
    }
}

/// An open one.
#[derive(Debug)]
enum Open {
    Tcp(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
    Unix(UnixStream),
    Datagrams(UnixDatagram),
    Pipe(pipe::Sender),
}

/// A connection that is made again after each failure.
#[derive(Debug)]
pub(super) struct Connection {
    peer: Peer,
    open: Option<Open>,
}

impl Connection {
    pub(super) const fn unix(path: PathBuf) -> Self {
        Self { peer: Peer::Unix(path), open: None }
    }

    pub(super) const fn pipe(path: PathBuf) -> Self {
        Self { peer: Peer::Pipe(path), open: None }
    }

    pub(super) const fn tcp(address: NetworkAddress, tls: Option<Tls>) -> Self {
        Self { peer: Peer::Tcp(address, tls), open: None }
    }

    pub(super) async fn open(&mut self) -> Result<(), SinkError> {
        self.open = None;
        let opened = match &self.peer {
            Peer::Unix(path) => match UnixStream::connect(path).await {
                Ok(stream) => Ok(Open::Unix(stream)),
                // A socket of datagrams, such as /dev/log.
                Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => datagrams(path),
                Err(error) => Err(error),
            },
            Peer::Pipe(path) => match pipe::OpenOptions::new().open_sender(path) {
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
                    Err(io::Error::other("no program reads from the pipe"))
                }
                opened => opened.map(Open::Pipe),
            },
            Peer::Tcp(address, tls) => connect(address, tls.as_ref()).await,
        };
        self.open = Some(opened.map_err(|error| self.failed("connect to", &error))?);
        Ok(())
    }

    /// Writes lines, which end at `ends`. Returns which of them are too large for a datagram.
    pub(super) async fn write(
        &mut self,
        lines: &[u8],
        ends: &[usize],
        encoder: &Encoder,
    ) -> Result<Vec<usize>, SinkError> {
        let Some(open) = &mut self.open else {
            return Err(self.failed("write to", &ErrorKind::NotConnected.into()));
        };
        let written = match open {
            Open::Datagrams(socket) => send_each(socket, lines, ends).await,
            open if encoder.is_syslog() => {
                let framed = counted(lines, ends);
                write_all(open, &framed).await.map(|()| Vec::new())
            }
            open => write_all(open, lines).await.map(|()| Vec::new()),
        };
        written.map_err(|error| self.failed("write to", &error))
    }

    fn failed(&self, action: &str, error: &io::Error) -> SinkError {
        SinkError::new(format_args!("{action} `{}`", self.peer), error)
    }
}

fn datagrams(path: &PathBuf) -> io::Result<Open> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    Ok(Open::Datagrams(socket))
}

async fn connect(address: &NetworkAddress, tls: Option<&Tls>) -> io::Result<Open> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    let Some(Tls { config, domain }) = tls else { return Ok(Open::Tcp(stream)) };
    let name = domain.as_ref().unwrap_or(&address.host).clone();
    let name = ServerName::try_from(name).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
    let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await?;
    Ok(Open::Tls(Box::new(stream)))
}

/// Whether the receiver has closed the connection: what is written then is lost without an error.
/// Bytes from the receiver are read and dropped.
fn is_closed(open: &mut Open) -> bool {
    let stream: &mut (dyn AsyncRead + Unpin) = match open {
        Open::Tcp(stream) => stream,
        Open::Tls(stream) => stream,
        Open::Unix(stream) => stream,
        Open::Datagrams(_) | Open::Pipe(_) => return false,
    };
    let mut context = Context::from_waker(Waker::noop());
    let mut bytes = [0; 256];
    loop {
        let mut said = ReadBuf::new(&mut bytes);
        match Pin::new(&mut *stream).poll_read(&mut context, &mut said) {
            Poll::Ready(Ok(())) if !said.filled().is_empty() => {}
            Poll::Ready(_) => return true,
            Poll::Pending => return false,
        }
    }
}

async fn write_all(open: &mut Open, bytes: &[u8]) -> io::Result<()> {
    if is_closed(open) {
        return Err(io::Error::other("the receiver has closed the connection"));
    }
    let stream: &mut (dyn AsyncWrite + Send + Unpin) = match open {
        Open::Tcp(stream) => stream,
        Open::Tls(stream) => stream,
        Open::Unix(stream) => stream,
        Open::Pipe(pipe) => pipe,
        Open::Datagrams(_) => return Err(ErrorKind::Unsupported.into()),
    };
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// Sends each line alone. One that is too large stays so: to try it again would keep all others back.
async fn send_each(socket: &UnixDatagram, lines: &[u8], ends: &[usize]) -> io::Result<Vec<usize>> {
    let mut too_large = Vec::new();
    for (number, line) in each(lines, ends).enumerate() {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        match socket.send(line).await {
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => too_large.push(number),
            sent => drop(sent?),
        }
    }
    Ok(too_large)
}

fn each<'a>(lines: &'a [u8], ends: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let begins = std::iter::once(0).chain(ends.iter().copied());
    begins.zip(ends).filter_map(|(begin, end)| lines.get(begin..*end))
}

/// Each message with its length before it (RFC 6587, 3.4.1).
fn counted(lines: &[u8], ends: &[usize]) -> Vec<u8> {
    let mut framed = Vec::with_capacity(lines.len() + ends.len() * 5);
    for line in each(lines, ends) {
        framed.extend_from_slice(format!("{} ", line.len()).as_bytes());
        framed.extend_from_slice(line);
    }
    framed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_is_too_large_keeps_no_other_back() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let large = vec![b'x'; 8 << 20];
        let lines = [b"a\n", &large[..], b"\n", b"b\n"].concat();
        let ends = [2, 2 + large.len() + 1, lines.len()];
        assert_eq!(send_each(&ours, &lines, &ends).await.unwrap(), [1]);
        for expected in [b"a", b"b"] {
            let mut bytes = [0; 16];
            let count = theirs.recv(&mut bytes).await.unwrap();
            assert_eq!(&bytes[..count], expected);
        }
    }

    #[test]
    fn messages_are_counted() {
        assert_eq!(counted(b"<1>a<1>bcd", &[4, 10]), b"4 <1>a6 <1>bcd");
        assert_eq!(counted(b"", &[]), b"");
    }
}
