//! Exit codes, and the failures of commands with their hints.
//!
//! Owns the exit codes, which `kprobectl --help` documents.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use kprobed_client::Error;
use kprobed_client::fleet::{Operation, Outcome};
use kprobed_lines::LinesError;
use tonic::Code;

use crate::config::ConfigError;
use crate::lines::LineProblem;
use crate::output::Output;

/// An exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// Everything was done.
    Success = 0,
    /// Refused, not found, or a check failed.
    Refused = 1,
    /// Wrong usage, or a file that cannot be used; clap uses the same number.
    Usage = 2,
    /// The daemon cannot be reached.
    Unreachable = 3,
    /// Interrupted or disconnected before all was done.
    Interrupted = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    hints: Vec<String>,
    /// What the client library says, if a call failed.
    error: Option<Box<Error>>,
    /// More that is wrong, as with documents.
    more: Vec<Self>,
}

impl Failure {
    pub(crate) fn new(
        exit: Exit,
        message: impl Into<String>,
        hints: impl IntoIterator<Item = String>,
    ) -> Self {
        let hints = hints.into_iter().collect();
        Self { exit, message: message.into(), hints, error: None, more: Vec::new() }
    }

    /// Wrong usage that clap cannot see.
    pub(crate) fn usage(message: impl Into<String>, hint: &str) -> Self {
        Self::new(Exit::Usage, message, [hint.to_owned()])
    }

    /// What is asked for cannot be done.
    pub(crate) fn refused(message: impl Into<String>, hint: &str) -> Self {
        Self::new(Exit::Refused, message, [hint.to_owned()])
    }

    /// Several, of which there is at least one.
    pub(crate) fn all(mut failures: Vec<Self>) -> Option<Self> {
        if failures.is_empty() {
            return None;
        }
        let mut first = failures.remove(0);
        first.more = failures;
        Some(first)
    }

    /// The same, with one more hint.
    pub(super) fn with_hint(mut self, hint: Option<String>) -> Self {
        self.hints.extend(hint);
        self
    }

    /// The same, with the place that it is about.
    pub(super) fn at(self, place: &str) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }

    /// A command for one daemon that is asked to talk to several hosts.
    pub(crate) fn one_host_only() -> Self {
        let message = "this command talks to one daemon, and `--hosts` or `--host-selector` asks for a fleet";
        let hint = "add `--server ADDRESS` instead: an output without an end, aggregations by name and bundles are of one host";
        Self::usage(message, hint)
    }

    /// A file that cannot be read; `-` is standard input.
    pub(crate) fn unreadable(path: &Path, why: &io::Error) -> Self {
        let path = path.display().to_string();
        let file = if path == "-" { "standard input".to_owned() } else { format!("`{path}`") };
        Self::new(Exit::Usage, format!("cannot read {file}: {why}"), [])
    }

    /// The daemon stopped, most likely.
    pub(crate) fn stream_ended() -> Self {
        Self::new(Exit::Interrupted, "the daemon ended the stream", [IS_IT_RUNNING.to_owned()])
    }

    /// Ctrl-C, with what that leaves behind, if anything.
    pub(crate) fn interrupted(left: Option<&str>) -> Self {
        Self::new(Exit::Interrupted, "interrupted", left.map(str::to_owned))
    }

    /// The same failure, after a stream had begun.
    pub(crate) fn in_stream(mut self) -> Self {
        match self.error.as_deref() {
            None => {}
            Some(Error::Malformed(_)) => self.exit = Exit::Refused,
            Some(error) => {
                self.exit = Exit::Interrupted;
                if matches!(error, Error::Disconnected { .. }) {
                    self.hints = vec![IS_IT_RUNNING.to_owned()];
                }
            }
        }
        self
    }

    /// Whether the reader of stdout closed the pipe. It needs no more output, and so that is a success.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.exit == Exit::Success
    }

    #[cfg(test)]
    pub(super) fn hints(&self) -> &[String] {
        &self.hints
    }

    /// The same as a failure of `diff`, which says by the exit code of a refusal that there is a difference.
    #[must_use]
    pub(crate) fn of_diff(self) -> Self {
        let exit = if self.exit == Exit::Refused { Exit::Usage } else { self.exit };
        Self { exit, more: self.more.into_iter().map(Self::of_diff).collect(), ..self }
    }

    /// Prints the failure and gives its exit code.
    pub(crate) fn report(&self, output: &mut Output) -> Exit {
        if self.exit != Exit::Success {
            let refusal = self.error.as_deref().and_then(Error::rpc);
            output.failure(self.exit as u8, &self.message, &self.hints, refusal);
        }
        self.more.iter().map(|more| more.report(output)).fold(self.exit, Ord::max)
    }
}

const IS_IT_RUNNING: &str = "is the daemon running? `systemctl status kprobed`";

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match &error {
            Error::Connect { .. } | Error::CertificateRefused(_) | Error::Timeout { .. } => Exit::Unreachable,
            Error::Rpc(error) if error.code == Code::Unavailable => Exit::Unreachable,
            Error::Disconnected { .. } => Exit::Interrupted,
            _ => Exit::Refused,
        };
        let failure = Self::new(exit, error.to_string(), error.hints());
        Self { error: Some(Box::new(error)), ..failure }
    }
}

/// What debug information does not answer.
impl From<LinesError> for Failure {
    fn from(error: LinesError) -> Self {
        let hint = error.hint_text().map(str::to_owned);
        Self::new(Exit::Refused, error.message(), hint)
    }
}

impl From<LineProblem> for Failure {
    fn from(problem: LineProblem) -> Self {
        match problem {
            LineProblem::Host(error) => error.into(),
            LineProblem::Lines(error) => error.into(),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(Exit::Usage, error.to_string(), error.hint())
    }
}

/// Of writing to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let is_closed = error.kind() == io::ErrorKind::BrokenPipe;
        let exit = if is_closed { Exit::Success } else { Exit::Refused };
        Self::new(exit, format!("cannot write standard output: {error}"), [])
    }
}

impl Operation for Failure {
    fn outcome(&self) -> Outcome {
        match (&self.error, self.exit) {
            (Some(error), _) => error.outcome(),
            (None, Exit::Refused) => Outcome::Refused,
            (None, Exit::Unreachable) => Outcome::Unreachable,
            (None, Exit::Interrupted) => Outcome::Failed,
            // A local problem, found before any host was asked.
            (None, Exit::Success | Exit::Usage) => Outcome::NotTried,
        }
    }
}
