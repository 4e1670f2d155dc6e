//! Why the daemon cannot start: what failed, on what and why, once, in one line; and what to do about it, for an
//! operator who reads it in the journal.
//!
//! Owns the words for errors of the kernel, of the database and of files.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use thiserror::Error;

use crate::config::{HostSize, Problem};
use crate::doctor::{LOCKDOWN, LOCKED_DOWN, UNLOCK, is_locked_down};
use crate::sandbox::SandboxError;
use kprobed_control::error::Error as ControlError;
use kprobed_control::store::{Fault, StoreError};
use kprobed_host::kernel::ReadError;
use kprobed_host::tracefs::{MountError, TracefsError};
use kprobed_trace::pipeline::ReadersError;
use kprobed_trace::spool::SpoolError;

/// Why the daemon cannot start.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct StartError {
    /// What failed, on what and why.
    pub message: String,
    /// What to do about it, if that is known.
    pub hint: Option<String>,
}

impl StartError {
    /// One about which nothing is known that helps.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    /// What to do about it.
    pub(crate) fn fix(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The directory of the state cannot be used. `path` is it, or the lock in it.
    pub(crate) fn state_directory(action: &str, path: &Path, error: &io::Error) -> Self {
        let message = format!("cannot {action} `{}`: {error}", path.display());
        Self::new(message).fix(of_directory(error, "state.directory"))
    }

    /// The database in this directory.
    pub(crate) fn database(directory: &Path, error: &StoreError) -> Self {
        Self { message: database(&directory.join("kprobed.db"), error), hint: of_database(error) }
    }

    /// The ring buffers do not fit into memory.
    pub(crate) fn buffers(buffer_kib: u64, host: HostSize) -> Self {
        let message = format!(
            "cannot make ring buffers of {buffer_kib} KiB for each of {} CPUs (`tracing.buffer_kib`): the kernel has no memory for them, \
             of {} MiB that the host has",
            host.cpus,
            host.memory_kib / 1024
        );
        let possible = (buffer_kib / 4).min(host.most_grown_kib()).max(16);
        Self::new(message).fix(format!("set `tracing.buffer_kib` to less, for example {possible}"))
    }

    /// A thread cannot be started.
    pub fn thread(error: &io::Error) -> Self {
        Self::new(format!("cannot start a thread: {error}")).fix(of_thread(error))
    }
}

impl From<Problem> for StartError {
    fn from(problem: Problem) -> Self {
        Self::new(problem.message).fix(problem.hint)
    }
}

impl From<MountError> for StartError {
    fn from(error: MountError) -> Self {
        let hint = match error.source.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EPERM | Errno::EACCES) => format!("{}; or {MOUNT}", not_permitted()),
            Some(Errno::ENODEV | Errno::ENOENT) => {
                "this kernel has no tracing: it needs CONFIG_TRACING and CONFIG_KPROBE_EVENTS".to_owned()
            }
            _ => MOUNT.to_owned(),
        };
        Self::new(error.to_string()).fix(hint)
    }
}

impl From<TracefsError> for StartError {
    fn from(error: TracefsError) -> Self {
        Self { message: format!("cannot {error}"), hint: of_tracefs(&error.source) }
    }
}

impl From<ReadError> for StartError {
    fn from(error: ReadError) -> Self {
        Self::new(error.to_string()).fix("mount procfs on /proc, or set `tracing.procfs` to where it is")
    }
}

impl From<ControlError> for StartError {
    fn from(error: ControlError) -> Self {
        let hint = match (error.cause::<TracefsError>(), error.cause::<ReadersError>()) {
            (Some(error), _) => of_tracefs(&error.source),
            (_, Some(ReadersError::Start(error))) => Some(of_thread(error)),
            _ => error.cause::<StoreError>().and_then(of_database),
        };
        Self { message: error.to_string(), hint }
    }
}

impl From<SpoolError> for StartError {
    fn from(error: SpoolError) -> Self {
        let hint = match &error {
            SpoolError::Io { source, .. } => of_directory(source, "spool.directory"),
            SpoolError::InUse { .. } => "set `spool.directory` to another directory".to_owned(),
            SpoolError::ForeignCursor { .. } => String::new(),
        };
        Self::new(format!("cannot keep a history of events: {error}"))
            .fix(format!("{hint}; or keep no history: `enabled = false` in `[spool]`"))
    }
}

impl From<SandboxError> for StartError {
    fn from(error: SandboxError) -> Self {
        let kernel = match &error {
            SandboxError::Files(_) | SandboxError::NoLandlock => {
                "CONFIG_SECURITY_LANDLOCK and `landlock` in `lsm=`"
            }
            _ => "CONFIG_SECCOMP_FILTER",
        };
        Self::new(error.to_string()).fix(format!(
            "boot a kernel with {kernel}, or set `sandbox.mode` to `on`: then what cannot be applied is a warning"
        ))
    }
}

/// The message of a database error, with its path, and the cause once.
fn database(path: &Path, error: &StoreError) -> String {
    let why = match (error, sqlite(error).and_then(sqlx::Error::as_database_error)) {
        (StoreError::Backup { .. }, _) | (_, None) => error.to_string(),
        (_, Some(error)) => error.message().to_owned(),
    };
    let path = format!("`{}`", path.display());
    if why.contains(&path) { why } else { format!("cannot open the database {path}: {why}") }
}

/// SQLite's own error, however it was wrapped.
fn sqlite(error: &StoreError) -> Option<&sqlx::Error> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found @ sqlx::Error::Database(_)) = error.downcast_ref::<sqlx::Error>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// SQLite's result code for a file that it cannot open (sqlite3.h).
const SQLITE_CANTOPEN: u32 = 14;

