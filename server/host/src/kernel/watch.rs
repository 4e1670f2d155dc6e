//! Change notices: writes to control files (inotify), and modules that are loaded or removed
//! (netlink).
//!
//! Owns both kinds of descriptors, and reading what they deliver. Never decides what follows from a
//! notice, and never polls: a caller sleeps until the kernel reports something.
//!
//! Files: `inotify` reports every write of a program (fs/read_write.c:vfs_write calls
//! fsnotify_modify for files of every file system, tracefs, debugfs and procfs included), and an
//! open that truncates (fs/open.c:do_truncate). What the kernel changes by itself is not a write.
//! Modules: the kernel reports them on the netlink socket of kernel objects once a module has begun
//! to run (kernel/module/main.c:do_init_module) and when it has gone, in every network namespace of
//! the initial user namespace (lib/kobject_uevent.c:uevent_net_broadcast_untagged).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Control files that are watched for writes.
#[derive(Debug)]
pub struct FileWatch {
    inotify: AsyncFd<InotifyFd>,
    /// With an open file, which keeps the inode: the kernel may make another one for the next open
    /// (fs/proc/proc_sysctl.c).
    watched: BTreeMap<PathBuf, (WatchDescriptor, std::fs::File)>,
    /// Files that were written to, as far as the notices have been read.
    written: Mutex<BTreeSet<PathBuf>>,
}

/// For [`AsyncFd`].
#[derive(Debug)]
struct InotifyFd(Inotify);

impl AsRawFd for InotifyFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl FileWatch {
    /// Watches nothing yet. Belongs to the runtime that it is made in.
    ///
    /// # Errors
    /// The error of the kernel: EMFILE if this user has too many inotify descriptors.
    pub fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let inotify = readable(InotifyFd(inotify))?;
        Ok(Self { inotify, watched: BTreeMap::new(), written: Mutex::default() })
    }

    /// Watches these files, and no others. Returns those that cannot be watched, and why.
    pub fn watch_only(&mut self, paths: &[PathBuf]) -> Vec<(PathBuf, io::Error)> {
        let inotify = &self.inotify.get_ref().0;
        self.watched.retain(|path, (descriptor, _)| {
            let stays = paths.contains(path);
            if !stays {
                // It is gone already if the file is.
                inotify.rm_watch(*descriptor).ok();
            }
            stays
        });
        let mut unwatched = Vec::new();
        for path in paths {
            if !self.watched.contains_key(path) {
                match watch(inotify, path) {
                    Ok(watched) => _ = self.watched.insert(path.clone(), watched),
                    Err(error) => unwatched.push((path.clone(), error)),
                }
            }
        }
        unwatched
    }

    /// Takes the files that were written to, of the notices that have been read. After an overflow of
    /// the queue these are all that are watched.
    pub fn take_written(&self) -> BTreeSet<PathBuf> {
        std::mem::take(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the queued notices. Returns true if a file was written to, or if the queue overflowed.
    pub fn drain(&self) -> bool {
        // The end of a watch is an event as well.
        let counts = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_Q_OVERFLOW;
        let mut any = false;
        while let Ok(events) = self.inotify.get_ref().0.read_events()
            && !events.is_empty()
        {
            for event in events.iter().filter(|event| event.mask.intersects(counts)) {
                any = true;
                let is_meant = |descriptor: WatchDescriptor| {
                    event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) || descriptor == event.wd
                };
                let meant = self.watched.iter().filter(|(_, (descriptor, _))| is_meant(*descriptor));
                let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
                written.extend(meant.map(|(path, _)| path.clone()));
            }
        }
        any
    }

    /// Waits for a write.
    ///
    /// # Cancel safety
    /// Notices stay queued until they are drained.
    pub async fn changed(&self) {
        wait(&self.inotify, || self.drain()).await;
    }
}

fn watch(inotify: &Inotify, path: &Path) -> io::Result<(WatchDescriptor, std::fs::File)> {
    let held = OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(path)?;
    Ok((inotify.add_watch(path, AddWatchFlags::IN_MODIFY)?, held))
}

/// Registers a descriptor with the runtime.
fn readable<T: AsRawFd>(of: T) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "what is waited for is owned, and stays the same: what takes its place is unsafe to call"
    )]
    AsyncFd::with_interest(of, Interest::READABLE)
}

