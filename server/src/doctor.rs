//! Checks of the host (`kprobectl doctor`): tracefs, kprobes, the daemon's instance and its probes.
//!
//! Owns these checks. Never changes a system setting: other tools may depend on it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use kprobed_proto::v1::ForeignProbe;

use crate::health::{HostCheck, failed, named, ok, warning};
use kprobed_control::{Probe, ProbeState, Registry, altered, ftrace_enabled};
use kprobed_host::kernel::{FactsCache, TRACE_CLOCK};
use kprobed_host::tracefs::{Alteration, CurrentInstance, HitCounts, InstanceFile, Tracefs, TracefsError};
use kprobed_lang::definition::{Code, Diagnostic, ProbeKind};
use kprobed_lang::model::Hits;

/// The file that says whether the kernel is locked down.
pub const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// Of a kernel that forbids tracing.
pub const LOCKED_DOWN: &str = "the kernel is locked down (lockdown=confidentiality), which forbids tracing";

/// What to do about it.
pub const UNLOCK: &str = "boot it with lockdown=integrity or lockdown=none";

/// Whether the kernel is locked down so that nothing can be traced. `path`: usually [`LOCKDOWN`].
pub fn is_locked_down(path: &Path) -> bool {
    // A kernel without the security module does not have the file and is not locked down.
    std::fs::read_to_string(path).is_ok_and(|text| text.contains("[confidentiality]"))
}

/// Checks of the host.
#[derive(Debug)]
pub struct Doctor {
    /// Tracefs.
    pub tracefs: Tracefs,
    /// The daemon's instance.
    pub instance: Arc<CurrentInstance>,
    /// Facts of the kernel.
    pub facts: Arc<FactsCache>,
    /// The daemon's own probes.
    pub registry: Arc<Registry>,
    /// Usually `/proc`.
    pub procfs: PathBuf,
    /// Usually [`LOCKDOWN`].
    pub lockdown: PathBuf,
    /// The kernel had kprobe events when the daemon was started: what it is built with does not change.
    pub had_kprobe_events: bool,
    /// What the skipped runs of probes are compared with.
    pub skipped: SkippedRuns,
}

impl Doctor {
    /// Runs all checks. Runs those about probes only if the host can have probes. `probes` are all
    /// probes with their present states.
    pub fn checks(&self, probes: &[Arc<Probe>]) -> Vec<HostCheck> {
        let mut checks = vec![self.tracefs_check()];
        checks.extend(self.instance_checks());
        if self.had_kprobe_events {
            checks.extend([self.ftrace_check(), self.kprobes_check(), self.facts_check()]);
            checks.push(probes_check(probes));
            checks.push(self.skipped.check(self.tracefs.hit_counts(), probes, SystemTime::now()));
        }
        checks.push(self.lockdown_check());
        checks
    }

    fn tracefs_check(&self) -> HostCheck {
        let root = self.tracefs.root().display();
        if self.had_kprobe_events && !self.tracefs.has_kprobe_events() {
            return failed(
                "tracefs",
                format!("`kprobe_events` is no longer in {root}: no probe can be defined, enabled or deleted"),
                self.fix("mount tracefs there again (`mount -t tracefs nodev /sys/kernel/tracing`), and restart the daemon"),
            );
        }
        if !self.tracefs.has_kprobe_events() {
            return warning(
                "tracefs",
                format!(
                    "mounted on {root}, without kprobe events: only probes of the kernel's own events are possible"
                ),
                "boot a kernel with CONFIG_KPROBE_EVENTS",
            );
        }
        match self.tracefs.kprobe_list() {
            Ok(_) => ok("tracefs", format!("mounted on {root}, with kprobe events")),
            Err(error) => failed(
                "tracefs",
                error.to_string(),
                self.fix(
                    "run the daemon as root, with the capabilities of its unit (CapabilityBoundingSet=)",
                ),
            ),
        }
    }

