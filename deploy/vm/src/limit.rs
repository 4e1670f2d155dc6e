//! Limits of programs that the host runs: a download or a build that hangs must not hang what waits for it.

use std::ffi::OsStr;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Result, ensure};

/// How long a download or a build may take.
pub const LIMIT: Duration = Duration::from_mins(30);

/// How timeout(1) ends if the time was over.
const TIMED_OUT: i32 = 124;

/// The words before a command with which it is killed when it takes longer than `limit`.
pub fn words(limit: Duration) -> [String; 4] {
    ["timeout", "--foreground", "--kill-after=10", &limit.as_secs().to_string()].map(str::to_owned)
}

/// A program that is killed when it takes longer than `limit`.
pub fn limited(limit: Duration, program: impl AsRef<OsStr>) -> Command {
    let [timeout, options @ ..] = words(limit);
    let mut command = Command::new(timeout);
    command.args(options).arg(program);
    command
}

/// An error if a program was killed because it took longer than `limit`.
pub fn ensure_in_time(limit: Duration, what: &str, status: ExitStatus) -> Result<()> {
    ensure!(status.code() != Some(TIMED_OUT), "{what} did not end within {} s", limit.as_secs());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let limit = Duration::from_secs(1);
        let status = limited(limit, "sleep").arg("1000").status().unwrap();
        let error = ensure_in_time(limit, "sleep", status).unwrap_err();
        assert_eq!(error.to_string(), "sleep did not end within 1 s");
        let status = limited(limit, "false").status().unwrap();
        assert!(!status.success() && ensure_in_time(limit, "false", status).is_ok());
    }
}
