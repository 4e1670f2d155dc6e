//! Exclusive use of a tracing instance: one daemon for each, on the whole host.
//!
//! A claim is a lock (flock) on the directory of the instance. Tracefs has one superblock, so that
//! the directory is one inode in every mount namespace, and the kernel releases the lock when the
//! daemon ends, however it ends. The daemon changes between two instances (see
//! [`super::instance_lifecycle`]): it claims the next one before it releases the last, so that one
//! of the two is always claimed, and a daemon that starts checks both.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{major, minor};

use super::{TracefsError, control_file};

/// Attempts to claim a directory that was just made: a daemon that starts holds it briefly.
const TRIES: usize = 20;

/// Time between two of those tries.
const PAUSE: Duration = Duration::from_millis(5);

/// Held as long as the daemon uses the instance.
#[derive(Debug)]
pub struct Claim(Flock<File>);

/// Why an instance cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process has it.
    #[error("another daemon uses the tracing instance `{path}`", path = path.display())]
    Held {
        /// Its directory.
        path: PathBuf,
        /// The process, if it can be seen from here.
        pid: Option<i32>,
    },
    /// The kernel refused.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
}

impl Claim {
    /// Claims a directory. Absent if it does not exist, or was removed meanwhile.
    pub(super) fn on(path: &Path) -> Result<Option<Self>, ClaimError> {
        let failed = |source| control_file::failed("lock", path, source);
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error).into()),
        };
        let locked = file.metadata().map_err(failed)?;
        let claim = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Self(lock),
            Err((_, Errno::EWOULDBLOCK)) => {
                return Err(ClaimError::Held { path: path.to_owned(), pid: holder(&locked) });
            }
            Err((_, errno)) => return Err(failed(errno.into()).into()),
        };
        // Its last holder may have removed it meanwhile.
        let there = std::fs::metadata(path).is_ok_and(|now| is_same(&now, &locked));
        Ok(there.then_some(claim))
    }

    /// Claims a directory that the daemon has just made.
    pub(super) fn on_new(path: &Path) -> Result<Self, ClaimError> {
        let mut tries = 1;
        loop {
            match Self::on(path) {
                Ok(Some(claim)) => return Ok(claim),
                Ok(None) => return Err(control_file::failed("lock", path, Errno::ENOENT.into()).into()),
                Err(error) if tries == TRIES => return Err(error),
                Err(_) => thread::sleep(PAUSE),
            }
            tries += 1;
        }
    }

    /// Whether it is on that directory.
    pub(super) fn is_on(&self, path: &Path) -> bool {
        let locked = self.0.metadata();
        locked.is_ok_and(|locked| std::fs::metadata(path).is_ok_and(|now| is_same(&now, &locked)))
    }
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// The process that has a lock on a file.
fn holder(file: &Metadata) -> Option<i32> {
    let (dev, ino) = (file.dev(), file.ino());
    find_holder(
        &std::fs::read_to_string("/proc/locks").ok()?,
        &format!("{:02x}:{:02x}:{ino}", major(dev), minor(dev)),
    )
}

/// Finds `N: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE …` (fs/locks.c: lock_get_status).
fn find_holder(locks: &str, file: &str) -> Option<i32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_flock = words.next()? == "FLOCK";
        let pid = words.nth(2)?.parse().ok()?;
        (is_flock && words.next()? == file && pid > 0).then_some(pid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_claim() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("kprobed");
        assert!(Claim::on(&path).unwrap().is_none());
        std::fs::create_dir(&path).unwrap();
        let claim = Claim::on(&path).unwrap().unwrap();
        assert!(claim.is_on(&path));
        let Err(ClaimError::Held { path: held, pid }) = Claim::on(&path) else { panic!("claimed twice") };
        assert_eq!(held, path);
        // A file system can hide who it is: overlayfs shows other numbers than its locks.
        assert!(pid.is_none_or(|pid| u32::try_from(pid) == Ok(std::process::id())));
        drop(claim);
        let claim = Claim::on(&path).unwrap().unwrap();
        // The claim goes with the directory, and not with its name.
        std::fs::remove_dir(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(!claim.is_on(&path));
        assert!(Claim::on_new(&path).unwrap().is_on(&path));
    }

    #[test]
    fn holders_are_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 311 00:0c:26 0 EOF\n2: FLOCK  ADVISORY  WRITE 211 00:0c:26 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 0 00:0c:27 0 EOF\n3: -> FLOCK  ADVISORY  WRITE 5 00:0c:26 0 EOF\nx\n";
        assert_eq!(find_holder(locks, "00:0c:26"), Some(211));
        assert_eq!(find_holder(locks, "00:0c:27"), None);
        assert_eq!(find_holder(locks, "00:0c:2"), None);
    }
}
