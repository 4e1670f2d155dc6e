//! `cargo vm demo`: a probe on a real kernel from its definition to its deletion, shown as it
//! happens.

use anyhow::{Result, ensure};
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::daemon;
use kprobed_vm::machine::{Command, Machine, Stream};
use kprobed_vm::progress;

use super::guest::{GuestArguments, post_mortem};

/// Watch `kernel_clone` fire on a real kernel, from the definition of a probe to the last trace of
/// it
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm demo
  cargo vm demo --kernel 6.1")]
pub(crate) struct Demo {
    #[command(flatten)]
    guest: GuestArguments,
}

/// The first argument of `kernel_clone` points to a structure, whose first, third and fourth
/// members these are.
const ENTRY: &str =
    "p:doforkprobe kernel_clone clone_flags=+0(%di):x64 child_tidptr=+16(%di):x64 parent_tidptr=+24(%di):x64";
const RETURN: &str = "r:fork_retprobe kernel_clone child=$retval:s32";

/// Processes that the workload starts. Each is one event of either probe.
const PROCESSES: u32 = 8;
/// Events that must be seen.
const EVENTS: usize = 10;

/// Script that prints what tracefs shows of probes. The daemon's own instance exists as long as the
/// daemon runs.
const FOOTPRINT: &str = "cd /sys/kernel/tracing && cat kprobe_events kprobe_profile && ls events";

impl Demo {
    pub(crate) fn run(self, cache: Cache) -> Result<()> {
        // One that was interrupted has left its probes.
        let guest = self.guest.fresh().start(cache, "demo", 0, &[])?;
        if let Err(error) = tell(&guest.machine) {
            post_mortem(&guest.machine);
            return Err(error);
        }
        guest.finish()
    }
}

/// The story. Fails when it does not go as told.
fn tell(machine: &Machine) -> Result<()> {
    let before = quiet(machine, FOOTPRINT)?;
    chapter(machine, "The host, as the daemon sees it", "kprobectl doctor")?;
    chapter(machine, "A probe on the function that makes processes", &format!("kprobectl add '{ENTRY}'"))?;
    chapter(machine, "And one on its return", &format!("kprobectl add '{RETURN}'"))?;
    chapter(machine, "Both are armed", "kprobectl list")?;

    let observe = format!(
        "kprobectl observe doforkprobe fork_retprobe --comm workload --for 10s 2> /tmp/observer &\n\
         until grep -q observing /tmp/observer || ! kill -0 $!; do sleep 0.2; done\n\
         workload spawn {PROCESSES} > /dev/null; kprobectl ledger; wait $!; cat /tmp/observer"
    );
    let title = "Their events, while a program starts eight others; and where each of them went";
    let seen = chapter(machine, title, &observe)?;
    let events =
        seen.lines().filter(|line| line.contains("clone_flags=0x") || line.contains("child=")).count();
    ensure!(events >= EVENTS, "only {events} events were seen");
    ensure!(seen.contains("the ledger closes"), "the ledger does not close");

    chapter(machine, "How often they were hit, by the kernel's own count", "kprobectl hits")?;
    chapter(machine, "Switched off", "kprobectl disable doforkprobe fork_retprobe")?;
    chapter(machine, "And deleted", "kprobectl delete doforkprobe fork_retprobe")?;

    let after = quiet(machine, FOOTPRINT)?;
    ensure!(after == before, "tracefs has changed; before:\n{before}\nafter:\n{after}");
    progress::result(
        "\n# tracefs shows what it showed before the first probe: the same events, no definitions",
    )?;

    ensure!(
        daemon::stop(machine)?.success(),
        "the daemon did not stop cleanly:\n{}",
        daemon::log_tail(machine)
    );
    let left = quiet(machine, "ls /sys/kernel/tracing/instances 2>/dev/null; true")?;
    ensure!(left.is_empty(), "an instance is left: {left}");
    progress::result("# the daemon has stopped, and taken its tracing instance with it")?;
    Ok(())
}

/// Shows a title, the command and what it prints; gives back its standard output.
fn chapter(machine: &Machine, title: &str, script: &str) -> Result<String> {
    progress::result(format_args!("\n# {title}"))?;
    for (index, line) in script.lines().enumerate() {
        progress::result(format_args!("{} {line}", if index == 0 { "$" } else { ">" }))?;
    }
    let mut text = Vec::new();
    let mut shown = Ok(());
    let status = machine.exec_streaming(&Command::shell(script), |stream, bytes| {
        if stream == Stream::Stdout {
            text.extend_from_slice(bytes);
        }
        super::exec::pass_on(stream, bytes, &mut shown);
    })?;
    shown?;
    ensure!(status.success(), "`{script}` ended with {status:?}");
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Runs a script without showing it.
fn quiet(machine: &Machine, script: &str) -> Result<String> {
    let output = machine.exec(&Command::shell(script))?;
    ensure!(output.status.success(), "`{script}`: {}", output.stderr_text());
    Ok(output.stdout_text())
}