    /// Every file of the daemon's instance that decides what is recorded, in one of these checks.
    fn instance_checks(&self) -> Vec<HostCheck> {
        let form = self.instance.form();
        let read = self.instance.look(|instance| instance.alterations(&form, &self.procfs));
        let alterations = match read {
            Ok(alterations) => alterations,
            Err(error) => return vec![failed("recording", error.to_string(), self.fix(RESTART))],
        };
        let root = self.instance.get().root().display().to_string();
        let size = form.buffer_kib.map_or_else(|| "unknown".to_owned(), |kib| format!("{kib} KiB"));
        let checks: [(_, &[InstanceFile], _); 6] = [
            ("recording", &[InstanceFile::Recording], format!("on in {root}")),
            ("trace_clock", &[InstanceFile::Clock], format!("`{TRACE_CLOCK}`")),
            (
                "buffer_size",
                &[InstanceFile::BufferSize, InstanceFile::SubBufferSize],
                format!("{size} for each CPU"),
            ),
            (
                "recorded_tasks",
                &[InstanceFile::Tasks, InstanceFile::TasksLeftOut],
                "all but the daemon's own".to_owned(),
            ),
            ("recorded_cpus", &[InstanceFile::Cpus], "all".to_owned()),
            (
                "instance_options",
                &[InstanceFile::EventFork, InstanceFile::Overwrite, InstanceFile::PauseOnTrace],
                "as the daemon set them".to_owned(),
            ),
        ];
        let check = |(id, files, well): (&str, &[InstanceFile], String)| {
            let found: Vec<_> = alterations.iter().filter(|one| files.contains(&one.file)).collect();
            let Some(first) = found.first() else { return ok(id, well) };
            let reasons: Vec<_> = found.iter().map(|alteration| altered(alteration).1).collect();
            let Alteration { file, wanted, .. } = first;
            let fix = match file {
                InstanceFile::Clock => {
                    "enable a probe: that sets the clock `boot` and empties the buffers".to_owned()
                }
                InstanceFile::TasksLeftOut => {
                    "`kprobectl doctor --repair`: that writes the list of the daemon's threads".to_owned()
                }
                InstanceFile::Tasks => format!("echo > {root}/{}", file.name()),
                _ => format!("echo {wanted} > {root}/{}", file.name()),
            };
            let finding = reasons.join("; ");
            if file.is_size() { warning(id, finding, fix) } else { failed(id, finding, fix) }
        };
        checks.map(check).into()
    }

    fn ftrace_check(&self) -> HostCheck {
        if ftrace_enabled(&self.procfs) {
            return ok("ftrace_enabled", "kernel.ftrace_enabled is 1");
        }
        let finding = "kernel.ftrace_enabled is 0: probes at function entries do not fire";
        failed("ftrace_enabled", finding, "sysctl kernel.ftrace_enabled=1")
    }

    fn kprobes_check(&self) -> HostCheck {
        match self.tracefs.kprobes_enabled() {
            Some(true) => ok("kprobes_enabled", "kprobes are switched on"),
            Some(false) => failed(
                "kprobes_enabled",
                "kprobes are switched off as a whole",
                "echo 1 > /sys/kernel/debug/kprobes/enabled, then enable each probe that `kprobectl list` does not show as armed",
            ),
            None => warning(
                "kprobes_enabled",
                "debugfs is not readable: registration cannot be proven, the blacklist is unknown",
                "mount -t debugfs nodev /sys/kernel/debug",
            ),
        }
    }

    fn facts_check(&self) -> HostCheck {
        match self.facts.current() {
            Ok(facts) => ok("kernel_code", format!("{} symbols, code is readable", facts.symbols.len())),
            Err(error) => failed(
                "kernel_code",
                error.to_string(),
                self.fix("sysctl kernel.kptr_restrict=1, and give the daemon CAP_SYSLOG and CAP_SYS_RAWIO"),
            ),
        }
    }

    fn lockdown_check(&self) -> HostCheck {
        if is_locked_down(&self.lockdown) {
            return failed("lockdown", LOCKED_DOWN, UNLOCK);
        }
        ok("lockdown", "does not keep probes out")
    }

    /// What to do about a file of the kernel that cannot be read: on a kernel that is locked down nothing else helps.
    fn fix(&self, otherwise: &str) -> String {
        if is_locked_down(&self.lockdown) { UNLOCK } else { otherwise }.to_owned()
    }

    /// Foreign events: probe events that are not ours.
    pub fn foreign(&self) -> Vec<ForeignProbe> {
        let list = self.tracefs.kprobe_list().unwrap_or_default();
        let foreign = list.probes().iter().filter_map(|listed| {
            let (name, line) = (listed.name.as_ref()?, &listed.line);
            let is_foreign = self.registry.listed(name, line).is_none();
            is_foreign.then(|| ForeignProbe { name: name.to_string(), kernel_definition: line.clone() })
        });
        foreign.collect()
    }
}

/// What to do when files of the trace instance cannot be read.
pub const RESTART: &str = "restart the daemon: its tracing instance may be gone";

