//! The state directory: creating it, and the lock that keeps a second daemon out of it.
//!
//! The kernel releases the lock when the daemon ends, however it ends. The file names the daemon's
//! socket, so that a daemon that is refused can say which one runs.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::StartError;

/// The file in the state directory.
const FILE: &str = "kprobed.lock";

/// The word before the path of the socket in it.
const SOCKET: &str = "socket ";

/// Longest lock file that is read, in bytes.
const MOST_BYTES: u64 = 8192;

/// Makes the state directory if it is missing.
pub(super) fn make_directory(directory: &Path) -> Result<(), StartError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(failed("make the state directory", directory))
}

fn failed(action: &str, path: &Path) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::state_directory(action, path, &error)
}

/// Held as long as the daemon runs: two would fight over the same rows.
#[derive(Debug)]
pub(super) struct StateLock {
    _file: Flock<File>,
}

impl StateLock {
    /// Locks a state directory, and writes there which socket its daemon has.
    pub(super) fn take(directory: &Path, socket: &Path) -> Result<Self, StartError> {
        let (path, failed) = (directory.join(FILE), failed("write to the state directory", directory));
        // The content belongs to the other daemon until this one has the lock.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(&failed)?;
        let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((file, Errno::EWOULDBLOCK)) => {
                let holder = Holder { state: Some(directory.to_owned()), ..Holder::written_in(file) };
                let message = format!("another kprobed has locked `{}`: {holder}", path.display());
                return Err(StartError::new(message).fix(
                    "stop it (`systemctl stop kprobed`), or give this one a `state.directory` of its own",
                ));
            }
            Err((_, errno)) => return Err(failed(errno.into())),
        };
        let text = format!("pid {}\n{SOCKET}{}\n", std::process::id(), socket.display());
        // For people only: without it the lock is as good.
        if let Err(error) = file.set_len(0).and_then(|()| file.write_all(text.as_bytes())) {
            tracing::debug!(%error, path = %path.display(), "cannot write the socket into the lock file");
        }
        Ok(Self { _file: file })
    }
}

/// Another daemon: its process and its socket, as far as they can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holder {
    pid: Option<i32>,
    state: Option<PathBuf>,
    socket: Option<String>,
}

impl Holder {
    /// Looks up a process. It may have other mounts: its lock is read through its descriptor.
    pub(super) fn of_process(procfs: &Path, pid: Option<i32>) -> Self {
        let found = pid.and_then(|pid| {
            let descriptors = std::fs::read_dir(procfs.join(format!("{pid}/fd"))).ok()?;
            descriptors.filter_map(Result::ok).find_map(|entry| {
                let target = std::fs::read_link(entry.path()).ok()?;
                let is_lock = target.file_name().is_some_and(|name| name == FILE);
                is_lock.then(|| {
                    let written = File::open(entry.path()).map(Self::written_in).unwrap_or_default();
                    Self { state: target.parent().map(Path::to_owned), ..written }
                })
            })
        });
        Self { pid, ..found.unwrap_or_default() }
    }

    /// All daemons of this host but this one. To be called before the sandbox takes the descriptors of other
    /// processes out of sight.
    pub(super) fn all(procfs: &Path) -> Vec<Self> {
        let Ok(processes) = std::fs::read_dir(procfs) else { return Vec::new() };
        let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let others = pids.filter(|pid| u32::try_from(*pid) != Ok(std::process::id()));
        let is_daemon = |pid: &i32| {
            std::fs::read(procfs.join(format!("{pid}/comm"))).is_ok_and(|comm| comm == b"kprobed\n")
        };
        others.filter(is_daemon).map(|pid| Self::of_process(procfs, Some(pid))).collect()
    }

    /// That of a process, if it was seen before.
    pub(super) fn of(procfs: &Path, pid: Option<i32>, seen: &[Self]) -> Self {
        let seen = seen.iter().find(|holder| holder.pid.is_some() && holder.pid == pid);
        seen.cloned().unwrap_or_else(|| Self::of_process(procfs, pid))
    }

    fn written_in(file: File) -> Self {
        let mut text = String::new();
        // Nothing can be said of a file that cannot be read.
        if file.take(MOST_BYTES).read_to_string(&mut text).is_err() {
            return Self::default();
        }
        let after = |prefix: &str| text.lines().find_map(|line| line.strip_prefix(prefix));
        Self {
            pid: after("pid ").and_then(|pid| pid.parse().ok()),
            state: None,
            socket: after(SOCKET).map(str::to_owned),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid}")?,
            None => f.write_str("a process that cannot be seen from here")?,
        }
        if let Some(state) = &self.state {
            write!(f, ", state directory `{}`", state.display())?;
        }
        if let Some(socket) = &self.socket {
            write!(f, ", socket `{socket}`")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_for_each_directory() {
        let parent = tempfile::tempdir().unwrap();
        let (directory, socket) = (parent.path().join("a/b"), Path::new("/run/k.sock"));
        make_directory(&directory).unwrap();
        let held = StateLock::take(&directory, socket).unwrap();
        let refused = StateLock::take(&directory, socket).unwrap_err();
        assert!(refused.to_string().starts_with("another kprobed has locked `"), "{refused}");
        drop(held);
        StateLock::take(&directory, socket).unwrap();
        std::fs::write(parent.path().join("file"), "").unwrap();
        let refused = make_directory(&parent.path().join("file")).unwrap_err().to_string();
        assert!(refused.starts_with("cannot make the state directory `"), "{refused}");
    }

    #[test]
    fn who_is_refused_learns_by_whom() {
        let directory = tempfile::tempdir().unwrap();
        let lock = StateLock::take(directory.path(), Path::new("/run/a.sock")).unwrap();
        let refused = StateLock::take(directory.path(), Path::new("/run/b.sock")).unwrap_err();
        let path = directory.path().join("kprobed.lock");
        let pid = i32::try_from(std::process::id()).unwrap();
        let expected = Holder {
            pid: Some(pid),
            state: Some(directory.path().to_owned()),
            socket: Some("/run/a.sock".to_owned()),
        };
        let procfs = tempfile::tempdir().unwrap();
        let descriptors = procfs.path().join("41/fd");
        std::fs::create_dir_all(&descriptors).unwrap();
        std::os::unix::fs::symlink("/dev/null", descriptors.join("0")).unwrap();
        std::os::unix::fs::symlink(&path, descriptors.join("7")).unwrap();
        let seen = Holder::of_process(procfs.path(), Some(41));
        assert_eq!(seen, Holder { pid: Some(41), ..expected.clone() });
        assert_eq!(Holder::all(procfs.path()), []);
        std::fs::write(procfs.path().join("41/comm"), "kprobed\n").unwrap();
        let others = Holder::all(procfs.path());
        assert_eq!(others, std::slice::from_ref(&seen));
        assert_eq!(Holder::of(Path::new("/nonexistent"), Some(41), &others), seen);
        let told =
            format!("process {pid}, state directory `{}`, socket `/run/a.sock`", directory.path().display());
        assert_eq!(expected.to_string(), told);
        assert_eq!(refused.to_string(), format!("another kprobed has locked `{}`: {told}", path.display()));
        drop(lock);
        StateLock::take(directory.path(), Path::new("/run/a-longer-name.sock")).unwrap();
        assert_eq!(
            Holder::of_process(Path::new("/proc"), None).to_string(),
            "a process that cannot be seen from here"
        );
    }
}
