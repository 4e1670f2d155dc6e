//! Checks of the host (`kprobectl doctor`): tracefs, kprobes, the daemon's instance and its probes.
//!
//! Owns these checks. Never changes a system setting: other tools may depend on it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::control::{Probe, ProbeState, Registry, ftrace_enabled};
use crate::health::{HostCheck, failed, ok, warning};
use kprobed_host::kernel::{FactsCache, TRACE_CLOCK};
use kprobed_host::tracefs::{CurrentInstance, Instance, ListedProbe, Tracefs};
use kprobed_lang::definition::{Code, Diagnostic};
use kprobed_lang::model::ProbeName;

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
    /// Usually `/sys/kernel/security/lockdown`.
    pub lockdown: PathBuf,
}

impl Doctor {
    /// Runs all checks. Runs those about probes only if the host can have probes. `probes` are all
    /// probes with their present states.
    pub fn checks(&self, probes: &[Arc<Probe>]) -> Vec<HostCheck> {
        let mut checks = vec![self.tracefs_check(), self.recording_check()];
        checks.extend([self.clock_check(), self.buffer_check(), self.task_check()]);
        if self.tracefs.has_kprobe_events() {
            checks.extend([self.ftrace_check(), self.kprobes_check(), self.facts_check()]);
            checks.push(probes_check(probes));
        }
        checks.push(self.lockdown_check());
        checks
    }

    fn tracefs_check(&self) -> HostCheck {
        let root = self.tracefs.root().display();
        if !self.tracefs.has_kprobe_events() {
            return warning(
                "tracefs",
                format!(
                    "mounted on {root}, without kprobe events: there can be no probes, only attached events"
                ),
                "boot a kernel with CONFIG_KPROBE_EVENTS",
            );
        }
        match self.tracefs.kprobe_list() {
            Ok(_) => ok("tracefs", format!("mounted on {root}, with kprobe events")),
            Err(error) => failed(
                "tracefs",
                error.to_string(),
                "run the daemon as root on a kernel with CONFIG_KPROBE_EVENTS",
            ),
        }
    }

    fn recording_check(&self) -> HostCheck {
        let instance = self.instance.get();
        match instance.is_recording() {
            Ok(true) => ok("recording", format!("on in {}", instance.root().display())),
            Ok(false) => failed(
                "recording",
                "`tracing_on` of the daemon's instance is 0: nothing is recorded".to_owned(),
                format!("echo 1 > {}/tracing_on", instance.root().display()),
            ),
            Err(error) => {
                failed("recording", error.to_string(), "restart the daemon: its tracing instance is gone")
            }
        }
    }

    fn clock_check(&self) -> HostCheck {
        match self.instance.look(Instance::clock) {
            Ok(clock) if clock == TRACE_CLOCK => ok("trace_clock", format!("`{clock}`")),
            Ok(clock) => failed(
                "trace_clock",
                format!(
                    "the daemon's instance was changed to the clock `{clock}`: times of events are wrong"
                ),
                "enable a probe: that sets the clock `boot` and empties the buffers",
            ),
            Err(error) => failed("trace_clock", error.to_string(), ""),
        }
    }

    fn buffer_check(&self) -> HostCheck {
        match (self.instance.look(Instance::buffer_kib), self.instance.made_with_kib()) {
            (Ok(now_kib), Some(made_kib)) if now_kib.abs_diff(made_kib) > ROUNDING_KIB => warning(
                "buffer_size",
                format!(
                    "the buffers of the daemon's instance were changed from {made_kib} KiB to {} for each CPU",
                    if now_kib == 0 { "several sizes".to_owned() } else { format!("{now_kib} KiB") }
                ),
                format!("echo {made_kib} > {}/buffer_size_kb", self.instance.get().root().display()),
            ),
            (Ok(now_kib), _) => ok("buffer_size", format!("{now_kib} KiB for each CPU")),
            (Err(error), _) => failed("buffer_size", error.to_string(), ""),
        }
    }

