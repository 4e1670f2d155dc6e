//! What was read from control files, for as long as nobody has written to them.
//!
//! Owns the notices of writes, and what they make stale. The kernel gives its lists of all events only as a whole: beside thousands of probes,
//! reading one costs more than most changes. It puts a notice into the queue before the write of whoever it was returns (fs/read_write.c:
//! vfs_write calls fsnotify_modify; an open that truncates: fs/open.c: do_truncate), and the queue is looked at before each use. So what is
//! used is what a reading would have found that began before that write returned. Where the notices cannot be had, everything is read each
//! time. Never decides what a file says.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// The last reading of some files.
pub struct Watched<T> {
    paths: Vec<PathBuf>,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// Absent before the first reading, and where the kernel gives no notices.
    notices: Option<Inotify>,
    /// Absent when it is stale.
    last: Option<Arc<T>>,
}

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl<T> Watched<T> {
    /// Nothing was read yet. Whoever changes what is read writes to one of `paths`; those that do not exist are left out.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, state: Mutex::new(State { notices: None, last: None }) }
    }

    /// What was read last, or what `read` reads now if somebody has written to the files since.
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

impl<T> State<T> {
    /// Whether nobody has written since the last reading.
    fn is_fresh(&self) -> bool {
        // The end of a watch is an event as well, and so is a queue that was too short.
        self.notices.as_ref().is_some_and(|notices| notices.read_events().err() == Some(Errno::EAGAIN))
    }
}

/// Has the kernel note who writes to the files. Absent when it does not do so for all of them.
fn notices(paths: &[PathBuf]) -> Option<Inotify> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
    let mut watched = 0;
    for path in paths {
        let events = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF;
        match inotify.add_watch(path, events) {
            Ok(_) => watched += 1,
            Err(Errno::ENOENT) => {}
            Err(_) => return None,
        }
    }
    (watched > 0).then_some(inotify)
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
        let watched = Watched::new(vec![file.clone(), other.clone()]);
        let mut reads = 0;
        let mut get = |watched: &Watched<String>| {
            watched
                .get(|| {
                    reads += 1;
                    fs::read_to_string(&file)
                })
                .map(|text| (text.to_string(), reads))
        };
        assert_eq!(get(&watched).unwrap(), ("a".to_owned(), 1));
        assert_eq!(get(&watched).unwrap(), ("a".to_owned(), 1));
        fs::write(&file, "b").unwrap();
        assert_eq!(get(&watched).unwrap(), ("b".to_owned(), 2));
        assert_eq!(get(&watched).unwrap(), ("b".to_owned(), 2));
        // It is read anew, not only noticed.
        watched.forget();
        assert_eq!(get(&watched).unwrap(), ("b".to_owned(), 3));
        // Another file takes its place.
        fs::rename(&file, &other).unwrap();
        assert!(get(&watched).is_err());
        fs::write(&file, "c").unwrap();
        assert_eq!(get(&watched).unwrap(), ("c".to_owned(), 5));
        fs::write(&other, "").unwrap();
        assert_eq!(get(&watched).unwrap(), ("c".to_owned(), 6), "either of them counts");
    }

    #[test]
    fn what_changes_during_a_reading_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("list");
        fs::write(&file, "a").unwrap();
        let watched = Watched::new(vec![file.clone()]);
        let read = watched.get(|| {
            let before = fs::read_to_string(&file).unwrap();
            fs::write(&file, "b").unwrap();
            Ok::<_, Infallible>(before)
        });
        assert_eq!(*read.unwrap(), "a");
        assert_eq!(*watched.get(|| fs::read_to_string(&file)).unwrap(), "b");
    }

    #[test]
    fn without_notices_each_use_reads() {
        let watched = Watched::new(vec![PathBuf::from("/nonexistent/list")]);
        let mut reads = 0;
        for _ in 0..3 {
            watched
                .get(|| {
                    reads += 1;
                    Ok::<_, Infallible>(())
                })
                .unwrap();
        }
        assert_eq!(reads, 3);
    }
}
