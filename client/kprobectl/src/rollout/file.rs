//! State file of a roll-out: locked by the process that drives it, and replaced as a whole.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::state::{FormError, State};
use crate::config::{ConfigError, replace};

/// Why a state cannot be read, written or driven.
#[derive(Debug, Error)]
pub(crate) enum StateError {
    /// Cannot be read.
    #[error("cannot read `{path}`: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not a state that this command understands.
    #[error("`{path}` cannot be used: {problem}")]
    Form {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: FormError,
    },
    /// Another client drives it.
    #[error("another `kprobectl rollout` works on `{0}`")]
    InUse(PathBuf),
    /// The lock cannot be taken.
    #[error("cannot lock `{path}`: {source}")]
    Lock {
        /// The file of the lock.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Cannot be written.
    #[error(transparent)]
    Write(#[from] ConfigError),
    /// A value without a JSON form; no state has one.
    #[error("the state cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl StateError {
    /// What to do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("`kprobectl rollout apply` begins one, and `--state FILE` names it".to_owned())
            }
            Self::InUse(_) => Some("wait for it, or interrupt it with Ctrl-C".to_owned()),
            Self::Write(error) => error.hint(),
            Self::Read { .. } | Self::Form { .. } | Self::Lock { .. } | Self::Json(_) => None,
        }
    }
}

/// A file that this process alone drives. The system gives the lock back when the process ends,
/// however it does.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    _lock: File,
}

impl StateFile {
    /// Takes the lock; the file need not exist.
    ///
    /// # Errors
    /// [`StateError::InUse`] when another process has it.
    pub(crate) fn lock(path: &Path) -> Result<Self, StateError> {
        let path = std::fs::canonicalize(path).unwrap_or_else(|_missing| path.to_owned());
        let mut beside = path.clone().into_os_string();
        beside.push(".lock");
        let beside = PathBuf::from(beside);
        let failed = |source| StateError::Lock { path: beside.clone(), source };
        if let Some(parent) = path.parent() {
            make_durable_directory(parent).map_err(failed)?;
        }
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&beside)
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(StateError::InUse(path)),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    /// Reads a state without the lock, for display.
    ///
    /// # Errors
    /// When there is none, or it is not valid.
    pub(crate) fn read(path: &Path) -> Result<State, StateError> {
        let bytes =
            std::fs::read(path).map_err(|source| StateError::Read { path: path.to_owned(), source })?;
        State::decode(&bytes).map_err(|problem| StateError::Form { path: path.to_owned(), problem })
    }

    /// Replaces the file: whenever the machine stops, it has the old state or the new one. When
    /// this returns, it is the new one: file and directory are on the disk.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, state: &State) -> Result<(), StateError> {
        Ok(replace(&self.path, &state.encode()?)?)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
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
