//! Control files of tracefs: reading and writing them, and the instances that hold them.
//!
//! Owns the only way to tracefs, which a kernel that tests can break stands in for, and the three kinds of write:
//! replacing a value, replacing a list of the daemon's own instance, and appending to a list that others use too.
//! Errors carry the action, the path and the errno. Never knows what a file says.
//!
//! Two things have inodes and are not here: locks on the directory of an instance (`super::claim`), and notices of
//! writes (inotify). The raw pages of a buffer are read by their file too.

use std::fmt;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

use super::TracefsError;
use crate::kernel::{read_whole, text_of};

/// Writes that the kernel has answered, by all threads of the process.
static ANSWERED: AtomicU64 = AtomicU64::new(0);

/// How many writes the kernel has answered since the process began. A change of many probes takes long; while this
/// number grows it goes on.
pub fn answered_writes() -> u64 {
    ANSWERED.load(Ordering::Relaxed)
}

/// The bit of a file's mode that lets its owner write.
const OWNER_WRITES: u32 = 0o200;

/// How a control file is opened for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// The file holds one value, which is replaced.
    Value,
    /// The file is truncated, which empties its list.
    Replace,
    /// The file is opened to append, which keeps what others have in it.
    Append,
}

/// The files below tracefs and debugfs, by their paths.
pub trait ControlFiles: fmt::Debug + Send + Sync {
    /// Reads a file whole that can hold other people's bytes.
    ///
    /// # Errors
    /// [`TracefsError`].
    fn read_bytes(&self, path: &Path) -> Result<Vec<u8>, TracefsError>;

    /// Writes a text in one call, so that the answer belongs to the whole of it. Returns how many bytes were taken.
    ///
    /// # Errors
    /// [`TracefsError`].
    fn write_once(&self, path: &Path, mode: WriteMode, text: &str) -> Result<usize, TracefsError>;

    /// The names in a directory, in no order.
    ///
    /// # Errors
    /// [`TracefsError`].
    fn names(&self, directory: &Path) -> Result<Vec<String>, TracefsError>;

    /// Makes an instance, by making its directory.
    ///
    /// # Errors
    /// [`TracefsError`]; EEXIST if there is one.
    fn make_instance(&self, directory: &Path) -> Result<(), TracefsError>;

    /// Removes an instance, by removing its directory.
    ///
    /// # Errors
    /// [`TracefsError`]; EBUSY while one of its files is open.
    fn remove_instance(&self, directory: &Path) -> Result<(), TracefsError>;

    /// Whether there is a file or a directory.
    fn exists(&self, path: &Path) -> bool;

    /// Whether there is a directory.
    fn is_directory(&self, path: &Path) -> bool;

    /// Reads a file whole. Bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// [`TracefsError`].
    fn read(&self, path: &Path) -> Result<String, TracefsError> {
        Ok(text_of(self.read_bytes(path)?))
    }

    /// Reads a file without the newline at its end.
    ///
    /// # Errors
    /// [`TracefsError`].
    fn read_trimmed(&self, path: &Path) -> Result<String, TracefsError> {
        Ok(self.read(path)?.trim().to_owned())
    }

    /// Replaces the value of a file that holds one value.
    ///
    /// # Errors
    /// [`TracefsError`].
    fn write(&self, path: &Path, value: &str) -> Result<(), TracefsError> {
        whole(path, value, self.write_once(path, WriteMode::Value, value)?)
    }

    /// Replaces the value of a file of the daemon's own instance that the kernel may show as
    /// read-only although it takes a value, as `buffer_percent` before Linux 6.4. Who has no
    /// `CAP_DAC_OVERRIDE` cannot open such a file. The owner can change its mode without any capability:
    /// the file is writable for this one write, and then has the mode that the kernel gave it.
    ///
    /// # Errors
    /// [`TracefsError`].
    fn write_as_owner(&self, path: &Path, value: &str) -> Result<(), TracefsError> {
        let refusal = match self.write(path, value) {
            Err(refusal) if refusal.errno() == Errno::EACCES as i32 => refusal,
            answer => return answer,
        };
        let shown = fs::metadata(path).map_err(|source| failed("look at", path, source))?.permissions();
        let writable = Permissions::from_mode(shown.mode() | OWNER_WRITES);
        if fs::set_permissions(path, writable).is_err() {
            return Err(refusal);
        }
        let written = self.write(path, value);
        let restored = fs::set_permissions(path, shown);
        written.and_then(|()| restored.map_err(|source| failed("restore the mode of", path, source)))
    }

