//! Files of the database: creating them, closing them to other users, and moving damaged ones out of the way.
//!
//! Owns their names and modes. Never reads their contents. SQLite makes `-wal` and `-shm` with the
//! mode of the database itself.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::StoreError;

/// Filters and definitions show what a host is watched for: only the daemon may read them.
const DIRECTORY_MODE: u32 = 0o700;
pub(super) const FILE_MODE: u32 = 0o600;

const DATABASE: &str = "kprobed.db";

/// Prefixes of the names of backup copies, and of damaged databases.
pub(super) const BACKUP: &str = "kprobed.db.backup";
const SET_ASIDE: &str = "kprobed.db.damaged";

/// Room that is kept: see [`super::reserve`].
pub(super) const RESERVE: &str = "kprobed.reserve";

/// Suffix of the name of a database's log.
const WAL: &str = "-wal";
const SUFFIXES: [&str; 4] = ["", WAL, "-shm", "-journal"];

/// What else may be in a directory that belongs to the daemon alone.
const NEIGHBOURS: [&str; 4] = ["kprobed.lock", RESERVE, "spool", "lost+found"];

/// Makes the directory and an empty database if there is none, and closes them to all other users.
/// Returns the path of the database.
///
/// # Errors
/// [`StoreError::Directory`].
pub(super) fn prepare(directory: &Path) -> Result<PathBuf, StoreError> {
    make_directory(directory)?;
    let path = directory.join(DATABASE);
    match OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&path) {
        // Its name must be on the disk before anything in it counts.
        Ok(_) => sync(directory)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(StoreError::directory("make", &path)(error)),
    }
    for file in of_database(&path) {
        close_to_others(&file, FILE_MODE).map_err(StoreError::directory("set the permissions of", &path))?;
    }
    Ok(path)
}

fn make_directory(directory: &Path) -> Result<(), StoreError> {
    let failed = |action| StoreError::directory(action, directory);
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        fs::create_dir_all(parent).map_err(failed("make"))?;
    }
    match DirBuilder::new().mode(DIRECTORY_MODE).create(directory) {
        Ok(()) => parent.map_or(Ok(()), sync),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // The daemon does not close a directory that other programs use too.
            if is_own(directory).map_err(failed("list"))? {
                close_to_others(directory, DIRECTORY_MODE).map_err(failed("set the permissions of"))?;
            }
            Ok(())
        }
        Err(error) => Err(failed("make")(error)),
    }
}

/// Whether the directory contains only the daemon's own files.
fn is_own(directory: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let ours = |name: &str| {
            NEIGHBOURS.contains(&name)
                || name.strip_prefix(DATABASE).is_some_and(|rest| SUFFIXES.contains(&rest))
                || [BACKUP, SET_ASIDE].iter().any(|kind| name.starts_with(kind))
        };
        if !name.to_str().is_some_and(ours) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the rights of other users, if they have any. A file that does not exist has none.
fn close_to_others(path: &Path, mode: u32) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.permissions().mode() & 0o7777 == mode => Ok(()),
        Ok(_) => fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The files of a database of this name, whether they exist or not. The first is the database
/// itself.
pub(super) fn of_database(path: &Path) -> [PathBuf; 4] {
    SUFFIXES.map(|suffix| with_suffix(path, suffix))
}

/// A name that no file has, made of a kind and a time: `KIND-20260131T120000Z`. Names are in the
/// order of time.
pub(super) fn unused(directory: &Path, kind: &str, now: SystemTime) -> PathBuf {
    let time = prost_types::Timestamp::from(now);
    let time = prost_types::Timestamp { nanos: 0, ..time }.to_string().replace(['-', ':'], "");
    let name = |number: u32| match number {
        1 => directory.join(format!("{kind}-{time}")),
        _ => directory.join(format!("{kind}-{time}.{number}")),
    };
    let is_used = |path: &PathBuf| of_database(path).iter().any(|file| file.symlink_metadata().is_ok());
    (1..u32::MAX).map(name).find(|path| !is_used(path)).unwrap_or_else(|| name(u32::MAX))
}

/// The databases of a kind in a directory, in the order of their names.
pub(super) fn named(directory: &Path, kind: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        let is_companion = SUFFIXES.iter().any(|suffix| !suffix.is_empty() && text.ends_with(suffix));
        if text.strip_prefix(kind).is_some_and(|rest| rest.starts_with('-')) && !is_companion {
            found.push(directory.join(&name));
        }
    }
    found.sort();
    Ok(found)
}

/// Moves a damaged database out of the way: it is renamed, with its log and shared memory, and never overwritten or
/// deleted. The log goes first: SQLite would read a log that stayed into the next database.
pub(super) fn set_aside(
    directory: &Path,
    path: &Path,
    damage: &str,
    now: SystemTime,
) -> Result<(), StoreError> {
    let aside = unused(directory, SET_ASIDE, now);
    for (from, to) in of_database(path).into_iter().zip(of_database(&aside)).rev() {
        if let Err(source) = fs::rename(&from, &to)
            && source.kind() != io::ErrorKind::NotFound
        {
            return Err(StoreError::Directory { action: "set aside", path: from, source });
        }
    }
    sync(directory)?;
    tracing::error!(
        database = %path.display(),
        set_aside = %aside.display(),
        damage,
        "the database is damaged: it was set aside, and the daemon begins with an empty one, without any probe"
    );
    Ok(())
}

/// The damaged databases that were set aside and are still in a directory, the oldest first. An operator is shown that
/// they exist, until they are removed or moved elsewhere.
///
/// # Errors
/// When the directory cannot be read.
pub fn set_aside_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    named(directory, SET_ASIDE)
}

/// Syncs a directory or a file.
pub(super) fn sync(path: &Path) -> Result<(), StoreError> {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(StoreError::directory("sync", path))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Which files have the names of the database and of its log: writes to any other files are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity([(u64, u64); 2]);

impl Identity {
    /// Absent if one of the files does not exist.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let identity = |suffix: &str| {
            let found = fs::metadata(with_suffix(path, suffix)).ok()?;
            Some((found.dev(), found.ino()))
        };
        Some(Self([identity("")?, identity(WAL)?]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn the_files_are_for_the_daemon_alone() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("a/state");
        let path = prepare(&directory).unwrap();
        assert_eq!((mode(&directory), mode(&path)), (0o700, 0o600));
        // Files that an earlier version left open to other users are closed.
        for (path, open) in [(&directory, 0o755), (&path, 0o644)] {
            fs::set_permissions(path, Permissions::from_mode(open)).unwrap();
        }
        fs::write(with_suffix(&path, "-wal"), "").unwrap();
        prepare(&directory).unwrap();
        let wal = with_suffix(&path, "-wal");
        assert_eq!((mode(&directory), mode(&path), mode(&wal)), (0o700, 0o600, 0o600));
    }

    #[test]
    fn a_directory_that_others_use_stays_open() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        fs::write(directory.path().join("notes"), "").unwrap();
        let path = prepare(directory.path()).unwrap();
        assert_eq!((mode(directory.path()), mode(&path)), (0o755, 0o600));
    }

    #[test]
    fn another_file_of_the_same_name_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = prepare(directory.path()).unwrap();
        let wal = with_suffix(&path, "-wal");
        assert_eq!(Identity::of(&path), None);
        fs::write(&wal, "").unwrap();
        let identity = Identity::of(&path);
        assert!(identity.is_some() && identity == Identity::of(&path));
        fs::rename(&wal, with_suffix(&path, "-old")).unwrap();
        fs::write(&wal, "").unwrap();
        assert_ne!(Identity::of(&path), identity);
    }
}
