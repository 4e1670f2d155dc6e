//! Protocol between the host and the agent in the guest: one request per TCP connection, as
//! length-prefixed frames.
//!
//! A connection goes: agent sends [`Frame::Hello`]; host sends one request, and after
//! [`Frame::Run`] and [`Frame::Put`] its bytes as [`Frame::Data`] closed by [`Frame::End`]; agent
//! answers, with [`Frame::Alive`] whenever it has nothing else to say for [`ALIVE_INTERVAL`]; agent
//! closes. When the host closes first, what it asked for is killed.
//!
//! Owns the frames and their bytes. Never opens a socket, and runs nothing.
//!
//! On the wire a frame is a `u32` length (little endian, of what follows) and a [`Frame`] in
//! postcard's format, which both sides are built with from one workspace.

use std::io::{self, Read, Write};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// Version that both sides must agree on: the frames have no other compatibility rule.
pub const VERSION: u32 = 2;
/// Largest frame that either side accepts, in bytes, without its length prefix.
pub const MAX_FRAME_BYTES: usize = 1 << 20;
/// How many bytes of a stream travel in one frame.
pub const CHUNK_BYTES: usize = 64 << 10;
/// How often the agent speaks when a request takes long, so that the host can tell slow from dead.
pub const ALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// The guest's address in QEMU's user network.
pub const GUEST_ADDRESS: [u8; 4] = [10, 0, 2, 15];

/// Where the guest finds the host's loopback, if it may.
pub const HOST_ADDRESS: [u8; 4] = [10, 0, 2, 2];
/// TCP port of the agent in the guest.
pub const AGENT_PORT: u16 = 7001;
/// Line on the guest's console when the agent listens.
pub const LISTENING_LINE: &str = "kprobed-guest: agent listens";
/// Line on the guest's console when everything is on the disk and the guest is about to switch off.
pub const POWER_OFF_LINE: &str = "kprobed-guest: clean power-off";

/// How a guest process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// It returned this exit code.
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
    /// It was still running when the time that the request gave it was over.
    TimedOut,
}

impl Status {
    /// Exit code 0.
    pub fn success(self) -> bool {
        self == Self::Exited(0)
    }

    /// Whether this signal ended it.
    pub fn is_signal(self, signal: Signal) -> bool {
        self == Self::Signaled(signal as i32)
    }

    /// The number a shell would report in `$?`: the code, 128 + signal, or 124 as `timeout(1)` has
    /// it.
    pub fn shell_code(self) -> u8 {
        match self {
            Self::Exited(code) => code.to_le_bytes()[0],
            Self::Signaled(signal) => signal.to_le_bytes()[0].saturating_add(128),
            Self::TimedOut => 124,
        }
    }
}

/// A process to start in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Program (searched in `PATH`) and arguments; never empty.
    pub argv: Vec<String>,
    /// Variables on top of the agent's own `PATH` and `HOME`.
    pub env: Vec<(String, String)>,
    /// Working directory; `/root` when absent.
    pub cwd: Option<String>,
}

/// How large a terminal is, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}

/// One message, either way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Frame {
    /// Agent, first on every connection: it is there and serves.
    Hello {
        /// [`VERSION`] of the agent.
        version: u32,
        /// `uname -r` of the guest.
        release: String,
    },
    /// Run a process to its end; answered by `Stdout` and `Stderr` as they come, then `Exit`.
    Run {
        /// What to run.
        process: Process,
        /// Kill it after so many milliseconds.
        timeout_ms: Option<u64>,
        /// Give it a terminal of this size, in a session of its own: all of its output is `Stdout` then.
        terminal: Option<Size>,
    },
    /// Write a file (replacing it, creating its directories); answered by `Done`.
    Put {
        /// Absolute path.
        path: String,
        /// Permission bits.
        mode: u32,
    },
    /// Read a file; answered by `Data` and `End`.
    Get {
        /// Absolute path.
        path: String,
    },
    /// Start a background process, output appended to `/run/log/NAME.log`; answered by `Done`.
    Spawn {
        /// Name for `Signal` and `Wait`; a name is free again when its process has ended.
        name: String,
        /// What to start.
        process: Process,
    },
    /// Send a signal to a background process; answered by `Done`.
    Signal {
        /// Its name.
        name: String,
        /// Signal number.
        signal: i32,
    },
    /// Wait for a background process; answered by `Exit`.
    Wait {
        /// Its name.
        name: String,
        /// Answer `TimedOut` after so many milliseconds.
        timeout_ms: u64,
    },
    /// End every process, write everything to disk and switch off; not answered, [`POWER_OFF_LINE`]
    /// is the proof.
    PowerOff,
    /// Bytes of standard input or of a file.
    Data(#[serde(with = "serde_bytes")] Vec<u8>),
    /// No more `Data`.
    End,
    /// The terminal of the process that runs has another size now.
    Resize(Size),
    /// Bytes of standard output.
    Stdout(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Bytes of standard error.
    Stderr(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Nothing new, still working.
    Alive,
    /// Done as asked.
    Done,
    /// How the process ended.
    Exit(Status),
    /// The request could not be carried out.
    Failed {
        /// The guest kernel's errno; 0 when the agent itself refused.
        errno: i32,
        /// What was tried and what went wrong.
        message: String,
    },
}

/// Writes one frame. Fails with `InvalidInput` when it is larger than [`MAX_FRAME_BYTES`].
pub fn write_frame(to: &mut impl Write, frame: &Frame) -> io::Result<()> {
    let body = encode(frame)?;
    let length = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= MAX_FRAME_BYTES)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "frame too large"))?;
    let mut message = length.to_le_bytes().to_vec();
    message.extend_from_slice(&body);
    to.write_all(&message)
}

