//! Errors of starting the daemon, and hints for them.
//!
//! An error says what failed, on what and why, once, in one line. The hint says what to do, for an
//! operator who reads it in the journal.

use crate::export::OpenError;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use thiserror::Error;

use super::Holder;
use crate::config::{HostSize, Problem};
use crate::doctor::{LOCKDOWN, LOCKED_DOWN, UNLOCK, is_locked_down};
use crate::front::{InheritedError, ListenError};
use crate::health::{NETWORK_HINT, is_of_closed_network};
use crate::sandbox::SandboxError;
use kprobed_control::ControllerStartError;
use kprobed_control::store::{Fault, StoreError};
use kprobed_host::kernel::ReadError;
use kprobed_host::tracefs::{MountError, TracefsError};
use kprobed_trace::pipeline::ReadersError;
use kprobed_trace::spool::{BootIdError, SpoolError};

/// Why the daemon could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The certificates for clients.
    #[error(transparent)]
    Tls(#[from] Problem),
    /// The directory of the state cannot be used.
    #[error("cannot {action} `{path}`: {source}", path = path.display())]
    StateDirectory {
        /// What was tried.
        action: &'static str,
        /// The directory, or the lock in it.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The state directory belongs to another daemon.
    #[error("another kprobed has locked `{path}`: {holder}", path = path.display())]
    AlreadyRunning {
        /// The lock.
        path: PathBuf,
        /// The other one.
        holder: Holder,
    },
    /// The tracing instance belongs to another daemon.
    #[error(
        "another kprobed uses the tracing instance `{path}`: {holder}; this one has the state directory `{own}`",
        path = path.display(),
        own = own.display()
    )]
    InstanceInUse {
        /// The instance.
        path: PathBuf,
        /// The state directory of this daemon.
        own: PathBuf,
        /// The other one.
        holder: Holder,
    },
    /// The database.
    #[error("{}", database(path, source))]
    Store {
        /// The database.
        path: PathBuf,
        /// Why not.
        source: StoreError,
    },
    /// No tracefs.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The ring buffers do not fit into memory.
    #[error(
        "cannot make ring buffers of {buffer_kib} KiB for each of {cpus} CPUs (`tracing.buffer_kib`): the kernel has no memory for them, \
         of {memory} MiB that the host has",
        cpus = host.cpus,
        memory = host.memory_kib / 1024
    )]
    Buffers {
        /// The configured size.
        buffer_kib: u64,
        /// The host.
        host: HostSize,
    },
    /// Tracefs does not do what is needed.
    #[error("cannot {0}")]
    Tracefs(#[from] TracefsError),
    /// Procfs.
    #[error(transparent)]
    Procfs(#[from] ReadError),
    /// Probes or readers.
    #[error(transparent)]
    Control(#[from] ControllerStartError),
    /// A socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Sockets of the service manager.
    #[error(transparent)]
    Inherited(#[from] InheritedError),
    /// Reflection.
    #[error("cannot describe the API to its clients: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The history.
    #[error("cannot keep a history of events: {0}")]
    History(#[from] SpoolError),
    /// An exporter.
    #[error("cannot export events: {0}")]
    Export(#[from] OpenError),
    /// The boot id.
    #[error(transparent)]
    BootId(BootIdError),
    /// A thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The size of the host.
    #[error("cannot read the number of CPUs and the size of the memory: {0}")]
    Memory(nix::Error),
    /// The sandbox, which `sandbox.mode` requires.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Signals.
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
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

const FAILING_DISK: &str = "the disk may be failing: look at the kernel's log";

const CAPABILITIES: &str = "the daemon lacks a capability: run it as root, with CAP_SYS_RAWIO and CAP_SYSLOG, and CAP_SYS_ADMIN if it is to mount tracefs itself";

impl StartError {
    /// A hint for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::StateDirectory { source, .. } => Some(of_directory(source, "state.directory")),
            Self::AlreadyRunning { .. } => Some(
                "stop it (`systemctl stop kprobed`), or give this one a `state.directory` of its own"
                    .to_owned(),
            ),
            Self::Tls(error) => Some(error.hint.clone()),
            Self::Export(OpenError::Prometheus(error)) if is_of_closed_network(&error.source) => {
                Some(NETWORK_HINT.to_owned())
            }
            Self::Export(_) => {
                Some("`kprobed --check-config` says what is wrong and what to write".to_owned())
            }
            Self::InstanceInUse { .. } => {
                Some("stop it, or set `tracing.instance` to another name".to_owned())
            }
            Self::Store { source, .. } => of_database(source),
            Self::Mount(error) => Some(of_mount(&error.source)),
            Self::Buffers { buffer_kib, host } => Some(format!(
                "set `tracing.buffer_kib` to less, for example {}",
                (buffer_kib / 4).min(host.most_grown_kib()).max(16)
            )),
            Self::Tracefs(error) => of_tracefs(&error.source),
            Self::Procfs(_) => {
                Some("mount procfs on /proc, or set `tracing.procfs` to where it is".to_owned())
            }
            Self::Control(error) => of_control(error),
            Self::Listen(error) => Some(error.hint()),
            Self::Inherited(error) => Some(error.hint()),
            Self::History(error) => Some(of_history(error)),
            Self::Thread(error) => Some(of_thread(error)),
            Self::Sandbox(error) => Some(of_sandbox(error)),
            Self::Reflection(_) | Self::BootId(_) | Self::Memory(_) | Self::Signals(_) => None,
        }
    }
}

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
    if let StoreError::OtherVersion { .. } = error {
        return Some(
            "install the version that made it, or move it away: the daemon then starts without any probe, and lets the events \
             alone that the kernel still has"
                .to_owned(),
        );
    }
    match error {
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

fn of_mount(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPERM | Errno::EACCES) => {
            format!("{}; or mount it before: `mount -t tracefs nodev /sys/kernel/tracing`", not_permitted())
        }
        Some(Errno::ENODEV | Errno::ENOENT) => {
            "this kernel has no tracing: it needs CONFIG_TRACING and CONFIG_KPROBE_EVENTS".to_owned()
        }
        _ => "mount it before: `mount -t tracefs nodev /sys/kernel/tracing`".to_owned(),
    }
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

fn of_control(error: &ControllerStartError) -> Option<String> {
    match error {
        ControllerStartError::Readers(ReadersError::Tracefs(error)) => of_tracefs(&error.source),
        ControllerStartError::Readers(ReadersError::Start(error)) => Some(of_thread(error)),
        ControllerStartError::Control(error) => match error.cause::<TracefsError>() {
            Some(error) => of_tracefs(&error.source),
            None => error.cause::<StoreError>().and_then(of_database),
        },
        ControllerStartError::Readers(_) => None,
    }
}

fn of_history(error: &SpoolError) -> String {
    let hint = match error {
        SpoolError::Io { source, .. } => of_directory(source, "spool.directory"),
        SpoolError::InUse { .. } => "set `spool.directory` to another directory".to_owned(),
        SpoolError::ForeignCursor { .. } => String::new(),
    };
    format!("{hint}; or keep no history: `enabled = false` in `[spool]`")
}

fn of_sandbox(error: &SandboxError) -> String {
    let kernel = match error {
        SandboxError::Files(_) | SandboxError::NoLandlock => {
            "CONFIG_SECURITY_LANDLOCK and `landlock` in `lsm=`"
        }
        _ => "CONFIG_SECCOMP_FILTER",
    };
    format!(
        "boot a kernel with {kernel}, or set `sandbox.mode` to `on`: then what cannot be applied is a warning"
    )
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
        let error = StartError::Store { path: path.clone(), source };
        let text = error.to_string();
        assert_eq!(
            text,
            format!("cannot open the database `{}`: unable to open database file", path.display())
        );
        assert!(error.hint().unwrap().contains("let the user of the daemon write"), "{:?}", error.hint());
        let source = StoreError::Backup { path: path.clone(), source: sqlx::Error::PoolTimedOut };
        let text = StartError::Store { path: path.clone(), source }.to_string();
        assert_eq!(times(&text, &path.display().to_string()), 1, "{text}");
    }

    #[test]
    fn causes_are_told_once_and_hints_are_apart() {
        let io = |errno: Errno| io::Error::from(errno);
        let read_only = StartError::StateDirectory {
            action: "write to the state directory",
            path: "/ro".into(),
            source: io(Errno::EROFS),
        };
        assert_eq!(
            read_only.to_string(),
            "cannot write to the state directory `/ro`: Read-only file system (os error 30)"
        );
        assert!(read_only.hint().unwrap().starts_with("mount the file system for writing"));
        let buffers =
            StartError::Buffers { buffer_kib: 100_000, host: HostSize { cpus: 4, memory_kib: 512 << 10 } };
        let text = buffers.to_string();
        assert!(
            ["100000 KiB", "4 CPUs", "`tracing.buffer_kib`", "512 MiB"]
                .iter()
                .all(|part| text.contains(part)),
            "{text}"
        );
        assert_eq!(buffers.hint().unwrap(), "set `tracing.buffer_kib` to less, for example 8192");
        let mount = StartError::from(MountError {
            filesystem: "tracefs",
            path: "/sys/kernel/tracing".into(),
            source: io(Errno::ENODEV),
        });
        assert_eq!(times(&mount.to_string(), "os error"), 1, "{mount}");
        assert!(mount.hint().unwrap().contains("CONFIG_TRACING"));
        let threads = StartError::Thread(io(Errno::EAGAIN));
        assert!(threads.hint().unwrap().contains("TasksMax="));
        let spool = StartError::from(SpoolError::InUse { path: "/spool".into() });
        assert!(spool.hint().unwrap().contains("`enabled = false`"));
    }
}
