//! Mount points of tracefs and debugfs: finding them, and mounting what is not mounted.
//!
//! Never unmounts: that takes a privilege which the daemon gives up, and other programs use what is mounted.

use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use thiserror::Error;

use super::Tracefs;

/// Error of finding or mounting tracefs.
#[derive(Debug, Error)]
#[error("cannot mount {filesystem} on `{path}`: {source}", path = path.display())]
pub struct MountError {
    /// `tracefs` or `debugfs`.
    pub filesystem: &'static str,
    /// Where.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

/// Where the file systems belong by convention.
#[derive(Clone, Debug)]
pub struct Mounts {
    /// Usually `/sys/kernel/tracing`.
    pub tracefs: PathBuf,
    /// Usually `/sys/kernel/debug`.
    pub debugfs: PathBuf,
    /// Usually `/proc/self/mounts`.
    pub table: PathBuf,
}

impl Default for Mounts {
    fn default() -> Self {
        Self {
            tracefs: "/sys/kernel/tracing".into(),
            debugfs: "/sys/kernel/debug".into(),
            table: "/proc/self/mounts".into(),
        }
    }
}

/// The file systems, mounted.
#[derive(Debug)]
pub struct Mounted {
    /// Both mount points.
    pub tracefs: Tracefs,
}

impl Mounts {
    /// Finds both file systems where they are mounted, or mounts them where they belong. Without
    /// debugfs the daemon works and can prove less, so that failing to mount it is only logged.
    ///
    /// # Errors
    /// [`MountError`] for tracefs.
    pub fn find_or_mount(&self) -> Result<Mounted, MountError> {
        let table = std::fs::read_to_string(&self.table).unwrap_or_default();
        let provide = |filesystem, wanted: &Path| match mounted_at(&table, filesystem, wanted) {
            Some(path) => Ok(path),
            None => mount_at(filesystem, wanted).map(|()| wanted.to_owned()),
        };
        let debugfs = provide("debugfs", &self.debugfs).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot use debugfs: registered probes and the blacklist are unknown");
            self.debugfs.clone()
        });
        let tracefs = provide("tracefs", &self.tracefs)?;
        Ok(Mounted { tracefs: Tracefs::new(tracefs, debugfs) })
    }
}

/// The mount point of a file system: the wanted one if it is mounted there, otherwise the first
/// one.
fn mounted_at(table: &str, filesystem: &str, wanted: &Path) -> Option<PathBuf> {
    let mut points = table.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (_, point, kind) = (words.next()?, words.next()?, words.next()?);
        // Blanks in a mount point are octal escapes; these two are never mounted on such a path by
        // anything but intent.
        (kind == filesystem).then(|| PathBuf::from(point.replace("\\040", " ")))
    });
    let first = points.next()?;
    Some(if first != wanted && points.any(|point| point == wanted) { wanted.to_owned() } else { first })
}

fn mount_at(filesystem: &'static str, path: &Path) -> Result<(), MountError> {
    tracing::info!(filesystem, path = %path.display(), "mounting file system");
    mount(
        Some("nodev"),
        path,
        Some(filesystem),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        None::<&str>,
    )
    .map_err(|errno| MountError { filesystem, path: path.to_owned(), source: errno.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conventional_mount_point_is_preferred() {
        let table =
            "nodev /sys/kernel/debug/tracing tracefs rw 0 0\nnodev /sys/kernel/tracing tracefs rw 0 0\n";
        let wanted = Path::new("/sys/kernel/tracing");
        assert_eq!(mounted_at(table, "tracefs", wanted).unwrap(), wanted);
        let elsewhere = "none /trace tracefs rw 0 0\n";
        assert_eq!(mounted_at(elsewhere, "tracefs", wanted).unwrap(), Path::new("/trace"));
        assert_eq!(mounted_at("", "tracefs", wanted), None);
    }
}
