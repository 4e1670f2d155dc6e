//! The cache directory: kernels, disks and logs of runs, and removing old logs.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::kernels::KernelStore;

/// How many directories of earlier runs are kept.
const KEPT_RUNS: usize = 40;
/// A run that is younger may go on.
const SPARED: Duration = Duration::from_hours(24);

/// A directory with kernels, disks and the logs of runs in it. Safe to delete when no machine runs.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// A cache in `root`, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// `$KPROBED_VM_CACHE`, else `$XDG_CACHE_HOME/kprobed-vm`, else `~/.cache/kprobed-vm`; none
    /// without a home directory.
    pub fn from_environment() -> Option<Self> {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        set("KPROBED_VM_CACHE")
            .or_else(|| Some(set("XDG_CACHE_HOME")?.join("kprobed-vm")))
            .or_else(|| Some(set("HOME")?.join(".cache/kprobed-vm")))
            .map(Self::new)
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The kernels in it.
    pub fn kernels(&self) -> KernelStore {
        KernelStore::new(self.root.join("kernels"))
    }

    /// Where disk images are.
    pub fn disks(&self) -> PathBuf {
        self.root.join("disks")
    }

    /// Where the states of guests are while tests run.
    pub fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    /// A new directory for the logs of one run; its name starts with `label`. The oldest of many
    /// are removed, unless they are of the last day.
    pub fn new_run(&self, label: &str) -> io::Result<PathBuf> {
        let runs = self.root.join("runs");
        fs::create_dir_all(&runs)?;
        prune(&runs, KEPT_RUNS, SPARED);
        Ok(tempfile::Builder::new().prefix(&format!("{label}-")).tempdir_in(runs)?.keep())
    }
}

/// Removes the oldest directories in `runs` above `keep`, and none that is younger than `spared`. What cannot be
/// removed stays: this is only tidiness.
fn prune(runs: &Path, keep: usize, spared: Duration) {
    let Ok(entries) = fs::read_dir(runs) else { return };
    let mut entries: Vec<(SystemTime, PathBuf)> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    entries.sort();
    let surplus = entries.len().saturating_sub(keep);
    for (modified, path) in entries.into_iter().take(surplus) {
        if modified.elapsed().is_ok_and(|age| age >= spared) {
            drop(fs::remove_dir_all(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_separate_and_the_oldest_go() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path());
        let first = cache.new_run("a").unwrap();
        let second = cache.new_run("a").unwrap();
        assert_ne!(first, second);
        // Both may be in use.
        let runs = root.path().join("runs");
        prune(&runs, 0, SPARED);
        assert!(first.exists() && second.exists());
        prune(&runs, 1, Duration::ZERO);
        assert!(!(first.exists() && second.exists()));
    }
}
