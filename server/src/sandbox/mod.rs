//! What the daemon gives up once it has started: capabilities, the right to open files, and system calls.
//!
//! Owns the steps and their order: capabilities and rights on files are those of a thread, and are taken away before
//! the first thread starts; system calls are filtered on all threads at once, when the sockets are open and
//! before the first request is served. Never remembers what is in force: `health` reads it from the kernel.

mod calls;
mod files;

use std::io;

use landlock::{RulesetError, RulesetStatus};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};
use serde::Deserialize;
use thiserror::Error;

pub use self::files::Files;

/// What the daemon keeps, if it was started with it:
///
/// - `CAP_SYS_RAWIO` opens `/proc/kcore`, the code that a probe is checked against (fs/proc/kcore.c:open_kcore);
/// - `CAP_SYSLOG` shows addresses in `/proc/kallsyms` and in the list of kprobes
///   (kernel/kallsyms.c:kallsyms_show_value).
///
/// The files of tracefs belong to root, and writing to them takes no capability.
pub const KEPT: CapabilitySet = CapabilitySet::SYS_RAWIO.union(CapabilitySet::SYSLOG);

/// What becomes of a part that the kernel does not take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The daemon keeps what it was started with.
    Off,
    /// A part that cannot be applied is a warning.
    #[default]
    On,
    /// The daemon does not start without a part.
    Required,
}

/// Why a part of the sandbox cannot be applied.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// Programs that this process would execute could gain privileges.
    #[error("cannot set no_new_privs: {0}")]
    NoNewPrivileges(io::Error),
    /// Capabilities.
    #[error("cannot drop capabilities: {0}")]
    Capabilities(io::Error),
    /// The files that it may open.
    #[error("cannot restrict which files are opened: {0}")]
    Files(#[from] RulesetError),
    /// The kernel has no Landlock.
    #[error("this kernel does not restrict which files are opened (Landlock)")]
    NoLandlock,
    /// The filter of system calls.
    #[error("cannot filter system calls: {0}")]
    Calls(#[from] seccompiler::Error),
}

/// The first step, for the threads that start after it: no new privileges, and no capability but [`KEPT`].
///
/// # Errors
/// [`SandboxError`], if the mode requires what cannot be done.
pub fn drop_privileges(mode: Mode) -> Result<(), SandboxError> {
    apply(mode, || set_no_new_privs(true).map_err(|errno| SandboxError::NoNewPrivileges(errno.into())))?;
    apply(mode, || drop_all_but_kept().map_err(SandboxError::Capabilities))
}

/// Drops all capabilities of the calling thread but [`KEPT`]. Threads inherit that. A service manager that has left no
/// others need not allow capset(2).
///
/// # Errors
/// Those of capset(2).
fn drop_all_but_kept() -> io::Result<()> {
    let had = capabilities(None)?;
    let kept = had.permitted & KEPT;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    if had == sets {
        return Ok(());
    }
    Ok(set_capabilities(None, sets)?)
}

/// The second step, for the threads that start after it: no files but these. A kernel from before Linux 5.13 has no
/// such restriction, and one that was built or booted without Landlock neither.
///
/// # Errors
/// [`SandboxError`], if the mode requires what cannot be done.
pub fn restrict_files(mode: Mode, files: &Files) -> Result<(), SandboxError> {
    apply(mode, || match files::restrict(files)? {
        RulesetStatus::NotEnforced => Err(SandboxError::NoLandlock),
        _as_far_as_it_is_known => Ok(()),
    })
}

/// The third step, for all threads, those that run and those that will: only the system calls that a
/// daemon makes that has started.
///
/// # Errors
/// [`SandboxError`], if the mode requires what cannot be done.
pub fn filter_calls(mode: Mode) -> Result<(), SandboxError> {
    apply(mode, || calls::apply().map_err(SandboxError::Calls))
}

/// Applies a part, as the mode says.
fn apply(mode: Mode, part: impl FnOnce() -> Result<(), SandboxError>) -> Result<(), SandboxError> {
    match mode {
        Mode::Off => Ok(()),
        Mode::On => {
            if let Err(error) = part() {
                tracing::warn!(%error, "a part of the sandbox does not apply");
            }
            Ok(())
        }
        Mode::Required => part(),
    }
}

#[cfg(test)]
mod tests;
