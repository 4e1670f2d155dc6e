//! The language between the host and the agent in the guest: one request per TCP connection, as length-prefixed frames.
//!
//! A connection goes: agent sends [`Frame::Hello`]; host sends one request, and after [`Frame::Run`] and [`Frame::Put`] its
//! bytes as [`Frame::Data`] closed by [`Frame::End`]; agent answers, with [`Frame::Alive`] whenever it has nothing else
//! to say for [`ALIVE_INTERVAL`]; agent closes. When the host closes first, what it asked for is killed.
//!
//! This module owns the frames and their bytes. It never opens a socket and runs nothing.
//!
//! On the wire a frame is `u32` length (little endian, of what follows), `u8` kind, fields. Integers are little endian;
//! strings and byte strings are a `u32` length and bytes; lists are a `u32` count and items; options are a `u8` 0 or 1 and the value.

use std::io::{self, Read, Write};
use std::time::Duration;

/// Version that both sides must agree on: the frames have no other compatibility rule.
pub const VERSION: u32 = 1;
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
/// What the guest writes on its console when the agent listens.
pub const LISTENING_LINE: &str = "kprobed-guest: agent listens";
/// What the guest writes on its console when everything is on the disk and it is about to switch off.
pub const POWER_OFF_LINE: &str = "kprobed-guest: clean power-off";

/// How a guest process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// The number a shell would report in `$?`: the code, 128 + signal, or 124 as `timeout(1)` has it.
    pub fn shell_code(self) -> u8 {
        match self {
            Self::Exited(code) => code.to_le_bytes()[0],
            Self::Signaled(signal) => signal.to_le_bytes()[0].saturating_add(128),
            Self::TimedOut => 124,
        }
    }
}

/// A process to start in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Program (searched in `PATH`) and arguments; never empty.
    pub argv: Vec<String>,
    /// Variables on top of the agent's own `PATH` and `HOME`.
    pub env: Vec<(String, String)>,
    /// Working directory; `/root` when absent.
    pub cwd: Option<String>,
}

/// One message, either way.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        timeout_ms: Option<u64>,
    },
    /// End every process, write everything to disk and switch off; not answered, [`POWER_OFF_LINE`] is the proof.
    PowerOff,
    /// Bytes of standard input or of a file.
    Data(Vec<u8>),
    /// No more `Data`.
    End,
    /// Bytes of standard output.
    Stdout(Vec<u8>),
    /// Bytes of standard error.
    Stderr(Vec<u8>),
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

/// Why a frame could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The other side closed between two frames.
    #[error("the connection was closed")]
    Closed,
    /// The socket failed, or ended within a frame.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The length prefix is above [`MAX_FRAME_BYTES`].
    #[error("a frame of {0} bytes is too large")]
    TooLarge(usize),
    /// The bytes are no frame.
    #[error("malformed frame: {0}")]
    Malformed(&'static str),
}

/// Writes one frame. Fails with `InvalidInput` when it is larger than [`MAX_FRAME_BYTES`].
pub fn write_frame(to: &mut impl Write, frame: &Frame) -> io::Result<()> {
    let body = encode(frame);
    let length = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= MAX_FRAME_BYTES)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "frame too large"))?;
    let mut message = length.to_le_bytes().to_vec();
    message.extend_from_slice(&body);
    to.write_all(&message)
}

