//! Triggers of a look at the probes, besides the period: writes of other programs to what the
//! probes depend on, modules that are loaded or unloaded, and livepatches in transition.
//!
//! Owns which notices count, and how soon a look follows. Never looks itself. The daemon's own
//! writes are not a reason: after each change it drops the notices that the change has caused, and
//! with them what another program did at the same moment, which the period finds. Only the period
//! also finds changes of the switch and the filter of a single event: they would take two watches
//! for each probe, of inodes that since 6.6 the kernel makes and forgets as they are used
//! (fs/tracefs/event_inode.c).
//!
//! A livepatch is switched on while its module is loaded (klp_enable_patch, which its
//! initialisation calls first), so that the notice of the module also covers the livepatch; it is
//! switched off by a write to its file `enabled`. How long it then takes until all tasks have been
//! switched depends on what these do, and the kernel gives no notice when the transition is
//! complete: the daemon looks again after 1 s, and after pauses that double up to 8 s. The guest
//! test `livepatch` prints how soon each change is noticed: in an emulated guest (one CPU without
//! hardware help), a livepatch is noticed 0.1 to 0.4 s after its module, 1.3 to 1.7 s after its
//! transition is complete, and 0.02 to 4 s after the write that switches it off, with the time that
//! the kernel takes for that.
//!
//! Costs nothing while nothing happens: the control thread sleeps until the kernel wakes it. A
//! program that writes without a pause does not keep it busy either: between two looks it rests ten
//! times as long as the last one took.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use super::controller::ControllerParts;
use kprobed_host::kernel::{FileWatch, Livepatches, ModuleWatch};

/// Time from the first notice to the look: most programs write more than once.
const CALM: Duration = Duration::from_millis(100);

/// A look is followed by a rest that is so many times as long.
const REST: u32 = 10;

/// The first pause before the daemon checks whether a livepatch's transition is complete: the
/// kernel itself tries once a second (kernel/livepatch/transition.c: klp_try_complete_transition).
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest of these pauses.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// The reasons for a look.
#[derive(Debug, Default)]
pub(super) struct Triggers {
    files: Option<FileWatch>,
    modules: Option<ModuleWatch>,
    /// The files that are watched, or could not be.
    paths: Vec<PathBuf>,
    /// The files with which livepatches are switched off.
    patch_switches: Vec<PathBuf>,
    /// The pause before the next look at a livepatch in transition. Absent if there is none.
    pause: Option<Duration>,
    /// When that look is due.
    again: Option<Instant>,
    due: Option<Instant>,
    not_before: Option<Instant>,
}

impl Triggers {
    /// Begins to listen. Files that cannot be watched are left to the period.
    pub(super) fn begin() -> Self {
        let missing = |what: &str, error: &std::io::Error| {
            tracing::warn!(%error, "cannot watch {what}: the daemon notices changes with its next look");
        };
        let files = FileWatch::new().inspect_err(|error| missing("the files of tracefs", error)).ok();
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
        paths.extend(self.patch_switches.iter().cloned());
        if paths == self.paths {
            return;
        }
        for (path, error) in files.watch_only(&paths) {
            tracing::debug!(path = %path.display(), %error, "cannot watch a file: the daemon notices its change with its next look");
        }
        self.paths = paths;
    }

    /// Waits until another program has changed something.
    ///
    /// # Cancel safety
    /// Nothing is lost that was not waited for.
    pub(super) async fn fired(&self) {
        let files = async {
            match &self.files {
                Some(files) => files.changed().await,
                None => std::future::pending().await,
            }
        };
        let modules = async {
            match &self.modules {
                Some(modules) => modules.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = files => {}
            () = modules => {}
        }
    }

    /// Another program has changed something: a look is due soon.
    pub(super) fn note(&mut self, now: Instant) {
        let soon = now + CALM;
        let at = self.not_before.map_or(soon, |rested| rested.max(soon));
        self.due.get_or_insert(at);
    }

    /// A look has seen these livepatches.
    pub(super) fn saw(&mut self, livepatches: &Livepatches, now: Instant) {
        self.patch_switches = livepatches.switches();
        self.pause = livepatches
            .any_in_transition()
            .then(|| self.pause.map_or(FIRST_PAUSE, |last| (last * 2).min(LONGEST_PAUSE)));
        self.again = self.pause.map(|pause| now + pause);
    }

    /// Before the daemon writes: notices until now are changes by other programs.
    pub(super) fn set_apart(&mut self) {
        let by_files = self.files.as_ref().is_some_and(FileWatch::drain);
        if by_files {
            self.note(Instant::now());
        }
    }

    /// After the daemon has written: these notices are not a reason for a look.
    pub(super) fn forget_own(&self) {
        self.files.as_ref().map(FileWatch::drain);
    }

    /// When a look is due. Absent while nothing has happened, and no livepatch is in transition.
    pub(super) fn due(&self) -> Option<Instant> {
        let again = self.again.map(|again| self.not_before.map_or(again, |rested| rested.max(again)));
        self.due.into_iter().chain(again).min()
    }

    /// Whether another program was noticed to have changed something, so that a look follows.
    pub(super) const fn is_noted(&self) -> bool {
        self.due.is_some()
    }

    /// A look begins. Notices from here on ask for another one.
    pub(super) fn take(&mut self) {
        self.due = None;
        self.again = None;
        self.forget_own();
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

    #[test]
    fn a_livepatch_that_is_not_through_is_looked_at_less_and_less_often() {
        let sysfs = tempfile::tempdir().unwrap();
        let patch = sysfs.path().join("kernel/livepatch/fix");
        std::fs::create_dir_all(&patch).unwrap();
        std::fs::write(patch.join("enabled"), "1").unwrap();
        std::fs::write(patch.join("transition"), "1").unwrap();
        let under_way = Livepatches::read(sysfs.path());
        std::fs::write(patch.join("transition"), "0").unwrap();
        let through = Livepatches::read(sysfs.path());
        let begun = Instant::now();
        let (mut triggers, mut now, mut pauses) = (Triggers::default(), begun, Vec::new());
        for _ in 0..6 {
            triggers.take();
            triggers.saw(&under_way, now);
            triggers.looked(now, now);
            let due = triggers.due().unwrap();
            pauses.push((due - now).as_secs());
            assert!(!triggers.is_noted(), "other notices are waited for meanwhile");
            now = due;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 8, 8]);
        // A notice comes first.
        triggers.take();
        triggers.saw(&under_way, now);
        triggers.note(now);
        assert_eq!((triggers.due(), triggers.is_noted()), (Some(now + CALM), true));
        triggers.take();
        triggers.saw(&through, now);
        assert_eq!(triggers.due(), None);
        assert_eq!(triggers.patch_switches, [patch.join("enabled")]);
        triggers.saw(&under_way, now);
        assert_eq!(triggers.due(), Some(now + FIRST_PAUSE), "it begins anew");
    }
}
