//! The real `kprobectl`, in an environment that is the same everywhere.

use std::process::{Command, Stdio};

use super::fake::{Fake, shown};

/// The command, talking to no daemon in particular.
pub(crate) fn kprobectl(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprobectl"));
    command.args(arguments).env_clear().env("TZ", "UTC").env("COLUMNS", "100").stdin(Stdio::null());
    command
}

impl Fake {
    /// The command, talking to this fake.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = kprobectl(arguments);
        command.env("KPROBED_SERVER", self.socket());
        command
    }

    /// Runs the command, and shows all that it did.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        shown(&self.command(arguments).output().unwrap())
    }
}