/// Reads one frame.
pub fn read_frame(from: &mut impl Read) -> Result<Frame, ProtocolError> {
    let mut prefix = [0; 4];
    let first = loop {
        match from.read(&mut prefix) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if first == 0 {
        return Err(ProtocolError::Closed);
    }
    from.read_exact(&mut prefix[first..])?;
    let length = u32::from_le_bytes(prefix) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(ProtocolError::TooLarge(length));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    decode(&body)
}

/// The bytes of a frame, without the length prefix.
pub fn encode(frame: &Frame) -> Vec<u8> {
    let mut out = Encoder(Vec::new());
    match frame {
        Frame::Hello { version, release } => {
            out.kind(1).u32(*version).text(release);
        }
        Frame::Run { process, timeout_ms } => {
            out.kind(2).process(process).option(*timeout_ms);
        }
        Frame::Put { path, mode } => {
            out.kind(3).text(path).u32(*mode);
        }
        Frame::Get { path } => {
            out.kind(4).text(path);
        }
        Frame::Spawn { name, process } => {
            out.kind(5).text(name).process(process);
        }
        Frame::Signal { name, signal } => {
            out.kind(6).text(name).i32(*signal);
        }
        Frame::Wait { name, timeout_ms } => {
            out.kind(7).text(name).option(*timeout_ms);
        }
        Frame::PowerOff => {
            out.kind(8);
        }
        Frame::Data(bytes) => {
            out.kind(9).bytes(bytes);
        }
        Frame::End => {
            out.kind(10);
        }
        Frame::Stdout(bytes) => {
            out.kind(11).bytes(bytes);
        }
        Frame::Stderr(bytes) => {
            out.kind(12).bytes(bytes);
        }
        Frame::Alive => {
            out.kind(13);
        }
        Frame::Done => {
            out.kind(14);
        }
        Frame::Exit(Status::Exited(code)) => {
            out.kind(15).i32(*code);
        }
        Frame::Exit(Status::Signaled(signal)) => {
            out.kind(16).i32(*signal);
        }
        Frame::Exit(Status::TimedOut) => {
            out.kind(17);
        }
        Frame::Failed { errno, message } => {
            out.kind(18).i32(*errno).text(message);
        }
    }
    out.0
}

/// The frame in `body`, which is what follows the length prefix.
pub fn decode(body: &[u8]) -> Result<Frame, ProtocolError> {
    let mut input = Decoder(body);
    let frame = match input.u8()? {
        1 => Frame::Hello { version: input.u32()?, release: input.text()? },
        2 => Frame::Run { process: input.process()?, timeout_ms: input.option()? },
        3 => Frame::Put { path: input.text()?, mode: input.u32()? },
        4 => Frame::Get { path: input.text()? },
        5 => Frame::Spawn { name: input.text()?, process: input.process()? },
        6 => Frame::Signal { name: input.text()?, signal: input.i32()? },
        7 => Frame::Wait { name: input.text()?, timeout_ms: input.option()? },
        8 => Frame::PowerOff,
        9 => Frame::Data(input.bytes()?),
        10 => Frame::End,
        11 => Frame::Stdout(input.bytes()?),
        12 => Frame::Stderr(input.bytes()?),
        13 => Frame::Alive,
        14 => Frame::Done,
        15 => Frame::Exit(Status::Exited(input.i32()?)),
        16 => Frame::Exit(Status::Signaled(input.i32()?)),
        17 => Frame::Exit(Status::TimedOut),
        18 => Frame::Failed { errno: input.i32()?, message: input.text()? },
        _ => return Err(ProtocolError::Malformed("unknown kind")),
    };
    if input.0.is_empty() { Ok(frame) } else { Err(ProtocolError::Malformed("bytes left over")) }
}

struct Encoder(Vec<u8>);

impl Encoder {
    fn kind(&mut self, kind: u8) -> &mut Self {
        self.0.push(kind);
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn i32(&mut self, value: i32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn bytes(&mut self, value: &[u8]) -> &mut Self {
        // What does not fit in u32 does not fit in a frame either: `write_frame` refuses it by its size.
        self.u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(value);
        self
    }

    fn text(&mut self, value: &str) -> &mut Self {
        self.bytes(value.as_bytes())
    }

    fn option(&mut self, value: Option<u64>) -> &mut Self {
        self.0.push(u8::from(value.is_some()));
        self.0.extend(value.into_iter().flat_map(u64::to_le_bytes));
        self
    }

    fn process(&mut self, value: &Process) -> &mut Self {
        self.u32(u32::try_from(value.argv.len()).unwrap_or(u32::MAX));
        for argument in &value.argv {
            self.text(argument);
        }
        self.u32(u32::try_from(value.env.len()).unwrap_or(u32::MAX));
        for (name, content) in &value.env {
            self.text(name).text(content);
        }
        self.0.push(u8::from(value.cwd.is_some()));
        if let Some(cwd) = &value.cwd {
            self.text(cwd);
        }
        self
    }
}

struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], ProtocolError> {
        let (head, tail) = self.0.split_at_checked(count).ok_or(ProtocolError::Malformed("cut short"))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, ProtocolError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, ProtocolError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn i32(&mut self) -> Result<i32, ProtocolError> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    fn present(&mut self) -> Result<bool, ProtocolError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ProtocolError::Malformed("neither 0 nor 1")),
        }
    }

    fn option(&mut self) -> Result<Option<u64>, ProtocolError> {
        Ok(if self.present()? { Some(u64::from_le_bytes(self.array()?)) } else { None })
    }

    fn bytes(&mut self) -> Result<Vec<u8>, ProtocolError> {
        let length = self.u32()? as usize;
        Ok(self.take(length)?.to_vec())
    }

    fn text(&mut self) -> Result<String, ProtocolError> {
        String::from_utf8(self.bytes()?).map_err(|_not_utf8| ProtocolError::Malformed("text is not UTF-8"))
    }

    fn process(&mut self) -> Result<Process, ProtocolError> {
        // The counts are not trusted with an allocation: every item has to be there first.
        let mut process = Process::default();
        for _ in 0..self.u32()? {
            process.argv.push(self.text()?);
        }
        for _ in 0..self.u32()? {
            process.env.push((self.text()?, self.text()?));
        }
        if self.present()? {
            process.cwd = Some(self.text()?);
        }
        Ok(process)
    }
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

    fn frame() -> impl Strategy<Value = Frame> {
        let bytes = || vec(any::<u8>(), 0..300);
        prop_oneof![
            (any::<u32>(), ".*").prop_map(|(version, release)| Frame::Hello { version, release }),
            (process(), any::<Option<u64>>())
                .prop_map(|(process, timeout_ms)| Frame::Run { process, timeout_ms }),
            (".*", any::<u32>()).prop_map(|(path, mode)| Frame::Put { path, mode }),
            ".*".prop_map(|path| Frame::Get { path }),
            (".*", process()).prop_map(|(name, process)| Frame::Spawn { name, process }),
            (".*", any::<i32>()).prop_map(|(name, signal)| Frame::Signal { name, signal }),
            (".*", any::<Option<u64>>()).prop_map(|(name, timeout_ms)| Frame::Wait { name, timeout_ms }),
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
            prop_assert!(matches!(read_frame(&mut wire), Err(ProtocolError::Closed)));
        }

        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
            if let Ok(frame) = decode(&bytes) {
                prop_assert_eq!(encode(&frame), bytes);
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
        assert!(matches!(read_frame(&mut claim.as_slice()), Err(ProtocolError::TooLarge(_))));
    }

    #[test]
    fn shell_codes() {
        assert_eq!(Status::Exited(7).shell_code(), 7);
        assert_eq!(Status::Signaled(9).shell_code(), 137);
        assert_eq!(Status::TimedOut.shell_code(), 124);
    }
}