/// Reads one frame. Fails with `UnexpectedEof` if the peer has closed, and with `InvalidData` if the bytes are not one.
pub fn read_frame(from: &mut impl Read) -> io::Result<Frame> {
    let mut prefix = [0; 4];
    from.read_exact(&mut prefix).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "the connection was closed"),
        _ => error,
    })?;
    let length = u32::from_le_bytes(prefix) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(malformed(format!("a frame of {length} bytes is too large")));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    decode(&body)
}

/// The bytes of a frame, without the length prefix.
///
/// # Errors
/// `InvalidInput` if serialisation fails, which no frame causes.
fn encode(frame: &Frame) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(frame).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// The frame in `body`, which is what follows the length prefix.
fn decode(body: &[u8]) -> io::Result<Frame> {
    match postcard::take_from_bytes(body) {
        Ok((frame, [])) => Ok(frame),
        Ok((_, left)) => Err(malformed(format!("malformed frame: {} bytes left over", left.len()))),
        Err(error) => Err(malformed(format!("malformed frame: {error}"))),
    }
}

fn malformed(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn process() -> impl Strategy<Value = Process> {
        (vec(".*", 0..4), vec((".*", ".*"), 0..3), option::of(".*")).prop_map(|(argv, env, cwd)| Process {
            argv,
            env,
            cwd,
        })
    }

    fn size() -> impl Strategy<Value = Size> {
        any::<(u16, u16)>().prop_map(|(rows, columns)| Size { rows, columns })
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let bytes = || vec(any::<u8>(), 0..300);
        prop_oneof![
            (any::<u32>(), ".*").prop_map(|(version, release)| Frame::Hello { version, release }),
            (process(), any::<Option<u64>>(), option::of(size()))
                .prop_map(|(process, timeout_ms, terminal)| Frame::Run { process, timeout_ms, terminal }),
            size().prop_map(Frame::Resize),
            (".*", any::<u32>()).prop_map(|(path, mode)| Frame::Put { path, mode }),
            ".*".prop_map(|path| Frame::Get { path }),
            (".*", process()).prop_map(|(name, process)| Frame::Spawn { name, process }),
            (".*", any::<i32>()).prop_map(|(name, signal)| Frame::Signal { name, signal }),
            (".*", any::<u64>()).prop_map(|(name, timeout_ms)| Frame::Wait { name, timeout_ms }),
            bytes().prop_map(Frame::Data),
            bytes().prop_map(Frame::Stdout),
            bytes().prop_map(Frame::Stderr),
            any::<i32>().prop_map(|code| Frame::Exit(Status::Exited(code))),
            any::<i32>().prop_map(|signal| Frame::Exit(Status::Signaled(signal))),
            (any::<i32>(), ".*").prop_map(|(errno, message)| Frame::Failed { errno, message }),
            prop::sample::select(vec![
                Frame::PowerOff,
                Frame::End,
                Frame::Alive,
                Frame::Done,
                Frame::Exit(Status::TimedOut)
            ]),
        ]
    }

    proptest! {
        #[test]
        fn written_frames_are_read_back(frames in vec(frame(), 0..5)) {
            let mut wire = Vec::new();
            for frame in &frames {
                write_frame(&mut wire, frame).unwrap();
            }
            let mut wire = wire.as_slice();
            for frame in &frames {
                prop_assert_eq!(&read_frame(&mut wire).unwrap(), frame);
            }
            prop_assert_eq!(read_frame(&mut wire).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }

        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
            if let Ok(frame) = decode(&bytes) {
                prop_assert_eq!(decode(&encode(&frame).unwrap()).unwrap(), frame);
            }
        }

        #[test]
        fn a_frame_that_is_cut_short_is_an_error(frame in frame(), keep in any::<prop::sample::Index>()) {
            let mut wire = Vec::new();
            write_frame(&mut wire, &frame).unwrap();
            wire.truncate(keep.index(wire.len()));
            prop_assert!(read_frame(&mut wire.as_slice()).is_err());
        }
    }

    #[test]
    fn frames_have_a_bound_in_both_directions() {
        let huge = Frame::Data(vec![0; MAX_FRAME_BYTES]);
        assert_eq!(write_frame(&mut Vec::new(), &huge).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let claim = u32::MAX.to_le_bytes();
        let error = read_frame(&mut claim.as_slice()).unwrap_err().to_string();
        assert!(error.contains("is too large"), "{error}");
    }

    #[test]
    fn shell_codes() {
        assert_eq!(Status::Exited(7).shell_code(), 7);
        assert_eq!(Status::Signaled(9).shell_code(), 137);
        assert_eq!(Status::TimedOut.shell_code(), 124);
    }
}
