//! A command to run in the guest, and its output.

use std::io::Read;
use std::iter;
use std::time::Duration;

use crate::protocol::{CHUNK_BYTES, Process, Size, Status};

/// A command for the guest; it starts in `/root` with a fixed `PATH` and `HOME` and nothing else in
/// its environment.
#[derive(Clone, Debug, Default)]
pub struct Command {
    pub(super) process: Process,
    pub(super) stdin: Vec<u8>,
    pub(super) timeout: Option<Duration>,
    pub(super) terminal: Option<Size>,
}

impl Command {
    /// Runs `program`, which is searched in the guest's `PATH`.
    pub fn new(program: impl Into<String>) -> Self {
        Self { process: Process { argv: vec![program.into()], ..Process::default() }, ..Self::default() }
    }

    /// Runs a line of shell (busybox's).
    pub fn shell(script: impl Into<String>) -> Self {
        Self::new("/bin/sh").arg("-c").arg(script)
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.process.argv.push(argument.into());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.process.argv.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// One more environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.process.env.push((name.into(), value.into()));
        self
    }

    /// The working directory.
    #[must_use]
    pub fn cwd(mut self, directory: impl Into<String>) -> Self {
        self.process.cwd = Some(directory.into());
        self
    }

    /// Bytes for its standard input, which is empty otherwise.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Kills it, and what it started, after this long; its status is then [`Status::TimedOut`].
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Gives it a terminal of this size, as a person has one; all of its output is standard output then.
    #[must_use]
    pub fn terminal(mut self, size: Size) -> Self {
        self.terminal = Some(size);
        self
    }
}

/// What a command is given while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Bytes for its standard input, or typed at its terminal.
    Bytes(Vec<u8>),
    /// Its terminal has another size.
    Resized(Size),
}

impl Input {
    /// What `from` has, as it comes. What cannot be read ends it.
    pub fn read(mut from: impl Read) -> impl Iterator<Item = Self> {
        let mut chunk = vec![0; CHUNK_BYTES];
        iter::from_fn(move || match from.read(&mut chunk) {
            Ok(0) | Err(_) => None,
            Ok(count) => Some(Self::Bytes(chunk[..count].to_vec())),
        })
    }
}

/// The result of a command: status and output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub status: Status,
    /// All of its standard output.
    pub stdout: Vec<u8>,
    /// All of its standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard output as text, bytes that are not UTF-8 replaced.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text, bytes that are not UTF-8 replaced.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// Which of a command's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}