    fn task_check(&self) -> HostCheck {
        match self.instance.look(Instance::is_limited_to_tasks) {
            Ok(false) => ok("recorded_tasks", "all but the daemon's own".to_owned()),
            Ok(true) => failed(
                "recorded_tasks",
                "`set_event_pid` of the daemon's instance limits recording to some tasks".to_owned(),
                format!("echo > {}/set_event_pid", self.instance.get().root().display()),
            ),
            Err(error) => failed("recorded_tasks", error.to_string(), ""),
        }
    }

    fn ftrace_check(&self) -> HostCheck {
        if ftrace_enabled(&self.procfs) {
            return ok("ftrace_enabled", "kernel.ftrace_enabled is 1".to_owned());
        }
        let finding = "kernel.ftrace_enabled is 0: probes at function entries do not fire".to_owned();
        failed("ftrace_enabled", finding, "sysctl kernel.ftrace_enabled=1")
    }

    fn kprobes_check(&self) -> HostCheck {
        match self.tracefs.kprobes_enabled() {
            Some(true) => ok("kprobes_enabled", "kprobes are switched on".to_owned()),
            Some(false) => failed(
                "kprobes_enabled",
                "kprobes are switched off as a whole".to_owned(),
                "echo 1 > /sys/kernel/debug/kprobes/enabled, then enable each probe that `kprobectl list` does not show as armed",
            ),
            None => warning(
                "kprobes_enabled",
                "debugfs is not readable: registration cannot be proven, the blacklist is unknown".to_owned(),
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
                "sysctl kernel.kptr_restrict=1, and give the daemon CAP_SYSLOG and CAP_SYS_RAWIO",
            ),
        }
    }

    fn lockdown_check(&self) -> HostCheck {
        // A kernel without the security module does not have the file and is not locked down.
        let text = std::fs::read_to_string(&self.lockdown).unwrap_or_default();
        if text.contains("[confidentiality]") {
            let finding = "the kernel is locked down (confidentiality): no probes, no code".to_owned();
            return failed("lockdown", finding, "boot with lockdown=integrity or lockdown=none");
        }
        ok("lockdown", "does not keep probes out".to_owned())
    }

    /// Foreign events: probe events that are not ours.
    pub fn foreign(&self) -> Vec<(ProbeName, ListedProbe)> {
        let list = self.tracefs.kprobe_list().unwrap_or_default();
        list.probes()
            .iter()
            .filter_map(|listed| Some((listed.name.clone()?, listed.clone())))
            .filter(|(name, listed)| {
                let ours = self.registry.get(name).and_then(|probe| Some(probe.own.clone()?.listing));
                ours.as_ref() != Some(&listed.line)
            })
            .collect()
    }
}

/// The kernel rounds a buffer to whole sub-buffers of their data size: a size that is written back
/// can become this much larger.
const ROUNDING_KIB: u64 = 256;

/// Most probes that one finding names.
const NAMED: usize = 3;

/// Whether every probe is as it was requested.
fn probes_check(probes: &[Arc<Probe>]) -> HostCheck {
    let troubles: Vec<_> = probes
        .iter()
        .filter_map(|probe| match &probe.state {
            ProbeState::Drifted(trouble) | ProbeState::Failed(trouble) | ProbeState::HeldBack(trouble) => {
                Some((&probe.name, trouble))
            }
            _ => None,
        })
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
        return ok(
            "probes",
            format!("{} probes as they were requested, {armed} of them armed", probes.len()),
        );
    };
    let mut finding: Vec<_> =
        troubles.iter().take(NAMED).map(|(name, trouble)| format!("`{name}`: {}", trouble.reason)).collect();
    if troubles.len() > NAMED {
        finding.push(format!("{} more (`kprobectl list -o wide`)", troubles.len() - NAMED));
    }
    failed("probes", finding.join("; "), first.hint.clone())
}
