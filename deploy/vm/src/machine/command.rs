//! A command to run in the guest, and its output.

use std::fmt;
use std::io::Read;
use std::iter;
use std::time::Duration;

use crate::protocol::{CHUNK_BYTES, Frame, Process, Size, Status};

/// How long a command may take that says nothing else, and how long a guest is waited for: by then it hangs.
/// An emulated guest may have a part of a CPU only, so what takes half a minute alone can take two minutes.
pub const PATIENCE: Duration = Duration::from_mins(5);

/// A command for the guest; it starts in `/root` with a fixed `PATH` and `HOME` and nothing else in
/// its environment. It is killed when it takes longer than its limit.
#[derive(Clone, Debug)]
pub struct Command {
    pub(super) process: Process,
    pub(super) stdin: Vec<u8>,
    pub(super) limit: Option<Duration>,
    pub(super) terminal: Option<Size>,
}

impl Command {
    /// Runs `program`, which is searched in the guest's `PATH`.
    pub fn new(program: impl Into<String>) -> Self {
        let process = Process { argv: vec![program.into()], ..Process::default() };
        Self { process, stdin: Vec::new(), limit: Some(PATIENCE), terminal: None }
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

    /// Kills it, and what it started, after this long, instead of [`PATIENCE`]; its status is then
    /// [`Status::TimedOut`].
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Lets it take as long as it likes: a person watches it.
    #[must_use]
    pub fn unlimited(mut self) -> Self {
        self.limit = None;
        self
    }

    /// Gives it a terminal of this size, as a person has one, who takes as long as they like; all of its output is
    /// standard output then.
    #[must_use]
    pub fn terminal(mut self, size: Size) -> Self {
        self.terminal = Some(size);
        self.unlimited()
    }
}

/// What `from` has, as it comes, for a command that runs. What cannot be read ends it.
pub fn input(mut from: impl Read) -> impl Iterator<Item = Frame> {
    let mut chunk = vec![0; CHUNK_BYTES];
    iter::from_fn(move || match from.read(&mut chunk) {
        Ok(0) | Err(_) => None,
        Ok(count) => Some(Frame::Data(chunk[..count].to_vec())),
    })
}

/// Its words, as they were given.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.process.argv.join(" "))
    }
}

/// The result of a command: status and output.
#[derive(Clone, PartialEq, Eq)]
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

/// As text, for people: the last lines of each.
impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LINES: usize = 40;
        write!(f, "{:?}", self.status)?;
        for (name, text) in [("stdout", self.stdout_text()), ("stderr", self.stderr_text())] {
            let lines: Vec<_> = text.lines().collect();
            let (left_out, shown) = lines.split_at(lines.len().saturating_sub(LINES));
            match (shown, left_out.len()) {
                ([], _) => {}
                (_, 0) => write!(f, "\n{name}:\n{}", shown.join("\n"))?,
                (_, count) => write!(f, "\n{name}, without its first {count} lines:\n{}", shown.join("\n"))?,
            }
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_types_into_has_no_limit() {
        let size = Size { rows: 24, columns: 80 };
        assert_eq!(Command::new("sh").limit, Some(PATIENCE));
        assert_eq!(Command::new("sh").terminal(size).limit, None);
        assert_eq!(Command::new("sh").terminal(size).limit(PATIENCE).limit, Some(PATIENCE));
    }

    #[test]
    fn output_is_shown_as_text() {
        let output = |stdout: &str, stderr: &str| Output {
            status: Status::Exited(1),
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        assert_eq!(format!("{:?}", output("", "no such probe\n")), "Exited(1)\nstderr:\nno such probe");
        assert_eq!(format!("{:?}", output("", "")), "Exited(1)");
        let long = (1..=50).map(|number| number.to_string()).collect::<Vec<_>>().join("\n");
        let shown = format!("{:?}", output(&long, "why"));
        assert!(shown.starts_with("Exited(1)\nstdout, without its first 10 lines:\n11\n12\n"), "{shown}");
        assert!(shown.ends_with("\n50\nstderr:\nwhy"), "{shown}");
    }
}