/// Waits until `take` returns true for what can be read.
async fn wait<T: AsRawFd>(of: &AsyncFd<T>, take: impl Fn() -> bool) {
    loop {
        match of.readable().await {
            Ok(mut ready) => {
                if take() {
                    return;
                }
                ready.clear_ready();
            }
            // The runtime ends.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Modules that come and go.
#[derive(Debug)]
pub struct ModuleWatch(AsyncFd<OwnedFd>);

/// The group of the messages of the kernel itself (lib/kobject_uevent.c).
const KERNEL_GROUP: u32 = 1;

/// Room for a message: the kernel makes none that is longer (include/linux/kobject.h:
/// UEVENT_BUFFER_SIZE), but for the line at its head.
const MESSAGE_BYTES: usize = 8192;

impl ModuleWatch {
    /// Listens from now on. Belongs to the runtime that it is made in.
    ///
    /// # Errors
    /// The error of the kernel, for example if this process may not open netlink sockets.
    pub fn new() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket =
            socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkKObjectUEvent)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL_GROUP))?;
        Ok(Self(readable(socket)?))
    }

    /// Reads the queued messages. Returns true if a module was loaded or removed, or if the queue
    /// overflowed.
    pub fn drain(&self) -> bool {
        let mut any = false;
        let mut message = [0; MESSAGE_BYTES];
        loop {
            match recv(self.0.get_ref().as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => any |= message.get(..length).is_some_and(is_about_a_module),
                Err(Errno::ENOBUFS) => any = true,
                Err(Errno::EINTR) => {}
                Err(_) => return any,
            }
        }
    }

    /// Waits until a module comes or goes. Other devices of the host wake it too.
    ///
    /// # Cancel safety
    /// Messages stay queued until they are drained.
    pub async fn changed(&self) {
        wait(&self.0, || self.drain()).await;
    }
}

/// Whether a message is `add@/module/NAME` or `remove@/module/NAME`, with a NUL and the variables
/// after it.
fn is_about_a_module(message: &[u8]) -> bool {
    let head = message.split(|byte| *byte == 0).next().unwrap_or_default();
    let Some(name) = head.strip_prefix(b"add@/module/").or_else(|| head.strip_prefix(b"remove@/module/"))
    else {
        return false;
    };
    // Below a module are its parameters, holders, and drivers.
    !name.is_empty() && !name.contains(&b'/')
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_write_is_noticed_once() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (directory.path().join("one"), directory.path().join("other"));
        fs::write(&one, "").unwrap();
        fs::write(&other, "").unwrap();
        let mut watch = FileWatch::new().unwrap();
        let missing = directory.path().join("missing");
        let unwatched = watch.watch_only(&[one.clone(), missing.clone()]);
        assert_eq!(unwatched.iter().map(|(path, _)| path).collect::<Vec<_>>(), [&missing]);
        fs::write(&other, "x").unwrap();
        fs::read(&one).unwrap();
        assert!(!watch.drain(), "another file, and a reading");
        fs::write(&one, "x").unwrap();
        timeout(SOON, watch.changed()).await.unwrap();
        assert!(!watch.drain(), "it was taken");
        assert_eq!(watch.take_written(), BTreeSet::from([one.clone()]));
        assert!(watch.take_written().is_empty());
        // Truncated by being opened, and nothing is written.
        fs::File::create(&one).unwrap();
        timeout(SOON, watch.changed()).await.unwrap();
        watch.watch_only(std::slice::from_ref(&other));
        assert!(!watch.drain(), "that another file is watched is no write");
        fs::write(&one, "y").unwrap();
        assert!(!watch.drain(), "it is not watched any more");
        fs::write(&other, "y").unwrap();
        timeout(SOON, watch.changed()).await.unwrap();
    }

    #[test]
    fn messages_about_modules_are_told_from_others() {
        for message in ["add@/module/loop\0ACTION=add\0", "remove@/module/x", "add@/module/nf_tables\0"] {
            assert!(is_about_a_module(message.as_bytes()), "{message}");
        }
        for message in [
            "add@/module/",
            "add@/module/x/parameters",
            "change@/module/x",
            "add@/devices/module/x",
            "libudev\0add@/module/x",
            "",
        ] {
            assert!(!is_about_a_module(message.as_bytes()), "{message}");
        }
    }

    proptest! {
        #[test]
        fn any_message_is_survived(message in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = is_about_a_module(&message);
        }
    }
}
