//! A cached reading of control files, valid until a program writes to one of them.
//!
//! Owns the inotify descriptor and what a notice makes stale. Never decides what a file says. The
//! kernel gives its lists of all events only as a whole: with thousands of probes, reading one list
//! costs more than most changes.
//!
//! The kernel queues the notice before the write returns (fs/read_write.c:vfs_write calls
//! fsnotify_modify; an open that truncates: fs/open.c:do_truncate), and the queue is read before
//! each use. So a use never misses a write that returned before it. If the kernel gives no notices,
//! every use reads the files.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// The last reading of some files.
#[derive(Debug)]
pub struct CachedReading<T> {
    paths: Vec<PathBuf>,
    state: Mutex<Cached<T>>,
}

#[derive(Debug)]
struct Cached<T> {
    /// Absent before the first reading, and if the kernel gives no notices.
    notices: Option<Inotify>,
    /// Absent when it is stale.
    last: Option<Arc<T>>,
}

impl<T> CachedReading<T> {
    /// Reads nothing yet. A write to one of `paths` makes the reading stale; paths that do not
    /// exist are left out.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, state: Mutex::new(Cached { notices: None, last: None }) }
    }

    /// The last reading, or what `read` returns now if a program has written to the files since.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn get<E>(&self, read: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_fresh()
            && let Some(last) = &state.last
        {
            return Ok(Arc::clone(last));
        }
        // Before the reading: what is written meanwhile makes it stale.
        (state.last, state.notices) = (None, notices(&self.paths));
        let now = Arc::new(read()?);
        if state.notices.is_some() {
            state.last = Some(Arc::clone(&now));
        }
        Ok(now)
    }

    /// Has the next use read the files.
    pub fn forget(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).last = None;
    }
}

impl<T> Cached<T> {
    /// Whether no program has written since the last reading.
    fn is_fresh(&self) -> bool {
        // The end of a watch is an event as well, and so is a queue that was too short.
        self.notices.as_ref().is_some_and(|notices| notices.read_events().err() == Some(Errno::EAGAIN))
    }
}

/// Watches the files for writes. Absent if one of them cannot be watched.
fn notices(paths: &[PathBuf]) -> Option<Inotify> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
    let mut watches = 0;
    for path in paths {
        let events = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF;
        match inotify.add_watch(path, events) {
            Ok(_) => watches += 1,
            Err(Errno::ENOENT) => {}
            Err(_) => return None,
        }
    }
    (watches > 0).then_some(inotify)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::fs;

    use super::*;

    #[test]
    fn what_nobody_writes_is_read_once() {
        let directory = tempfile::tempdir().unwrap();
        let (file, other) = (directory.path().join("list"), directory.path().join("other"));
        fs::write(&file, "a").unwrap();
        let cached = CachedReading::new(vec![file.clone(), other.clone()]);
        let mut reads = 0;
        let mut get = |cached: &CachedReading<String>| {
            cached
                .get(|| {
                    reads += 1;
                    fs::read_to_string(&file)
                })
                .map(|text| (text.to_string(), reads))
        };
        assert_eq!(get(&cached).unwrap(), ("a".to_owned(), 1));
        assert_eq!(get(&cached).unwrap(), ("a".to_owned(), 1));
        fs::write(&file, "b").unwrap();
        assert_eq!(get(&cached).unwrap(), ("b".to_owned(), 2));
        assert_eq!(get(&cached).unwrap(), ("b".to_owned(), 2));
        // It is read anew, not only noticed.
        cached.forget();
        assert_eq!(get(&cached).unwrap(), ("b".to_owned(), 3));
        // Another file takes its place.
        fs::rename(&file, &other).unwrap();
        assert!(get(&cached).is_err());
        fs::write(&file, "c").unwrap();
        assert_eq!(get(&cached).unwrap(), ("c".to_owned(), 5));
        fs::write(&other, "").unwrap();
        assert_eq!(get(&cached).unwrap(), ("c".to_owned(), 6), "either of them counts");
    }

    #[test]
    fn what_changes_during_a_reading_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("list");
        fs::write(&file, "a").unwrap();
        let cached = CachedReading::new(vec![file.clone()]);
        let read = cached.get(|| {
            let before = fs::read_to_string(&file).unwrap();
            fs::write(&file, "b").unwrap();
            Ok::<_, Infallible>(before)
        });
        assert_eq!(*read.unwrap(), "a");
        assert_eq!(*cached.get(|| fs::read_to_string(&file)).unwrap(), "b");
    }

    #[test]
    fn without_notices_each_use_reads() {
        let cached = CachedReading::new(vec![PathBuf::from("/nonexistent/list")]);
        let mut reads = 0;
        for _ in 0..3 {
            cached
                .get(|| {
                    reads += 1;
                    Ok::<_, Infallible>(())
                })
                .unwrap();
        }
        assert_eq!(reads, 3);
    }
}
