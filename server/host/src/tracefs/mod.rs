//! Tracefs: the only module that reads and writes it.
//!
//! Owns every path below the tracefs root and the grammar of every file there. Never truncates a
//! file that holds other people's definitions, and never decides what should be in it: the daemon's
//! `control` does.

pub mod format;
pub mod hist;

mod cached_reading;
mod claim;
mod control_file;
mod error_log;
mod host_events;
mod instance;
mod instance_form;
mod instance_lifecycle;
mod kprobe_events;
mod mount;
mod own_events;
mod profile;
mod registered;
mod triggers;

pub use cached_reading::CachedReading;
pub use claim::{Claim, ClaimError};
pub use control_file::{ControlFiles, MountedFiles, WriteMode, answered_writes};
pub use error_log::{KernelMessage, Refusal};
pub use instance::{BufferStats, Instance, grace_period};
pub use instance_form::{Alteration, InstanceFile, InstanceForm};
pub use instance_lifecycle::{CurrentInstance, InstanceOptions};
pub use kprobe_events::{LineError, ListedProbe};
pub use mount::{MountError, Mounted, Mounts};
pub use own_events::{Deleted, KprobeList, OwnEvent, Presence};
pub use profile::{HitCounts, ProfileRow};
pub use registered::RegisteredProbe;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

/// A tracefs file refused to be read or written.
#[derive(Debug, Error)]
#[error("{action} `{path}`: {source}", path = path.display())]
pub struct TracefsError {
    /// What was tried: `read`, `write`, …
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// What the kernel answered.
    pub source: io::Error,
}

impl TracefsError {
    /// The errno of the kernel's answer; 0 when it did not come from the kernel.
    pub fn errno(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(0)
    }

    /// A copy of the error, for another object that it concerns too.
    #[must_use]
    pub fn again(&self) -> Self {
        let source = match self.source.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::new(self.source.kind(), self.source.to_string()),
        };
        Self { action: self.action, path: self.path.clone(), source }
    }
}

/// A mounted tracefs, and the debugfs beside it that says what is registered.
#[derive(Clone, Debug)]
pub struct Tracefs {
    files: Arc<dyn ControlFiles>,
    root: PathBuf,
    debugfs: PathBuf,
    kprobes: Arc<CachedReading<KprobeList>>,
}

impl Tracefs {
    /// Takes the mount points as they are.
    pub fn new(root: impl Into<PathBuf>, debugfs: impl Into<PathBuf>) -> Self {
        Self::over(Arc::new(MountedFiles), root, debugfs)
    }

    /// The same over other files than those of the kernel that runs.
    pub fn over(files: Arc<dyn ControlFiles>, root: impl Into<PathBuf>, debugfs: impl Into<PathBuf>) -> Self {
        let (root, debugfs) = (root.into(), debugfs.into());
        let kprobes = Arc::new(CachedReading::new(lists(&root).into()));
        Self { files, root, debugfs, kprobes }
    }

    /// The mount point.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The README, which lists the features of the kernel's probe language.
    ///
    /// # Errors
    /// [`TracefsError`]. On a kernel that is locked down (confidentiality) the directory is empty.
    pub fn readme(&self) -> Result<String, TracefsError> {
        self.files.read(&self.root.join("README"))
    }

    /// Whether this kernel has kprobe events at all (CONFIG_KPROBE_EVENTS).
    pub fn has_kprobe_events(&self) -> bool {
        self.files.exists(&self.kprobe_events())
    }

    /// The files that say which kprobe events there are, and whether any kprobe fires: every change
    /// of these is a write to one of them.
    pub fn switches(&self) -> Vec<PathBuf> {
        let mut files = Vec::from(lists(&self.root));
        files.push(self.kprobes_switch());
        files
    }

    /// The file that switches all kprobes of the host.
    pub fn kprobes_switch(&self) -> PathBuf {
        self.debugfs.join("kprobes/enabled")
    }

    /// Whether an event of that name exists, of any program.
    pub fn has_event(&self, group: &str, event: &str) -> bool {
        self.files.is_directory(&self.root.join("events").join(group).join(event))
    }

    /// The `format` file of an event.
    ///
    /// # Errors
    /// [`TracefsError`]; ENOENT when there is no such event.
    pub fn format_text(&self, group: &str, event: &str) -> Result<String, TracefsError> {
        self.files.read(&self.root.join("events").join(group).join(event).join("format"))
    }
}

/// The files through which kprobe events are defined and deleted: the second one takes those of all
/// kinds (since 5.0, kernel/trace/trace_dynevent.c).
fn lists(root: &Path) -> [PathBuf; 2] {
    ["kprobe_events", "dynamic_events"].map(|file| root.join(file))
}
