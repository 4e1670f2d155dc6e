//! Directory of the spool, and its files.
//!
//! Owns creating, naming, removing and replacing files, and their modes. Never reads their
//! contents, except as bytes.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::SpoolError;
use super::segment::SegmentId;

/// Events hold memory of the kernel and of programs: only the daemon may read them.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The list of expired events.
pub(super) const EXPIRED: &str = "expired";
/// The list of runs that ended in order.
pub(super) const ENDED: &str = "ended";

/// Follows the name of a file that was set aside. A number can follow.
const ASIDE: &str = ".bad";

/// The directory, locked for this process while it exists.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    /// Unlocked when it is dropped, whatever child has a copy of its descriptor.
    directory: Flock<File>,
}

impl Files {
    /// Opens or creates the directory, and locks it for this process.
    ///
    /// # Errors
    /// [`SpoolError::InUse`], or [`SpoolError::Io`].
    pub(super) fn open(path: &Path) -> Result<Self, SpoolError> {
        let make = SpoolError::io("make", path);
        let made = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| DirBuilder::new().mode(DIRECTORY_MODE).create(path));
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(make(error)),
            _ => {}
        }
        fs::set_permissions(path, Permissions::from_mode(DIRECTORY_MODE))
            .map_err(SpoolError::io("set the permissions of", path))?;
        let directory = File::open(path).map_err(SpoolError::io("open", path))?;
        match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
            Ok(directory) => Ok(Self { path: path.to_owned(), directory }),
            Err((_, Errno::EWOULDBLOCK)) => Err(SpoolError::InUse { path: path.to_owned() }),
            Err((_, errno)) => Err(SpoolError::io("lock", path)(errno.into())),
        }
    }

    /// The directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file of a segment.
    pub(super) fn segment(&self, id: SegmentId) -> PathBuf {
        self.path.join(id.to_string())
    }

    /// The segments in the directory, in order. Files with any other name are ignored.
    pub(super) fn segments(&self) -> Result<Vec<SegmentId>, SpoolError> {
        let mut ids: Vec<_> = self.names()?.iter().filter_map(|name| SegmentId::parse(name)).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    fn names(&self) -> Result<Vec<String>, SpoolError> {
        let read = || {
            let names = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name()));
            names.collect::<io::Result<Vec<_>>>()
        };
        let names = read().map_err(SpoolError::io("list", &self.path))?;
        Ok(names.iter().filter_map(|name| OsStr::to_str(name)).map(str::to_owned).collect())
    }

    /// The segments that were set aside, with the name of the file and the time at which it was last changed, in
    /// nanoseconds since 1970.
    pub(super) fn segments_aside(&self) -> Result<Vec<(SegmentId, String, u64)>, SpoolError> {
        let aside = self.names()?.into_iter().filter_map(|name| {
            let (segment, number) = name.rsplit_once(ASIDE)?;
            let id =
                SegmentId::parse(segment).filter(|_| number.bytes().all(|byte| byte.is_ascii_digit()))?;
            // A time that cannot be read is late: the file is then part of every answer.
            let changed =
                fs::symlink_metadata(self.path.join(&name)).and_then(|metadata| metadata.modified());
            let since_1970 = changed.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let wall_ns =
                since_1970.and_then(|since| u64::try_from(since.as_nanos()).ok()).unwrap_or(u64::MAX);
            Some((id, name, wall_ns))
        });
        Ok(aside.collect())
    }

    /// Creates the file of a segment.
    pub(super) fn create(&self, id: SegmentId) -> Result<Arc<File>, SpoolError> {
        let path = self.segment(id);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(FILE_MODE);
        Ok(Arc::new(options.open(&path).map_err(SpoolError::io("make", &path))?))
    }

    /// Opens the existing file of a segment.
    pub(super) fn open_segment(&self, id: SegmentId, write: bool) -> Result<Arc<File>, SpoolError> {
        let path = self.segment(id);
        let file = OpenOptions::new().read(true).write(write).open(&path);
        Ok(Arc::new(file.map_err(SpoolError::io("open", &path))?))
    }

    /// Removes a segment. A missing file is not an error.
    pub(super) fn remove(&self, id: SegmentId) -> Result<(), SpoolError> {
        let path = self.segment(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(SpoolError::io("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Renames a file that cannot be read, so that the spool ignores it, and returns the new name.
    pub(super) fn set_aside(&self, name: &str) -> Result<String, SpoolError> {
        let path = self.path.join(name);
        let mut aside = format!("{name}{ASIDE}");
        let mut number = 1;
        while self.path.join(&aside).exists() {
            number += 1;
            aside = format!("{name}{ASIDE}{number}");
        }
        fs::rename(&path, self.path.join(&aside)).map_err(SpoolError::io("rename", &path))?;
        Ok(aside)
    }

    /// The bytes of a list. `None` if there is no list.
    pub(super) fn list(&self, name: &str) -> Result<Option<Vec<u8>>, SpoolError> {
        let path = self.path.join(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(SpoolError::io("read", &path)(error)),
        }
    }

    /// Replaces a list. After a power cut the file is either the old or the new list.
    pub(super) fn replace_list(&self, name: &str, bytes: &[u8]) -> Result<(), SpoolError> {
        let new = self.path.join(format!("{name}.new"));
        let write = || {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(FILE_MODE).open(&new)?;
            file.write_all(bytes)?;
            file.sync_data()?;
            fs::rename(&new, self.path.join(name))?;
            self.directory.sync_all()
        };
        write().map_err(SpoolError::io("write", &new))
    }

    /// Syncs the directory, so that the names of its files reach the disk.
    pub(super) fn sync(&self) -> Result<(), SpoolError> {
        self.directory.sync_all().map_err(SpoolError::io("sync", &self.path))
    }
}
