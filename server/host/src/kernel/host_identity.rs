//! Identity of the host: host name, kernel release and version, boot id.

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

/// Thread ids of the running process.
///
/// # Errors
/// [`ReadError`] when procfs is not mounted at `procfs`.
pub fn threads_of_this_process(procfs: &Path) -> Result<Vec<i32>, ReadError> {
    let path = procfs.join("self/task");
    let failed = |source| ReadError { path: path.clone(), source };
    let mut threads = Vec::new();
    for entry in std::fs::read_dir(&path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        threads.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(threads)
}

impl HostIdentity {
    /// Major and minor number of the release, as in `6.12.9-cloud-amd64`. Kernels of vendors have
    /// features of later ones too: only for what the kernel shows in no other way and judges itself
    /// in the end.
    #[must_use]
    pub fn kernel_numbers(&self) -> Option<(u32, u32)> {
        let mut numbers = self.kernel_release.split(['.', '-', '+']).map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
            _ => None,
        }
    }

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

#[cfg(test)]
mod tests {
    use super::HostIdentity;

    fn numbers(release: &str) -> Option<(u32, u32)> {
        let [hostname, kernel_version, machine, boot_id] = Default::default();
        HostIdentity { hostname, kernel_release: release.to_owned(), kernel_version, machine, boot_id }
            .kernel_numbers()
    }

    #[test]
    fn releases_have_numbers() {
        assert_eq!(numbers("6.12.9-cloud-amd64"), Some((6, 12)));
        assert_eq!(numbers("7.0-rc1"), Some((7, 0)));
        assert_eq!(numbers("5.4+"), Some((5, 4)));
        assert_eq!(numbers("next"), None);
    }
}
