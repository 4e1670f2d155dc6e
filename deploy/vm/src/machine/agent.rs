//! One connection of the host to the agent in the guest.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use super::MachineError;
use super::command::Stream;
use crate::protocol::{ALIVE_INTERVAL, Frame, Status, VERSION, read_frame, write_frame};

/// How long the agent may be silent before the guest counts as hung. The agent speaks every
/// [`ALIVE_INTERVAL`]; an emulated guest on a busy host can be that much slower.
pub(super) const SILENCE: Duration = ALIVE_INTERVAL.saturating_mul(60);

/// Why a request had no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// Socket or protocol.
    Connection(io::Error),
    /// What the agent said instead.
    Said(MachineError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

/// Not the frame that belongs here: host and guest were not built from the same source.
pub(super) fn unexpected(what: &str) -> Failure {
    Failure::Said(MachineError::Other(format!(
        "the agent in the guest said something unexpected ({what}): was it built from this source?"
    )))
}

/// A connection on which the agent has said hello.
#[derive(Debug)]
pub(super) struct Conversation {
    stream: TcpStream,
    /// `uname -r` of the guest.
    pub(super) release: String,
}

impl Conversation {
    /// Connects, waiting at most `hello` for the agent's greeting. A connection alone proves
    /// nothing: QEMU accepts it before the guest listens.
    pub(super) fn open(address: SocketAddr, hello: Duration) -> Result<Self, Failure> {
        let mut stream = TcpStream::connect_timeout(&address, hello)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(hello))?;
        stream.set_write_timeout(Some(SILENCE))?;
        match read_frame(&mut stream)? {
            Frame::Hello { version: VERSION, release } => {
                stream.set_read_timeout(Some(SILENCE))?;
                Ok(Self { stream, release })
            }
            Frame::Hello { .. } => Err(unexpected("another protocol version")),
            _ => Err(unexpected("no greeting")),
        }
    }

    /// Sends a request that has no answer.
    pub(super) fn send(&mut self, request: &Frame) -> Result<(), Failure> {
        Ok(write_frame(&mut self.stream, request)?)
    }

    /// The next frame that says something.
    pub(super) fn next(&mut self) -> Result<Frame, Failure> {
        loop {
            match read_frame(&mut self.stream)? {
                Frame::Alive => {}
                Frame::Failed { errno, message } => {
                    return Err(Failure::Said(MachineError::Refused { errno, message }));
                }
                other => return Ok(other),
            }
        }
    }

    /// The answer to a request that is either done or refused.
    pub(super) fn done(&mut self) -> Result<(), Failure> {
        match self.next()? {
            Frame::Done => Ok(()),
            _ => Err(unexpected("not `done`")),
        }
    }

    /// The answer to a request that ends with a process.
    pub(super) fn status(&mut self) -> Result<Status, Failure> {
        match self.next()? {
            Frame::Exit(status) => Ok(status),
            _ => Err(unexpected("not a process's end")),
        }
    }

    /// The output of the process that was asked for, and how it ended.
    pub(super) fn outcome(&mut self, mut output: impl FnMut(Stream, &[u8])) -> Result<Status, Failure> {
        loop {
            match self.next()? {
                Frame::Stdout(bytes) => output(Stream::Stdout, &bytes),
                Frame::Stderr(bytes) => output(Stream::Stderr, &bytes),
                Frame::Exit(status) => return Ok(status),
                _ => return Err(unexpected("no output and no end of a process")),
            }
        }
    }

    /// Sends `input` to the process that was asked for, as it comes, while `answer` reads. Nothing waits for the
    /// thread that does: a pipe without an end, or a person, may hold it.
    pub(super) fn with_input<T>(
        &mut self,
        input: impl Iterator<Item = Frame> + Send + 'static,
        answer: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // A process reads when it likes; that the guest is dead shows in what it no longer says.
        self.stream.set_write_timeout(None)?;
        let mut outgoing = self.stream.try_clone()?;
        thread::spawn(move || {
            for frame in input {
                if write_frame(&mut outgoing, &frame).is_err() {
                    return;
                }
            }
            // An error shows in the answer, or in its absence.
            drop(write_frame(&mut outgoing, &Frame::End));
        });
        let result = answer(self);
        drop(self.stream.shutdown(Shutdown::Both));
        result
    }
}
