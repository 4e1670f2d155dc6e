//! QMP, QEMU's control protocol: lines of JSON over its standard input and output.
//!
//! Used for what the guest cannot do itself: stopping and continuing it, and writing its state to a
//! file.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::process::{ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

/// How long QEMU may take to answer a command.
const ANSWER: Duration = Duration::from_secs(20);

/// A connection on which commands are accepted.
#[derive(Debug)]
pub(super) struct Qmp {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    greeted: bool,
}

impl Qmp {
    pub(super) fn new(to: ChildStdin, from: ChildStdout) -> Self {
        Self { to, from: BufReader::new(from), greeted: false }
    }

    /// Runs one command, and answers what it returns. What QEMU reports meanwhile without a command is
    /// skipped.
    pub(super) fn command(&mut self, name: &str, arguments: &Value) -> io::Result<Value> {
        if !self.greeted {
            // The greeting waits in the pipe; it is skipped like everything that is not an answer.
            self.greeted = true;
            self.command("qmp_capabilities", &json!({}))?;
        }
        let request = json!({ "execute": name, "arguments": arguments });
        writeln!(self.to, "{request}")?;
        self.to.flush()?;
        let deadline = Instant::now() + ANSWER;
        loop {
            let line = self.line(deadline)?;
            let mut answer: Value = serde_json::from_str(&line).map_err(io::Error::other)?;
            if let Some(error) = answer.get("error") {
                let why = error["desc"].as_str().unwrap_or("no reason given");
                return Err(io::Error::other(format!("QEMU refuses {name}: {why}")));
            }
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
        }
    }

    fn line(&mut self, deadline: Instant) -> io::Result<String> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "QEMU does not answer");
        while !self.from.buffer().contains(&b'\n') {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = PollTimeout::try_from(left).map_err(|_too_long| late())?;
            let mut ready = [PollFd::new(self.from.get_ref().as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, left) {
                Ok(0) => return Err(late()),
                // A line of QEMU's is written at once.
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut line = String::new();
        match self.from.read_line(&mut line)? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "QEMU has ended")),
            _ => Ok(line),
        }
    }
}