/// Whether every probe is as it was requested.
fn probes_check(probes: &[Arc<Probe>]) -> HostCheck {
    let troubles: Vec<_> = probes
        .iter()
        .filter_map(|probe| match &probe.state {
            ProbeState::Drifted(trouble)
            | ProbeState::Failed(trouble)
            | ProbeState::HeldBack(trouble)
            | ProbeState::Tripped(trouble) => Some((probe, trouble)),
            _ => None,
        })
        .filter(|(_, trouble)| !trouble.ends_by_itself())
        .collect();
    let ignored = probes.iter().find_map(|probe| {
        let is_ignored = |warning: &&Diagnostic| warning.code == Code::Livepatched && warning.hint.is_some();
        Some((&probe.name, probe.warnings.iter().find(is_ignored)?))
    });
    if let (true, Some((name, found))) = (troubles.is_empty(), ignored) {
        let hint = found.hint.clone().unwrap_or_default();
        return warning("probes", format!("`{name}`: {}", found.message), hint);
    }
    let Some((_, first)) = troubles.first() else {
        let armed = probes.iter().filter(|probe| probe.state == ProbeState::Armed).count();
        let total = probes.len();
        return ok("probes", format!("{total} probes as they were requested, {armed} of them armed"));
    };
    let reasons = troubles.iter().map(|(probe, trouble)| format!("`{}`: {}", probe.name, trouble.reason));
    let finding = named(reasons, "kprobectl list -o wide");
    // The daemon did as it was configured, and yet these probes do not record.
    let all_tripped = troubles.iter().all(|(probe, _)| matches!(probe.state, ProbeState::Tripped(_)));
    let fix = first.hint.clone();
    if all_tripped { warning("probes", finding, fix) } else { failed("probes", finding, fix) }
}

/// Counts of skipped runs, with which the next look compares: what was skipped long ago, and is not any more, needs
/// no attention.
#[derive(Debug)]
pub struct SkippedRuns {
    /// The counts to compare with, and the latest ones, which are compared with once they are old enough.
    looks: Mutex<[(SystemTime, HitCounts); 2]>,
    /// Whether the kernel counts reads of memory that failed, too: to 5.13
    /// (arch/x86/kernel/kprobes/core.c:kprobe_fault_handler).
    counts_failed_reads: bool,
}

/// Looks that are closer together compare with the same counts: each of them names what grows.
const COMPARED_AFTER: Duration = Duration::from_mins(10);

impl SkippedRuns {
    /// Compares with these counts first: those at the start of the daemon. `kernel`: the numbers of its release, if it
    /// has any.
    pub fn since(time: SystemTime, counts: HitCounts, kernel: Option<(u32, u32)>) -> Self {
        let counts_failed_reads = kernel.is_none_or(|release| release < (5, 14));
        Self { looks: Mutex::new([(time, counts.clone()), (time, counts)]), counts_failed_reads }
    }

    /// Which of these probes the kernel has skipped runs of since an earlier look, or since the daemon was started.
    fn check(
        &self,
        counts: Result<HitCounts, TracefsError>,
        probes: &[Arc<Probe>],
        now: SystemTime,
    ) -> HostCheck {
        let counts = match counts {
            Ok(counts) => counts,
            Err(error) => return failed("skipped_runs", error.to_string(), ""),
        };
        let (since, before) = self.compared(now, &counts);
        let time = prost_types::Timestamp::from(whole_seconds(since));
        let grown = |probe: &Arc<Probe>| {
            let own = probe.own.as_ref()?;
            Some(grown(before.of(own), counts.of(own)?))
        };
        let counted = probes.iter().filter_map(|probe| Some((probe, grown(probe)?)));
        let mut skipped: Vec<_> = counted.filter(|(_, hits)| hits.nmissed > 0).collect();
        skipped.sort_by_key(|(_, hits)| std::cmp::Reverse(hits.nmissed));
        let Some((first, _)) = skipped.first() else {
            return ok("skipped_runs", format!("none since {time}"));
        };
        let runs = skipped.iter().map(|(probe, hits)| {
            format!("`{}`: {} of {} runs", probe.name, hits.nmissed, hits.hits + hits.nmissed)
        });
        let runs = named(runs, "kprobectl ledger");
        let fix = if first.kind == ProbeKind::Return {
            "a return probe has room for so many calls at a time: define it with more, as `rN:NAME FUNCTION`"
        } else if self.counts_failed_reads {
            "the kernel skips a probe that is hit while another one runs on the same CPU: probe another address; before \
             Linux 5.14, each read of memory that failed counts too"
        } else {
            "the kernel skips a probe that is hit while another one runs on the same CPU: probe another address"
        };
        let finding = format!("since {time} the kernel has skipped runs (NMISSED) of {runs}");
        warning("skipped_runs", finding, fix)
    }

    /// The counts to compare with at this time, and since when.
    fn compared(&self, now: SystemTime, counts: &HitCounts) -> (SystemTime, HitCounts) {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let [compared, latest] = &mut *looks;
        // A clock that was set back makes no look old.
        if now.duration_since(latest.0).is_ok_and(|age| age >= COMPARED_AFTER) {
            *compared = std::mem::replace(latest, (now, counts.clone()));
        }
        compared.clone()
    }
}

