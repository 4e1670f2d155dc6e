//! Exit codes, and the failures of commands with their hints.
//!
//! Owns the exit codes, which `kprobectl --help` documents.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use kprobed_client::Error;
use kprobed_client::api::Function;
use kprobed_client::fleet::{Operation, Outcome};
use thiserror::Error;
use tonic::Code;

use crate::config::ConfigError;
use crate::output::Output;

/// An exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// Everything was done.
    Success = 0,
    /// Refused, not found, or a check failed.
    Refused = 1,
    /// Wrong usage; clap uses the same number.
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
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// A call failed.
    #[error(transparent)]
    Client(#[from] Error),
    /// The configuration, or what it names, is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The arguments are wrong.
    #[error("{message}")]
    Usage {
        /// What is wrong.
        message: String,
        /// What to do instead.
        hint: Option<String>,
    },
    /// No probe matches.
    #[error("no probe matches `{0}`")]
    NoMatch(String),
    /// The probe has the label with another value.
    #[error("`{probe}` has the label `{label}`")]
    Labelled {
        /// The probe.
        probe: String,
        /// Key and value.
        label: String,
    },
    /// No such function.
    #[error("{problem}")]
    NoFunction {
        /// What was not found.
        problem: String,
        /// Similar names.
        suggestions: Vec<String>,
    },
    /// Several functions of that name.
    #[error("{} functions are named `{name}`", candidates.len())]
    SeveralFunctions {
        /// Options of a roll-out.
        name: String,
        /// All of them.
        candidates: Vec<Function>,
    },
    /// A file that was named cannot be read.
    #[error("cannot read `{path}`: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that was named cannot be written.
    #[error("cannot write `{path}`: {source}")]
    NotWritten {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A program that was named cannot be started.
    #[error("cannot run `{program}`: {source}")]
    NotStarted {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// Standard input cannot be read.
    #[error("cannot read standard input: {0}")]
    Input(#[source] io::Error),
    /// Standard output cannot be written.
    #[error("cannot write standard output: {0}")]
    Output(#[from] io::Error),
    /// Signals cannot be listened to.
    #[error("cannot listen to signals: {0}")]
    Signals(#[source] io::Error),
    /// The daemon stopped, most likely.
    #[error("the daemon ended the stream")]
    StreamEnded,
    /// A stream broke off.
    #[error(transparent)]
    InStream(Error),
    /// A last reading failed.
    #[error("cannot read the final counts")]
    NotCounted,
    /// Published events cannot be read.
    #[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "made with the feature only"))]
    #[error("{message}")]
    Published {
        /// What was tried, and what came of it.
        message: String,
        /// What to do about it.
        hint: &'static str,
        /// The server answered.
        is_there: bool,
    },
    /// Ctrl-C, while a roll-out went on.
    #[error("interrupted: the roll-out stands in `{0}`")]
    RolloutInterrupted(PathBuf),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    /// Wrong usage that clap cannot see.
    pub(crate) fn usage(message: String, hint: Option<String>) -> Self {
        Self::Usage { message, hint }
    }

    /// A command for one daemon that is asked to talk to several hosts.
    pub(crate) fn one_host_only() -> Self {
        let message = "this command talks to one daemon, and `--hosts` or `--host-selector` asks for a fleet"
            .to_owned();
        let hint = "add `--server ADDRESS` instead: an output without an end, aggregations by name and bundles are of one host";
        Self::usage(message, Some(hint.to_owned()))
    }

    /// The same failure, after a stream had begun.
    pub(crate) fn in_stream(self) -> Self {
        match self {
            Self::Client(error) => Self::InStream(error),
            other => other,
        }
    }

    /// Whether the reader of stdout closed the pipe.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Client(Error::Connect { .. } | Error::CertificateRefused(_) | Error::Timeout(_))
            | Self::Published { is_there: false, .. } => Exit::Unreachable,
            Self::Client(Error::Rpc(error)) if error.code == Code::Unavailable => Exit::Unreachable,
            Self::InStream(Error::Malformed(_)) => Exit::Refused,
            Self::Client(Error::Disconnected(_))
            | Self::InStream(_)
            | Self::StreamEnded
            | Self::RolloutInterrupted(_)
            | Self::Interrupted => Exit::Interrupted,
            Self::Usage { .. } | Self::Config(_) => Exit::Usage,
            // The reader that closed the pipe needs no more output.
            Self::Output(_) if self.is_broken_pipe() => Exit::Success,
            Self::Client(_)
            | Self::Published { .. }
            | Self::NoMatch(_)
            | Self::Labelled { .. }
            | Self::NoFunction { .. }
            | Self::SeveralFunctions { .. }
            | Self::File { .. }
            | Self::NotWritten { .. }
            | Self::NotStarted { .. }
            | Self::Input(_)
            | Self::NotCounted
            | Self::Output(_)
            | Self::Signals(_) => Exit::Refused,
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Usage { hint, .. } => hint.iter().cloned().collect(),
            Self::Config(error) => error.hint().into_iter().collect(),
            Self::Published { hint, .. } => vec![(*hint).to_owned()],
            Self::NoMatch(_) => vec!["`kprobectl list` shows all probes".to_owned()],
            Self::Labelled { .. } => vec!["`--overwrite` replaces its value".to_owned()],
            Self::NoFunction { suggestions, .. } => {
                suggestions.iter().map(|name| format!("did you mean `{name}`?")).collect()
            }
            Self::SeveralFunctions { candidates, .. } => candidates.iter().map(candidate).collect(),
            Self::Interrupted => vec![
                "the daemon may have carried out the request: `kprobectl list` shows the probes".to_owned(),
            ],
            Self::InStream(Error::Disconnected(_)) | Self::StreamEnded => {
                vec!["is the daemon running? `systemctl status kprobed`".to_owned()]
            }
            Self::RolloutInterrupted(path) => {
                let path = path.display();
                vec![format!(
                    "`kprobectl rollout resume --state {path}` goes on, and `kprobectl rollout undo --state {path}` puts everything back"
                )]
            }
            Self::NotCounted => vec!["the daemon's log has the reason: `journalctl -u kprobed`".to_owned()],
            Self::Client(error) | Self::InStream(error) => error.hints(),
            Self::File { .. }
            | Self::NotWritten { .. }
            | Self::NotStarted { .. }
            | Self::Input(_)
            | Self::Output(_)
            | Self::Signals(_) => Vec::new(),
        }
    }

    /// Prints the failure and gives its exit code.
    pub(crate) fn report(&self, output: &mut Output) -> Exit {
        let exit = self.exit();
        match self {
            _ if exit == Exit::Success => {}
            Self::Client(Error::Rpc(error)) | Self::InStream(Error::Rpc(error)) => {
                output.refusal(error, &self.hints());
            }
            _ => output.error(&self.to_string(), &self.hints()),
        }
        exit
    }
}

impl Operation for Failure {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Client(error) | Self::InStream(error) => error.outcome(),
            Self::NoMatch(_)
            | Self::Labelled { .. }
            | Self::NoFunction { .. }
            | Self::SeveralFunctions { .. } => Outcome::Refused,
            Self::StreamEnded | Self::NotCounted | Self::Interrupted | Self::RolloutInterrupted(_) => {
                Outcome::Failed
            }
            Self::Published { is_there: true, .. } => Outcome::Failed,
            Self::Published { is_there: false, .. } => Outcome::Unreachable,
            // A local problem, found before any host was asked.
            Self::Config(_)
            | Self::Usage { .. }
            | Self::File { .. }
            | Self::NotWritten { .. }
            | Self::NotStarted { .. }
            | Self::Input(_)
            | Self::Output(_)
            | Self::Signals(_) => Outcome::NotTried,
        }
    }
}

/// How to name one of several functions.
fn candidate(function: &Function) -> String {
    let place = match function.place.as_str() {
        "" => "only its address names it",
        place => &format!("write `{place}`"),
    };
    let module = match function.module.as_str() {
        "" => String::new(),
        module => format!(" of module {module}"),
    };
    format!("{place}: {} bytes{module}", function.size_bytes)
}