const MOUNT: &str = "mount it before: `mount -t tracefs nodev /sys/kernel/tracing`";

const FAILING_DISK: &str = "the disk may be failing: look at the kernel's log";

const CAPABILITIES: &str = "the daemon lacks a capability: run it as root, with CAP_SYS_RAWIO and CAP_SYSLOG, and CAP_SYS_ADMIN if it is to mount tracefs itself";

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn not_permitted() -> String {
    if is_root() { CAPABILITIES.to_owned() } else { "run the daemon as root".to_owned() }
}

fn of_directory(error: &io::Error, setting: &str) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied if !is_root() => "run the daemon as root".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => {
            format!(
                "mount the file system for writing, or set `{setting}` to a directory that can be written"
            )
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("make room on the disk, or set `{setting}` to a directory that has some")
        }
        _ => format!("set `{setting}` to a directory that the daemon can make files in"),
    }
}

fn of_database(error: &StoreError) -> Option<String> {
    match error {
        StoreError::OtherVersion { .. } => {
            let hint = "install the version that made it, or move it away: the daemon then starts without any probe, and lets the events \
                        alone that the kernel still has";
            return Some(hint.to_owned());
        }
        StoreError::Directory { source, .. } => return Some(of_directory(source, "state.directory")),
        StoreError::Database(error) if error.fault == Fault::Io => return Some(FAILING_DISK.to_owned()),
        _ => {}
    }
    let found = sqlite(error)?;
    // The upper bits say more precisely what happened.
    let code = found.as_database_error()?.code()?.parse::<u32>().unwrap_or(0) & 0xff;
    Some(match Fault::of(found) {
        Fault::Corrupt => {
            "put a copy of it back (`kprobed.db.backup-*`), or move it away: the daemon then starts without any probe".to_owned()
        }
        Fault::Busy => "end the program that has it open (`fuser -v` names it)".to_owned(),
        Fault::Full => "make room on the disk".to_owned(),
        Fault::Io => FAILING_DISK.to_owned(),
        fault if fault == Fault::ReadOnly || code == SQLITE_CANTOPEN => {
            "let the user of the daemon write to it and to its directory".to_owned()
        }
        _ => return None,
    })
}

fn of_tracefs(error: &io::Error) -> Option<String> {
    // A kernel that is locked down shows an empty directory, or refuses to open what is in it.
    if is_locked_down(Path::new(LOCKDOWN)) {
        return Some(format!("{LOCKED_DOWN}: {UNLOCK}"));
    }
    match error.raw_os_error().map(Errno::from_raw)? {
        Errno::EPERM | Errno::EACCES => Some(not_permitted()),
        Errno::ENOENT => {
            Some("look at what is mounted on /sys/kernel/tracing: this is not a whole tracefs".to_owned())
        }
        Errno::ENOMEM => Some("set `tracing.buffer_kib` to less".to_owned()),
        Errno::EMFILE => Some("raise the limit of open files (LimitNOFILE=)".to_owned()),
        _ => None,
    }
}

fn of_thread(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EAGAIN) => "raise the limit of threads (TasksMax=, or `ulimit -u`)".to_owned(),
        Some(Errno::EMFILE) => "raise the limit of open files (LimitNOFILE=)".to_owned(),
        _ => "look at the memory that is free, and at the limits of the daemon".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(text: &str, part: &str) -> usize {
        text.matches(part).count()
    }

    #[tokio::test]
    async fn a_bad_database_is_named_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kprobed.db");
        std::fs::create_dir(&path).unwrap();
        let source = kprobed_control::store::Store::open(directory.path(), std::time::SystemTime::now())
            .await
            .unwrap_err();
        let StartError { message, hint } = StartError::database(directory.path(), &source);
        assert_eq!(
            message,
            format!("cannot open the database `{}`: unable to open database file", path.display())
        );
        assert!(hint.as_deref().unwrap().contains("let the user of the daemon write"), "{hint:?}");
        let source = StoreError::Backup { path: path.clone(), source: sqlx::Error::PoolTimedOut };
        let text = StartError::database(directory.path(), &source).to_string();
        assert_eq!(times(&text, &path.display().to_string()), 1, "{text}");
    }

    #[test]
    fn causes_are_told_once_and_hints_are_apart() {
        let io = |errno: Errno| io::Error::from(errno);
        let read_only =
            StartError::state_directory("write to the state directory", Path::new("/ro"), &io(Errno::EROFS));
        assert_eq!(
            read_only.to_string(),
            "cannot write to the state directory `/ro`: Read-only file system (os error 30)"
        );
        assert!(read_only.hint.unwrap().starts_with("mount the file system for writing"));
        let buffers = StartError::buffers(100_000, HostSize { cpus: 4, memory_kib: 512 << 10 });
        let text = buffers.to_string();
        assert!(
            ["100000 KiB", "4 CPUs", "`tracing.buffer_kib`", "512 MiB"]
                .iter()
                .all(|part| text.contains(part)),
            "{text}"
        );
        assert_eq!(buffers.hint.unwrap(), "set `tracing.buffer_kib` to less, for example 8192");
        let mount = StartError::from(MountError {
            filesystem: "tracefs",
            path: "/sys/kernel/tracing".into(),
            source: io(Errno::ENODEV),
        });
        assert_eq!(times(&mount.to_string(), "os error"), 1, "{mount}");
        assert!(mount.hint.unwrap().contains("CONFIG_TRACING"));
        let threads = StartError::thread(&io(Errno::EAGAIN));
        assert!(threads.hint.unwrap().contains("TasksMax="));
        let spool = StartError::from(SpoolError::InUse { path: "/spool".into() });
        assert!(spool.hint.unwrap().contains("`enabled = false`"));
    }
}
