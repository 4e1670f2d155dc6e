//! The state directory: creating it, and locking it for as long as the daemon runs.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use super::StartError;
use super::lock::{LockError, StateLock};

/// Makes the directory if it is missing.
pub(super) fn make(directory: &Path) -> Result<(), StartError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(failed("make the state directory", directory))
}

/// Locks the directory for as long as the daemon runs: two would fight over the same rows.
pub(super) fn claim(directory: &Path, socket: &Path) -> Result<StateLock, StartError> {
    StateLock::take(directory, socket).map_err(|error| match error {
        LockError::Held { path, holder } => StartError::AlreadyRunning { path, holder },
        LockError::Io(source) => failed("write to the state directory", directory)(source),
    })
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::StateDirectory { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_for_each_directory() {
        let parent = tempfile::tempdir().unwrap();
        let (directory, socket) = (parent.path().join("a/b"), Path::new("/run/k.sock"));
        make(&directory).unwrap();
        let held = claim(&directory, socket).unwrap();
        let refused = claim(&directory, socket).unwrap_err();
        assert!(matches!(refused, StartError::AlreadyRunning { .. }), "{refused}");
        drop(held);
        claim(&directory, socket).unwrap();
        fs::write(parent.path().join("file"), "").unwrap();
        let refused = make(&parent.path().join("file")).unwrap_err().to_string();
        assert!(refused.starts_with("cannot make the state directory `"), "{refused}");
    }
}
