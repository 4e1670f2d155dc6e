//! The real `kprobectl`, in an environment that is the same everywhere.

use std::path::Path;
use std::process::{Command, Stdio};

use super::fake::{Fake, shown};

/// The command, talking to no daemon in particular.
pub(crate) fn kprobectl(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprobectl"));
    command.args(arguments).env_clear().env("TZ", "UTC").env("COLUMNS", "100").stdin(Stdio::null());
    command
}

/// The same with the configuration and the state in this directory.
pub(crate) fn kprobectl_in(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = kprobectl(arguments);
    command.env("KPROBECTL_CONFIG", directory.join("config.yaml")).env("XDG_STATE_HOME", directory);
    command
}

impl Fake {
    /// The command, talking to this fake.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = kprobectl(arguments);
        command.env("KPROBED_SERVER", self.socket());
        command
    }

    /// Runs the command on a terminal of this width, and shows all that it did. No line of its data is wider.
    pub(crate) fn run_in(&self, columns: usize, arguments: &[&str]) -> String {
        let output = self.command(arguments).env("COLUMNS", columns.to_string()).output().unwrap();
        let stdout = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(stdout.lines().all(|line| line.chars().count() <= columns), "{columns}: {stdout}");
        shown(&output)
    }

    /// Runs the command, and shows all that it did.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        shown(&self.command(arguments).output().unwrap())
    }
}
