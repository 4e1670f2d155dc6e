//! Disk images that are kept between guests, each used by one guest at a time.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::machine::copy_sparse;
use crate::packages::search_path;

/// Size of a new image, in bytes. The file is sparse: it takes what is written to it.
const IMAGE_BYTES: u64 = 128 << 20;

/// Size of an image whose writes are logged, in bytes. It is copied for each power cut.
const LOGGED_BYTES: u64 = 32 << 20;

/// An ext4 image that this program has locked: no other program can use it until the last clone is
/// dropped.
#[derive(Clone, Debug)]
pub struct Disk {
    image: PathBuf,
    /// Where QEMU logs what is written to it, if that is wanted.
    log: Option<PathBuf>,
    /// Unlocked when it is dropped, and not only when all copies of its descriptor are closed: a
    /// process that is being started by another thread has one.
    _lock: Arc<Flock<File>>,
}

impl Disk {
    /// The image called `name` in `directory`, made when it is not there, or made anew when
    /// `fresh`.
    pub fn open(directory: &Path, name: &str, fresh: bool) -> Result<Self> {
        Self::hold(directory, name, fresh, |path| make(path, IMAGE_BYTES))
    }

    /// The image called `name` in `directory`, made anew, whose writes are logged from the first
    /// one on: see [`crate::write_log`]. Its guest has a disk that may lose what was not flushed.
    pub fn open_logged(directory: &Path, name: &str) -> Result<Self> {
        let disk = Self::hold(directory, name, true, |path| make(path, LOGGED_BYTES))?;
        let log = directory.join(format!("{name}.writes"));
        File::create(&log).with_context(|| format!("make {}", log.display()))?;
        Ok(Self { log: Some(log), ..disk })
    }

    /// The image called `name` in `directory`, made anew as a copy of another one.
    pub fn copy(directory: &Path, name: &str, image: &Path) -> Result<Self> {
        Self::hold(directory, name, true, |to| copy_sparse(image, to))
    }

    fn hold(
        directory: &Path,
        name: &str,
        anew: bool,
        make: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<Self> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        ensure!(
            !name.is_empty() && !name.starts_with('.') && name.chars().all(allowed),
            "{name:?} is not a name for a disk: use letters, digits, `.`, `_`, `-`"
        );
        let image = directory.join(format!("{name}.ext4"));
        let what = |what: &str| format!("{what} {}", image.display());
        fs::create_dir_all(directory).with_context(|| what("create the directory of"))?;
        // The lock is a file of its own, because the image is replaced when it is made anew.
        let lock = File::create(directory.join(format!("{name}.lock"))).with_context(|| what("lock"))?;
        let lock = match Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, Errno::EWOULDBLOCK)) => {
                bail!(
                    "{} is in use by another machine: choose another disk with --disk NAME",
                    image.display()
                )
            }
            Err((_, errno)) => return Err(errno).with_context(|| what("lock")),
        };
        if anew || !image.exists() {
            // Made under another name and renamed, so that an interruption leaves no incomplete
            // image.
            let making = directory.join(format!("{name}.new"));
            make(&making).with_context(|| what("make"))?;
            fs::rename(&making, &image).with_context(|| what("make"))?;
        }
        Ok(Self { image, log: None, _lock: Arc::new(lock) })
    }

    /// The log of what is written to it, if there is one.
    pub fn log(&self) -> Option<&Path> {
        self.log.as_deref()
    }

    /// The image file.
    pub fn image(&self) -> &Path {
        &self.image
    }
}

fn make(path: &Path, bytes: u64) -> io::Result<()> {
    File::create(path)?.set_len(bytes)?;
    let program = search_path("mkfs.ext4").unwrap_or_else(|| "mkfs.ext4".into());
    let output = Command::new(program).args(["-F", "-q"]).arg(path).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_one_user_and_keeps_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::open(directory.path(), "a", false).unwrap();
        let error = Disk::open(directory.path(), "a", true).unwrap_err().to_string();
        assert!(error.contains("is in use"), "{error}");
        Disk::open(directory.path(), "b", false).unwrap();
        let read = || fs::read(directory.path().join("a.ext4")).unwrap();
        let first = read();
        drop(disk);
        let disk = Disk::open(directory.path(), "a", false).unwrap();
        assert!(read() == first);
        drop(disk);
        // A new file system has a new identity.
        let fresh = Disk::open(directory.path(), "a", true).unwrap();
        assert!(read() != first);
        drop(fresh);
        fs::write(directory.path().join("other"), &first).unwrap();
        let _disk = Disk::copy(directory.path(), "a", &directory.path().join("other")).unwrap();
        assert!(read() == first);
    }

    /// A child has every descriptor of its parent between fork and exec: an end of the lock that
    /// waited for it would make the next user fail in some runs.
    #[test]
    fn a_disk_is_free_while_a_child_has_its_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::open(directory.path(), "a", false).unwrap();
        #[expect(clippy::used_underscore_binding, reason = "only a test needs more than that it lives")]
        let of_a_child = disk._lock.try_clone().unwrap();
        drop(disk);
        Disk::open(directory.path(), "a", false).unwrap();
        drop(of_a_child);
    }

    #[test]
    fn names_stay_in_the_directory() {
        for name in ["", "..", "a/b", ".hidden", "ü"] {
            let error = Disk::open(Path::new("/nowhere"), name, false).unwrap_err().to_string();
            assert!(error.contains("is not a name"), "{error}");
        }
    }
}
