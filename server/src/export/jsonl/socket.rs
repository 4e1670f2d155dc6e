//! A connection for JSON lines: a unix socket, or a pipe.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::net::{UnixDatagram, UnixStream};

use super::super::{Sent, SinkError};

/// An open one.
#[derive(Debug)]
enum Open {
    Stream(UnixStream),
    Datagrams(UnixDatagram),
    Pipe(pipe::Sender),
}

/// A connection that is made again after each failure.
#[derive(Debug)]
pub(super) struct Connection {
    path: PathBuf,
    /// Whether it is a pipe, and not a unix socket.
    is_pipe: bool,
    open: Option<Open>,
    /// The pipe has a line without its end: it is the same pipe when it is opened again.
    is_torn: bool,
}

impl Connection {
    pub(super) const fn new(path: PathBuf, is_pipe: bool) -> Self {
        Self { path, is_pipe, open: None, is_torn: false }
    }

    pub(super) async fn open(&mut self) -> Result<(), SinkError> {
        self.open = None;
        let path = &self.path;
        let opened = if self.is_pipe {
            match pipe::OpenOptions::new().open_sender(path) {
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
                    Err(io::Error::other("no program reads from the pipe"))
                }
                opened => opened.map(Open::Pipe),
            }
        } else {
            match UnixStream::connect(path).await {
                // A socket of datagrams, such as /dev/log.
                Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => datagrams(path),
                opened => opened.map(Open::Stream),
            }
        };
        self.open = Some(opened.map_err(|error| self.failed("connect to", &error))?);
        Ok(())
    }

    /// Writes lines.
    pub(super) async fn write(&mut self, lines: &[u8]) -> Result<Sent, SinkError> {
        let written = match &mut self.open {
            Some(Open::Stream(stream)) if is_closed(stream) => {
                Err(io::Error::other("the receiver has closed the connection"))
            }
            Some(Open::Stream(stream)) => stream.write_all(lines).await.map(|()| Sent::default()),
            Some(Open::Pipe(pipe)) => {
                let written = write_to_pipe(pipe, lines, &mut self.is_torn).await;
                if written.as_ref().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
                    // The next reader has nothing of it.
                    self.is_torn = false;
                }
                written.map(|()| Sent::default())
            }
            Some(Open::Datagrams(socket)) => send_each(socket, lines).await,
            None => Err(ErrorKind::NotConnected.into()),
        };
        written.map_err(|error| self.failed("write to", &error))
    }

    fn failed(&self, action: &str, error: &io::Error) -> SinkError {
        let scheme = if self.is_pipe { "" } else { "unix:" };
        SinkError::new(format_args!("{action} `{scheme}{}`", self.path.display()), error)
    }
}

fn datagrams(path: &Path) -> io::Result<Open> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    Ok(Open::Datagrams(socket))
}

/// Whether the receiver has closed the connection: what is written then is lost without an error.
/// Bytes from the receiver are read and dropped.
fn is_closed(stream: &UnixStream) -> bool {
    let mut bytes = [0; 256];
    loop {
        match stream.try_read(&mut bytes) {
            Ok(count) if count > 0 => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Ok(_) | Err(_) => return true,
        }
    }
}

/// Writes lines, after the end of one that a write which was cancelled has left without.
async fn write_to_pipe(pipe: &mut pipe::Sender, lines: &[u8], is_torn: &mut bool) -> io::Result<()> {
    if *is_torn {
        pipe.write_all(b"\n").await?;
        *is_torn = false;
    }
    let mut left = lines;
    while !left.is_empty() {
        // One that is cancelled has written nothing.
        let count = pipe.write(left).await?;
        let (written, rest) = left.split_at(count);
        let Some(last) = written.last() else { return Err(ErrorKind::WriteZero.into()) };
        *is_torn = *last != b'\n';
        left = rest;
    }
    Ok(())
}

/// Sends each line alone. An event that is too large stays so, and is dropped: to try it again would keep all others
/// back.
async fn send_each(socket: &UnixDatagram, lines: &[u8]) -> io::Result<Sent> {
    let mut sent = Sent::default();
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match socket.send(line).await {
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                sent.dropped += u64::from(line.starts_with(br#"{"type":"event""#));
                "the line is larger than a datagram may be: use a stream socket or a file"
                    .clone_into(&mut sent.reason);
            }
            answer => drop(answer?),
        }
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::stat::Mode;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// A reader that is too slow for one chunk reads the next one whole.
    #[tokio::test]
    async fn a_torn_line_ends_before_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        let mut reader = pipe::OpenOptions::new().open_receiver(&path).unwrap();
        let mut connection = Connection::new(path, true);
        connection.open().await.unwrap();
        // More than a pipe holds.
        let long = [&vec![b'x'; 4 << 20][..], b"\n"].concat();
        let cancelled = tokio::time::timeout(Duration::from_millis(50), connection.write(&long)).await;
        assert!(cancelled.is_err());
        connection.open().await.unwrap();
        let write = async move {
            connection.write(b"a\n").await.unwrap();
            connection.write(b"b\n").await.unwrap();
        };
        let mut all = Vec::new();
        let ((), read) = tokio::join!(write, reader.read_to_end(&mut all));
        read.unwrap();
        assert!(all.len() < long.len() && all.ends_with(b"x\na\nb\n"), "{} bytes", all.len());
    }

    #[tokio::test]
    async fn a_line_that_is_too_large_keeps_no_other_back() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let large = vec![b'x'; 8 << 20];
        let event = [br#"{"type":"event","#, &large[..]].concat();
        let lines = [b"a", &large[..], &event[..], b"b", b""].join(&b'\n');
        let sent = send_each(&ours, &lines).await.unwrap();
        assert_eq!(sent.dropped, 1, "the account has events only");
        assert!(sent.reason.contains("datagram"), "{}", sent.reason);
        for expected in [b"a", b"b"] {
            let mut bytes = [0; 16];
            let count = theirs.recv(&mut bytes).await.unwrap();
            assert_eq!(&bytes[..count], expected);
        }
    }
}
