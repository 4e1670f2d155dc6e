//! Making a guest clean for the next trial, and proving that it is: a trial that failed half-way
//! must not fail the next one.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kprobed_client::Client;
use kprobed_vm::daemon;
use kprobed_vm::machine::{MachineError, Signal};
use kprobed_vm::protocol::Status;

use super::{DaemonGuest, PATIENCE, TRACEFS, deletion};

/// Empties what trials leave to others, whether the daemon runs or not.
const EMPTY: &str = "rm -rf /etc/kprobed/probes.d /tmp/*
    for log in /run/log/*; do [ $log = /run/log/kprobed.log ] || rm $log; done
    cd /sys/kernel/tracing && echo > error_log && echo > kprobe_events && cd / || exit 1\n";

/// What is left of a daemon that was killed, in the kernel and on the disk.
const WIPE: &str = "cd /sys/kernel/tracing/instances
    for i in kprobed*; do [ ! -d $i ] || { echo 0 > $i/events/enable && rmdir $i || exit 1; }; done
    rm -rf /var/lib/kprobed/* /run/kprobed/* /run/log/kprobed.log\n";

/// Shows all that a trial can change in tracefs, the kernel's switches, modules, mounts, and programs
/// that run. With two programs: to start one takes an emulated guest longer than what it does.
const SHOW: &str = "cd /sys/kernel/tracing; for i in instances/*; do echo $i; done
    grep -s '' kprobe_events uprobe_events dynamic_events synthetic_events set_event set_event_pid set_ftrace_pid \
        set_ftrace_filter tracing_on current_tracer trace_clock tracing_cpumask events/enable \
        /sys/kernel/debug/kprobes/enabled /proc/sys/debug/kprobes-optimization /proc/sys/kernel/ftrace_enabled \
        /sys/devices/system/cpu/online /proc/modules /proc/mounts
    ls -l /proc/[0-9]*/exe 2> /dev/null; true\n";

/// What is compared of what [`SHOW`] prints: all but one daemon and one instance of it.
fn comparable(shown: &str) -> Vec<String> {
    let words = |text: &str, count| text.split(' ').take(count).collect::<Vec<_>>().join(" ");
    let (mut instances, mut daemons) = (0, 0);
    let line = |line: &str| {
        if let Some((_, program)) = line.split_once(" -> ") {
            let is_own = program.ends_with("/kprobed");
            daemons += u32::from(is_own);
            return (!is_own).then(|| program.to_owned());
        }
        if let Some(instance) = line.strip_prefix("instances/") {
            let is_own = matches!(instance, "kprobed" | "kprobed-next");
            instances += u32::from(is_own);
            return (!is_own && instance != "*").then(|| line.to_owned());
        }
        // A link of the kernel's own tasks leads nowhere.
        let is_link = line.starts_with('l');
        let kept = match line.split_once(':') {
            Some(("/proc/modules", module)) => words(module, 1),
            Some(("/proc/mounts", mount)) => words(mount, 3),
            _ => line.to_owned(),
        };
        (!is_link).then_some(kept)
    };
    let mut lines: Vec<_> = shown.lines().filter_map(line).collect();
    if instances.max(daemons) > 1 {
        lines.push(format!("{daemons} daemons with {instances} instances"));
    }
    lines.sort();
    lines
}

/// How long it may take until a program is gone that was killed.
const GONE: Duration = Duration::from_secs(5);

impl DaemonGuest {
    /// As it was when no trial had used it, apart from what the daemon has on its disk, and with this
    /// configuration. A daemon that runs with another one, has lost its database, or runs no more, is
    /// started anew.
    pub(crate) fn reset(&mut self, config: &str) -> Result<()> {
        if self.started_with != config || self.has_lost_database || !self.runs()? {
            return self.renew(config);
        }
        if self.machine.get(daemon::CONFIG_PATH)? != config.as_bytes() {
            self.reload(config)?;
        }
        self.delete_all()?;
        self.ensure_clean(&format!("{EMPTY} : > /run/log/kprobed.log\n"))
    }

    /// Deletes all probes.
    pub(crate) fn delete_all(&self) -> Result<()> {
        let requests: Vec<_> = self.probes()?.iter().map(|probe| deletion(&probe.name)).collect();
        for requests in requests.chunks(Client::CHANGES_AT_ONCE) {
            self.wait_for(self.client.delete_probes(requests.to_vec()))??
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?;
        }
        Ok(())
    }

    /// As it was when no trial had used it, with a daemon that starts with an empty directory.
    pub(crate) fn renew(&mut self, config: &str) -> Result<()> {
        // All that it would take back or store now is wiped anyway.
        match self.machine.signal(daemon::NAME, Signal::SIGKILL) {
            Ok(()) | Err(MachineError::Refused { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let ended = self.machine.wait(daemon::NAME, PATIENCE)?;
        ensure!(ended != Status::TimedOut, "the daemon was killed, and goes on");
        self.ensure_clean(&format!("{WIPE}{EMPTY}"))?;
        self.has_lost_database = false;
        self.restart(config)
    }

    fn runs(&self) -> Result<bool> {
        Ok(self.machine.wait(daemon::NAME, Duration::ZERO)? == Status::TimedOut)
    }

    /// Cleans with a script, and compares what the guest shows then with what it showed the first
    /// time, before any trial.
    fn ensure_clean(&self, script: &str) -> Result<()> {
        let mut shown = comparable(&self.shell(&format!("( {script} ) || exit 1\n{SHOW}"))?);
        let clean = self.clean.get_or_init(|| shown.clone());
        let begun = Instant::now();
        while shown != *clean && begun.elapsed() < GONE {
            thread::sleep(Duration::from_millis(200));
            shown = comparable(&self.shell(SHOW)?);
        }
        // With several of a kind, such as shells, all of them.
        let differ = |of: &[String], than: &[String]| {
            let count = |lines: &[String], line: &str| lines.iter().filter(|other| *other == line).count();
            of.iter().filter(|line| count(of, line) > count(than, line)).cloned().collect::<Vec<_>>()
        };
        ensure!(
            shown == *clean,
            "{TRACEFS} or the guest is not as it was: {:?} and not {:?}",
            differ(&shown, clean),
            differ(clean, &shown)
        );
        Ok(())
    }
}