    /// Replaces the list of a file of the daemon's own instance.
    ///
    /// # Errors
    /// [`TracefsError`].
    fn replace(&self, path: &Path, list: &str) -> Result<(), TracefsError> {
        whole(path, list, self.write_once(path, WriteMode::Replace, list)?)
    }

    /// Adds to a file that holds a list that others may use too. Such a file must never be
    /// opened in any other way: truncation deletes what is there
    /// (kernel/trace/trace_kprobe.c:probes_open).
    ///
    /// # Errors
    /// [`TracefsError`].
    fn append(&self, path: &Path, line: &str) -> Result<(), TracefsError> {
        whole(path, line, self.write_once(path, WriteMode::Append, line)?)
    }
}

/// Whether the kernel has taken all of a text.
fn whole(path: &Path, text: &str, written: usize) -> Result<(), TracefsError> {
    if written == text.len() {
        return Ok(());
    }
    let source = io::Error::new(
        io::ErrorKind::WriteZero,
        format!("only {written} of {} bytes were taken", text.len()),
    );
    Err(failed("write", path, source))
}

/// The files of the kernel that runs.
#[derive(Clone, Copy, Debug)]
pub struct MountedFiles;

impl ControlFiles for MountedFiles {
    fn read_bytes(&self, path: &Path) -> Result<Vec<u8>, TracefsError> {
        read_whole(path).map_err(|source| failed("read", path, source))
    }

    fn write_once(&self, path: &Path, mode: WriteMode, text: &str) -> Result<usize, TracefsError> {
        let mut options = OpenOptions::new();
        match mode {
            WriteMode::Value => options.write(true),
            WriteMode::Replace => options.write(true).truncate(true),
            WriteMode::Append => options.append(true),
        };
        let mut file = options.open(path).map_err(|source| failed("open for writing", path, source))?;
        tracing::debug!(path = %path.display(), value = text, "writes");
        let answer = file.write(text.as_bytes());
        ANSWERED.fetch_add(1, Ordering::Relaxed);
        answer.map_err(|source| failed("write", path, source))
    }

    fn names(&self, directory: &Path) -> Result<Vec<String>, TracefsError> {
        let failed = |source| failed("read", directory, source);
        let mut names = Vec::new();
        for entry in fs::read_dir(directory).map_err(failed)? {
            // The kernel takes no other names.
            names.extend(entry.map_err(failed)?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn make_instance(&self, directory: &Path) -> Result<(), TracefsError> {
        fs::create_dir(directory).map_err(|source| failed("make instance", directory, source))
    }

    fn remove_instance(&self, directory: &Path) -> Result<(), TracefsError> {
        fs::remove_dir(directory).map_err(|source| failed("remove instance", directory, source))
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn is_directory(&self, path: &Path) -> bool {
        path.is_dir()
    }
}

/// An error about `path`.
pub(super) fn failed(action: &'static str, path: &Path, source: io::Error) -> TracefsError {
    TracefsError { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

    use super::*;

    #[test]
    fn an_owner_without_capabilities_writes_what_is_shown_as_read_only() {
        // Capabilities are those of a thread: other tests keep theirs.
        let thread = std::thread::spawn(|| {
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, sets).unwrap();
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("buffer_percent");
            fs::write(&path, "5").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
            assert_eq!(MountedFiles.write(&path, "0").unwrap_err().errno(), Errno::EACCES as i32);
            MountedFiles.write_as_owner(&path, "0").unwrap();
            assert_eq!(MountedFiles.read(&path).unwrap(), "0");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o444);
        });
        thread.join().unwrap();
    }
}
