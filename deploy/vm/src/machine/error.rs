//! Errors of a machine: failures of the guest, of QEMU and of the host, each apart.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use super::Output;

/// Why a machine could not be started or used.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The guest's kernel panicked, or reported an oops, a bug, a lock-up or a stall.
    #[error("the guest kernel failed: {line}\n(serial log: {log})")]
    Panicked {
        /// The first line that says so.
        line: String,
        /// The whole serial log.
        log: PathBuf,
    },
    /// QEMU ended without having been asked to, and the serial log names no reason.
    #[error("QEMU ended unexpectedly ({status}){}\n(serial log: {log})", indented(.stderr))]
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// What QEMU itself had to say.
        stderr: String,
        /// The serial log.
        log: PathBuf,
    },
    /// The agent in the guest gave no sign of life for this long.
    #[error("the guest did not answer for {after:.1?}\n(serial log: {log})")]
    Hung {
        /// How long it was waited for.
        after: Duration,
        /// The serial log.
        log: PathBuf,
    },
    /// The agent ended the connection, or the guest went away, in the middle of a request, and
    /// nothing says why.
    #[error("lost the connection to the guest: {source}\n(serial log: {log})")]
    Lost {
        /// What the socket said.
        source: io::Error,
        /// The serial log.
        log: PathBuf,
    },
    /// The agent carried out the request and failed, or refused it.
    #[error("in the guest: {message}")]
    Refused {
        /// The guest kernel's errno; 0 when the agent itself refused.
        errno: i32,
        /// What was tried and what went wrong.
        message: String,
    },
    /// The agent speaks, but not as expected: host and guest were not built from the same source.
    #[error("the agent in the guest said something unexpected ({0}): was it built from this source?")]
    Unexpected(&'static str),
    /// The command took longer than it may, and was killed.
    #[error("`{command}` did not end within {after:.0?} and was killed; until then: {printed:?}")]
    TooLong {
        /// Its words.
        command: String,
        /// How long it may take.
        after: Duration,
        /// What it had printed.
        printed: Output,
    },
    /// The guest ended, but without having written everything to its disk first.
    #[error("the guest did not switch off cleanly ({status})\n(serial log: {log})")]
    UncleanPowerOff {
        /// How QEMU ended.
        status: ExitStatus,
        /// The serial log.
        log: PathBuf,
    },
    /// The host could not do its part.
    #[error("{what}: {source}")]
    Host {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl MachineError {
    /// Whether the guest itself failed, so that booting it again may help; otherwise the host or
    /// the request is at fault.
    pub fn is_guest_failure(&self) -> bool {
        match self {
            Self::Panicked { .. } | Self::Exited { .. } | Self::Hung { .. } | Self::Lost { .. } => true,
            Self::Refused { .. }
            | Self::Unexpected(_)
            | Self::TooLong { .. }
            | Self::UncleanPowerOff { .. }
            | Self::Host { .. } => false,
        }
    }
}

fn indented(text: &str) -> String {
    text.trim().lines().fold(String::new(), |shown, line| shown + "\n  " + line)
}
