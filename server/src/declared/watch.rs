//! Watching a directory of declarations for changes (inotify(7)).
//!
//! Owns which changes count. A watch is made before the files are read and dropped after the next
//! change, so that it follows a directory that was replaced, and misses nothing that happens while
//! the files are read.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::net::unix::pipe::Receiver;

use super::files::counts;

/// The link that a volume of Kubernetes swaps (pkg/volume/util/atomic_writer.go).
const DATA_LINK: &str = "..data";

/// Waits for changes.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: Inotify,
    /// Says when there is something to read: to wait for a descriptor, that is what the runtime has
    /// without `unsafe`.
    ready: Receiver,
    /// The directory. Absent while there is none.
    directory: Option<WatchDescriptor>,
    /// The name of it, or of the first of its ancestors that does not exist, in the directory
    /// above.
    name: Option<OsString>,
}

impl Watch {
    /// Watches a directory, and what it can be replaced or made in.
    ///
    /// # Errors
    /// If the limit of watches is reached (`fs.inotify.max_user_instances`, `max_user_watches`).
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let moves = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let writes = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_ATTRIB;
        let watched = match inotify.add_watch(directory, moves | writes) {
            Ok(watch) => Some(watch),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES) => None,
            Err(error) => return Err(error.into()),
        };
        let mut name = directory.file_name().map(OsStr::to_owned);
        for above in directory.ancestors().skip(1) {
            match inotify.add_watch(above, moves) {
                Err(Errno::ENOENT | Errno::ENOTDIR) => name = above.file_name().map(OsStr::to_owned),
                Err(Errno::EACCES) | Ok(_) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let ready = Receiver::from_owned_fd_unchecked(inotify.as_fd().try_clone_to_owned()?)?;
        Ok(Self { inotify, ready, directory: watched, name })
    }

    /// Waits for a change that counts.
    ///
    /// # Errors
    /// When the watch cannot be read any more.
    pub(super) async fn changed(&self) -> io::Result<()> {
        loop {
            self.ready.readable().await?;
            match self.ready.try_io(|| self.inotify.read_events().map_err(io::Error::from)) {
                Ok(events) if events.iter().any(|event| self.matters(event)) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn matters(&self, event: &InotifyEvent) -> bool {
        // About the watched directory itself, or about events that were lost.
        let Some(name) = &event.name else { return true };
        if Some(event.wd) == self.directory {
            return name.to_str().is_some_and(|name| name == DATA_LINK || counts(name));
        }
        self.name.as_ref() == Some(name)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::*;

    async fn notices(directory: &Path, change: impl FnOnce()) -> bool {
        let watch = Watch::new(directory).unwrap();
        change();
        tokio::time::timeout(Duration::from_millis(200), watch.changed()).await.is_ok()
    }

    #[tokio::test]
    async fn what_counts_is_noticed_and_nothing_else() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("etc/probes.d");
        let file = |name: &str| path.join(name);
        assert!(notices(&path, || fs::create_dir(above.path().join("etc")).unwrap()).await);
        assert!(notices(&path, || fs::create_dir(&path).unwrap()).await);
        assert!(notices(&path, || fs::write(file("a.yaml"), "1").unwrap()).await);
        assert!(!notices(&path, || fs::write(file(".a.yaml.Xy"), "2").unwrap()).await);
        assert!(!notices(&path, || fs::write(file("a.yaml~"), "2").unwrap()).await);
        assert!(notices(&path, || fs::rename(file(".a.yaml.Xy"), file("a.yaml")).unwrap()).await);
        assert!(!notices(&path, || drop(fs::read(file("a.yaml")).unwrap())).await, "a look is no change");
        symlink("..1", file("..data_tmp")).unwrap();
        assert!(notices(&path, || fs::rename(file("..data_tmp"), file("..data")).unwrap()).await);
        assert!(notices(&path, || fs::remove_file(file("a.yaml")).unwrap()).await);
        assert!(!notices(&path, || fs::write(above.path().join("etc/other"), "").unwrap()).await);
        assert!(notices(&path, || fs::rename(&path, above.path().join("etc/old")).unwrap()).await);
        assert!(!notices(&path, || ()).await);
    }
}