/// What was counted since then. The kernel counts from zero when an event is defined again.
fn grown(before: Option<Hits>, now: Hits) -> Hits {
    let before = before.filter(|before| before.hits <= now.hits && before.nmissed <= now.nmissed);
    let before = before.unwrap_or_default();
    Hits { hits: now.hits - before.hits, nmissed: now.nmissed - before.nmissed }
}

/// Fractions say nothing to people.
fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

#[cfg(test)]
mod tests {
    use kprobed_proto::v1::CheckStatus;

    use super::*;
    use kprobed_control::Trouble;
    use kprobed_control::samples::probe as test_probe;

    #[test]
    fn a_probe_that_was_disarmed_for_its_cost_is_named() {
        let with = |state| {
            let mut probe = test_probe(1, "kprobes/one");
            probe.state = state;
            Arc::new(probe)
        };
        let trouble =
            |reason: &str| Trouble { code: "TEST", reason: reason.to_owned(), hint: "enable it".to_owned() };
        let tripped = with(ProbeState::Tripped(trouble("it was over its budget")));
        let check = probes_check(&[Arc::clone(&tripped), with(ProbeState::Armed)]);
        assert_eq!((check.status(), check.fix.as_str()), (CheckStatus::Warning, "enable it"));
        assert_eq!(check.finding, "`kprobes/one`: it was over its budget");
        let check = probes_check(&[tripped, with(ProbeState::Failed(trouble("it is gone")))]);
        assert_eq!(check.status(), CheckStatus::Failed);
    }

    #[test]
    fn probes_with_skipped_runs_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let tracefs = Tracefs::new(directory.path(), directory.path().join("debug"));
        let write = |file: &str, text: &str| std::fs::write(directory.path().join(file), text).unwrap();
        // The kernel lists a return probe of a module with its number of instances once the module is there.
        write("kprobe_events", "p:kprobes/one kernel_clone\nr16:kprobes/two kernel_clone\np:other/one f\n");
        let mut two = test_probe(2, "kprobes/two");
        two.kind = ProbeKind::Return;
        if let Some(own) = &mut two.own {
            own.listing = "r:kprobes/two kernel_clone".to_owned();
        }
        let probes = [Arc::new(test_probe(1, "kprobes/one")), Arc::new(two)];
        let at = |minutes: u64| SystemTime::UNIX_EPOCH + Duration::from_mins(minutes);
        write("kprobe_profile", "one 10 3\ntwo 10 0\none 5 5\n");
        let known = SkippedRuns::since(at(0), tracefs.hit_counts().unwrap(), Some((5, 13)));
        let check = |minutes: u64, profile: &str| {
            write("kprobe_profile", profile);
            known.check(tracefs.hit_counts(), &probes, at(minutes))
        };
        let well = check(1, "one 10 3\ntwo 10 0\none 5 5\n");
        let none = "none since 1970-01-01T00:00:00Z";
        assert_eq!((well.status(), well.finding.as_str()), (CheckStatus::Ok, none), "skipped before");
        let ill = check(2, "one 20 4\ntwo 20 190\none 5 5\n");
        assert_eq!(ill.status(), CheckStatus::Warning);
        let named = "since 1970-01-01T00:00:00Z the kernel has skipped runs (NMISSED) of `kprobes/two`: 190 of 200 runs; `kprobes/one`: 1 of 11 runs";
        assert!(ill.finding == named && ill.fix.contains("rN:NAME"), "{ill:?}");
        // Each look names it, until a look is old enough to be compared with.
        assert_eq!(check(3, "one 20 4\ntwo 20 190\none 5 5\n").finding, ill.finding);
        assert_eq!(check(20, "one 20 4\ntwo 20 190\none 5 5\n").finding, ill.finding);
        let over = check(40, "one 20 4\ntwo 20 190\none 5 5\n");
        assert_eq!(
            (over.status(), over.finding.as_str()),
            (CheckStatus::Ok, "none since 1970-01-01T00:20:00Z")
        );
        let newer = SkippedRuns::since(at(40), tracefs.hit_counts().unwrap(), Some((5, 14)));
        // Defined again.
        let again = check(41, "one 5 2\ntwo 20 190\none 5 5\n");
        assert!(again.finding.ends_with("`kprobes/one`: 2 of 7 runs"), "{again:?}");
        assert!(again.fix.contains("5.14, each read of memory that failed"), "{again:?}");
        let newer = newer.check(tracefs.hit_counts(), &probes, at(41));
        assert!(newer.finding.contains("2 of 7 runs") && !newer.fix.contains("5.14"), "{newer:?}");
        assert_eq!(check(42, "one 10 0\n").status(), CheckStatus::Failed);
    }
}
