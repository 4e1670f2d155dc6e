//! State file of a roll-out: locked by the process that drives it, and replaced as a whole.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::super::{Exit, Failure};
use crate::config::replace;
use crate::rollout::State;

/// A file that this process alone drives. The system gives the lock back when the process ends,
/// however it does.
#[derive(Debug)]
pub(super) struct StateFile {
    pub(super) path: PathBuf,
    _lock: Flock<File>,
}

impl StateFile {
    /// Takes the lock; the file need not exist.
    ///
    /// # Errors
    /// When another process has it.
    pub(super) fn lock(path: &Path) -> Result<Self, Failure> {
        let path = std::fs::canonicalize(path).unwrap_or_else(|_missing| path.to_owned());
        let mut beside = path.clone().into_os_string();
        beside.push(".lock");
        let failed = |error: io::Error| {
            Failure::new(Exit::Usage, format!("cannot lock `{}`: {error}", Path::new(&beside).display()), [])
        };
        if let Some(parent) = path.parent() {
            make_durable_directory(parent).map_err(failed)?;
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(&beside).map_err(failed)?;
        match Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err((_, Errno::EWOULDBLOCK)) => Err(Failure::usage(
                format!("another `kprobectl rollout` works on `{}`", path.display()),
                "wait for it, or interrupt it with Ctrl-C",
            )),
            Err((_, errno)) => Err(failed(errno.into())),
        }
    }

    /// Reads a state without the lock, for display.
    ///
    /// # Errors
    /// When there is none, or it is not valid.
    pub(super) fn read(path: &Path) -> Result<State, Failure> {
        let shown = path.display();
        let bytes = std::fs::read(path).map_err(|error| {
            let hint = "`kprobectl rollout apply` begins one, and `--state FILE` names it".to_owned();
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            Failure::new(Exit::Usage, format!("cannot read `{shown}`: {error}"), is_missing.then_some(hint))
        })?;
        State::decode(&bytes)
            .map_err(|problem| Failure::new(Exit::Usage, format!("`{shown}` cannot be used: {problem}"), []))
    }

    /// Replaces the file: whenever the machine stops, it has the old state or the new one. When
    /// this returns, it is the new one: file and directory are on the disk.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn write(&self, state: &State) -> Result<(), Failure> {
        let bytes = state.encode().map_err(io::Error::from)?;
        Ok(replace(&self.path, &bytes)?)
    }

    /// Keeps a state in a file beside, before another roll-out takes its place.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn keep(&self, state: &State) -> Result<PathBuf, Failure> {
        let mut beside = self.path.clone().into_os_string();
        beside.push(".previous");
        let path = PathBuf::from(beside);
        let bytes = state.encode().map_err(io::Error::from)?;
        replace(&path, &bytes)?;
        Ok(path)
    }
}

/// Makes a directory with all that leads to it. When this returns, they are on the disk: otherwise
/// a file in them could be lost with its directory.
fn make_durable_directory(directory: &Path) -> io::Result<()> {
    if directory.as_os_str().is_empty() || directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_durable_directory(parent)?;
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::{Gates, OnFailure, Setting};

    fn state() -> State {
        let text = "probe: k/a\ndefinition: p:k/a vfs_read\n";
        let documents = kprobed_document::read(text).unwrap().into_iter().map(|entry| entry.document);
        let setting = Setting {
            documents: documents.collect(),
            waves: "100%".to_owned(),
            gates: Gates::with(&[]),
            soak_ms: 1000,
            on_failure: OnFailure::Undo,
            tolerated: 0,
        };
        State::new("r".to_owned(), setting, Vec::new())
    }

    fn refusal<T>(found: Result<T, Failure>) -> String {
        found.map(drop).unwrap_err().to_string()
    }

    #[test]
    fn one_process_drives_a_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/rollout.json");
        let file = StateFile::lock(&path).unwrap();
        assert!(refusal(StateFile::lock(&path)).starts_with("another `kprobectl rollout` works on `"));
        file.write(&state()).unwrap();
        assert!(refusal(StateFile::lock(&path)).starts_with("another `kprobectl rollout` works on `"));
        assert_eq!(StateFile::read(&path).unwrap(), state());
        drop(file);
        StateFile::lock(&path).unwrap();
        let absent = refusal(StateFile::read(&directory.path().join("absent")));
        assert!(absent.starts_with("cannot read `"), "{absent}");
    }

    /// Whether they outlive a power cut shows on a real disk only; here, that nothing is left out of
    /// the path.
    #[test]
    fn directories_are_made_as_deep_as_asked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/c/rollout.json");
        for _ in 0..2 {
            StateFile::lock(&path).unwrap().write(&state()).unwrap();
        }
        assert_eq!(StateFile::read(&path).unwrap(), state());
        std::fs::write(directory.path().join("file"), "").unwrap();
        let below_a_file = refusal(StateFile::lock(&directory.path().join("file/rollout.json")));
        assert!(below_a_file.starts_with("cannot lock `"), "{below_a_file}");
    }
}
