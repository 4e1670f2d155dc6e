//! The one-liners of two pages, each run as it is written, by a shell in the guest: a line whose function, event, field
//! or option is not there is a wrong page.

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::machine::Command;

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Rarely {
        recipes_show_what_they_say,
        what_other_tools_do_is_done,
    }
};

const RECIPES: &str = include_str!("../../../docs/howto/recipes.md");
const FROM_OTHERS: &str = include_str!("../../../docs/howto/from-bpftrace.md");

/// What the pages are about, all the time: files that are there and that are not, large reads, writes to a disk,
/// programs.
const WORK: &str = "while :; do cat /etc/passwd /etc/hostname > /tmp/copy; cat /etc/nothere /tmp/x.stat
    dd if=/dev/zero of=/var/lib/kprobed/copy bs=8192 count=4 conv=fsync
    dd if=/var/lib/kprobed/copy of=/dev/null bs=8192
    rm -f /tmp/copy /var/lib/kprobed/copy; sleep 0.05; done > /dev/null 2>&1";

/// Two names of the daemon in the guest, at addresses that differ: one address is refused for two names.
const CONFIGURATION: &str = "\
current_context: guest
contexts:
  guest:
    hosts:
      web1: {address: 'unix:/run/kprobed/kprobed.sock'}
      web2: {address: 'unix:/run/kprobed/../kprobed/kprobed.sock'}
";

/// How long a line counts and traces here: what it shows comes many times in a second.
const SHORT: &str = "--for 2s";

/// The commands of a page: indented lines, and what a `\` at the end of one continues.
fn commands(page: &str) -> Vec<String> {
    let joined = page.replace(" \\\n       ", "");
    let indented = joined.lines().filter_map(|line| line.strip_prefix("    "));
    indented.filter(|line| line.starts_with("kprobectl ")).map(str::to_owned).collect()
}

/// Whether a command has shown something beside headings.
fn is_shown(command: &str, printed: &str) -> bool {
    let begins = |row: &str| row.starts_with(|first: char| first.is_ascii_digit());
    let has_number = |row: &str| row.contains(|c: char| ('1'..='9').contains(&c));
    let mut rows = printed.lines().filter(|row| !row.trim().is_empty());
    match command.split(' ').nth(1) {
        // An event begins with its time.
        Some("trace" | "observe") => rows.any(begins),
        Some("hist" | "latency" | "hits") => rows.skip(1).any(has_number),
        Some("stacks") => rows.any(has_number),
        _ => rows.next().is_some(),
    }
}

/// Runs the commands of a page, one after the other.
fn run(fixture: &Fixture, page: &str, least: usize) -> Result<()> {
    let commands = commands(page);
    ensure!(commands.len() >= least, "only {} commands: {commands:?}", commands.len());
    let guest = fixture.daemon()?;
    guest.machine.put("/tmp/recipes.yaml", 0o600, CONFIGURATION.as_bytes())?;
    guest.machine.spawn("work", &Command::shell(WORK))?;
    let faults = commands.iter().map(|command| fault(fixture, &guest, command)).collect::<Result<Vec<_>>>();
    guest.machine.kill_process("work")?;
    let faults: Vec<_> = faults?.into_iter().flatten().collect();
    ensure!(faults.is_empty(), "{} of {}:\n{}", faults.len(), commands.len(), faults.join("\n"));
    // The daemon deletes those of a command that was refused after it had gone.
    guest.until("the lines leave no probe behind", || Ok(guest.probes()?.is_empty()))?;
    Ok(())
}

/// What a command has printed, if it fails or shows nothing. Where the kernel cannot count, or write call stacks, the
/// daemon has to say so.
fn fault(fixture: &Fixture, guest: &DaemonGuest, command: &str) -> Result<Option<String>> {
    let line = command.replace("--for 10s", SHORT);
    let hosts = if line.contains("--hosts") { "export KPROBECTL_CONFIG=/tmp/recipes.yaml; " } else { "" };
    let script = format!("{hosts}{line}");
    let output = guest.machine.exec(&Command::new("timeout").args(["60", "sh", "-c", script.as_str()]))?;
    let printed = output.stdout_text();
    let lacks = !fixture.counts_events() && output.stderr_text().contains("[NOT_BUILT]");
    if lacks || (output.status.success() && is_shown(command, &printed)) {
        return Ok(None);
    }
    Ok(Some(format!("$ {command}\n{output:?}")))
}

fn recipes_show_what_they_say(fixture: &Fixture) -> Result<()> {
    run(fixture, RECIPES, 25).context("recipes.md")
}

fn what_other_tools_do_is_done(fixture: &Fixture) -> Result<()> {
    run(fixture, FROM_OTHERS, 25).context("from-bpftrace.md")
}
