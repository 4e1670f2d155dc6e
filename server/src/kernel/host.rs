//! Who this host is.

use std::path::Path;

use super::{ReadError, read_text};

/// Identity of a host, its kernel and its boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// Host name.
    pub hostname: String,
    /// `uname -r`.
    pub kernel_release: String,
    /// `uname -v`.
    pub kernel_version: String,
    /// `uname -m`.
    pub machine: String,
    /// Random id of the running boot.
    pub boot_id: String,
}

impl HostIdentity {
    /// Asks the kernel.
    ///
    /// # Errors
    /// [`ReadError`] when procfs is not mounted at `procfs`.
    pub fn read(procfs: &Path) -> Result<Self, ReadError> {
        let boot_id = read_text(&procfs.join("sys/kernel/random/boot_id"))?;
        let path = procfs.join("version");
        let uname = nix::sys::utsname::uname().map_err(|errno| ReadError { path, source: errno.into() })?;
        let text = |part: &std::ffi::OsStr| part.to_string_lossy().into_owned();
        Ok(Self {
            hostname: text(uname.nodename()),
            kernel_release: text(uname.release()),
            kernel_version: text(uname.version()),
            machine: text(uname.machine()),
            boot_id: boot_id.trim().to_owned(),
        })
    }
}
