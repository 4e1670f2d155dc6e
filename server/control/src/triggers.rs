//! Triggers of a look at the probes, besides the period: writes of other programs to what the
//! probes depend on, and modules that are loaded or unloaded.
//!
//! Owns which notices count, and how soon a look follows. Never looks itself. The daemon's own
//! writes are not a reason: after each change it drops the notices that the change has caused, and
//! with them what another program did at the same moment, which the period finds. Only the period
//! also finds changes of the switch and the filter of a single event: they would take two watches
//! for each probe, of inodes that since 6.6 the kernel makes and forgets as they are used
//! (fs/tracefs/event_inode.c).
//!
//! Costs nothing while nothing happens: the control thread sleeps until the kernel wakes it. A
//! program that writes without a pause does not keep it busy either: between two looks it rests ten
//! times as long as the last one took.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::controller::ControllerParts;
use kprobed_host::kernel::{FileWatch, ModuleWatch};

/// Time from the first notice to the look: most programs write more than once.
const CALM: Duration = Duration::from_millis(100);

/// A look is followed by a rest that is so many times as long.
const REST: u32 = 10;

/// The reasons for a look.
#[derive(Debug, Default)]
pub(super) struct Triggers {
    files: Option<FileWatch>,
    modules: Option<ModuleWatch>,
    /// The files that are watched, or could not be.
    paths: Vec<PathBuf>,
    /// Files that other programs have written to since the last look.
    written: BTreeSet<PathBuf>,
    due: Option<Instant>,
    not_before: Option<Instant>,
}

impl Triggers {
    /// Begins to listen to modules, and to writes to files if what they change is repaired. Files that cannot
    /// be watched are left to the period.
    pub(super) fn begin(repairs: bool) -> Self {
        let missing = |what: &str, error: &std::io::Error| {
            tracing::warn!(%error, "cannot watch {what}: the daemon notices changes with its next look");
        };
        let files = repairs.then(FileWatch::new).transpose();
        let files = files.inspect_err(|error| missing("the files of tracefs", error)).ok().flatten();
        let modules = ModuleWatch::new().inspect_err(|error| missing("modules", error)).ok();
        Self { files, modules, ..Self::default() }
    }

    /// Watches the files that count now: the daemon's instance changes at times.
    pub(super) fn follow(&mut self, parts: &ControllerParts) {
        let Some(files) = &mut self.files else { return };
        let tracefs = &parts.mounted.tracefs;
        let mut paths = tracefs.switches();
        paths.extend(parts.instance.switches());
        paths.push(parts.procfs.join("sys/kernel/ftrace_enabled"));
        if paths == self.paths {
            return;
        }
        for (path, error) in files.watch_only(&paths) {
            tracing::debug!(path = %path.display(), %error, "cannot watch a file: the daemon notices its change with its next look");
        }
        self.paths = paths;
    }

    /// Waits until another program has written to a file.
    ///
    /// # Cancel safety
    /// Nothing is lost that was not waited for.
    pub(super) async fn written(&self) {
        match &self.files {
            Some(files) => files.changed().await,
            None => std::future::pending().await,
        }
    }

    /// Waits until a module comes or goes.
    ///
    /// # Cancel safety
    /// Nothing is lost that was not waited for.
    pub(super) async fn module_changed(&self) {
        match &self.modules {
            Some(modules) => modules.changed().await,
            None => std::future::pending().await,
        }
    }

    /// The files below this directory that other programs have written to since this was last asked, of the notices
    /// that were set apart.
    pub(super) fn take_written(&mut self, directory: &Path) -> Vec<PathBuf> {
        let written = std::mem::take(&mut self.written);
        written.into_iter().filter(|path| path.starts_with(directory)).collect()
    }

    /// Another program has changed something: a look is due soon.
    pub(super) fn note(&mut self, now: Instant) {
        self.written.extend(self.files.iter().flat_map(FileWatch::take_written));
        let soon = now + CALM;
        let at = self.not_before.map_or(soon, |rested| rested.max(soon));
        self.due.get_or_insert(at);
    }

    /// Before the daemon writes: notices until now are changes by other programs.
    pub(super) fn set_apart(&mut self) {
        if self.files.as_ref().is_some_and(FileWatch::drain) {
            self.note(Instant::now());
        }
    }

    /// After the daemon has written: these notices are not a reason for a look.
    pub(super) fn forget_own(&self) {
        if let Some(files) = &self.files {
            files.drain();
            files.take_written();
        }
    }

    /// When a look is due. Absent while no other program was noticed to have changed something.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A look begins. Notices from here on ask for another one.
    pub(super) fn take(&mut self) {
        self.set_apart();
        self.due = None;
    }

    /// A look has ended.
    pub(super) fn looked(&mut self, begun: Instant, now: Instant) {
        self.forget_own();
        self.not_before = Some(now + (now - begun) * REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_soon_and_never_all_the_time() {
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let mut triggers = Triggers::default();
        assert_eq!(triggers.due(), None);
        triggers.note(at(0));
        triggers.note(at(90));
        assert_eq!(triggers.due(), Some(at(100)), "the first one counts");
        triggers.take();
        assert_eq!(triggers.due(), None);
        // It took 50 ms: the next one comes half a second later at the earliest.
        triggers.looked(at(100), at(150));
        triggers.note(at(160));
        assert_eq!(triggers.due(), Some(at(650)));
        triggers.take();
        triggers.note(at(900));
        assert_eq!(triggers.due(), Some(at(1000)));
    }
}
