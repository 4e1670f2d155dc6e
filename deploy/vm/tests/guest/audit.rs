//! The audit log on a real kernel: who did what, whatever the kernel answered and whenever the daemon
//! was killed.

use std::cell::RefCell;
use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{AuditAction, AuditEntry, ReadAuditRequest};
use kprobed_client::event::StreamRequest;

use crate::Test;
use crate::daemon::{DaemonGuest, config_with_roles};
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        every_change_and_refusal_is_logged,
    }
    Seldom {
        a_killed_daemon_leaves_a_whole_log,
    }
};

const ROLES: &str = "[[role]]\nname = \"root\"\nprincipals = [\"uid:0\"]\n[[role.allow]]\nmethods = [\"all\"]\nreads = [\"all\"]\n\
    [[role]]\nname = \"guest\"\nprincipals = [\"loopback\"]\n[[role.allow]]\nmethods = [\"all\"]\nreads = [\"all\"]\n\
    [[role.deny]]\nmethods = [\"change\"]\nfunctions = [\"vfs_*\"]\n";

fn config() -> String {
    config_with_roles(&format!("{ROLES}[log]\nlevel = \"debug\"\n"))
}

fn entries(guest: &DaemonGuest) -> Result<Vec<AuditEntry>> {
    guest.wait_for(async {
        let mut stream = guest.client.read_audit(ReadAuditRequest::default()).await?;
        let mut entries = Vec::new();
        while let Some(entry) = stream.next().await? {
            entries.push(entry);
        }
        Ok::<_, anyhow::Error>(entries)
    })?
}

/// Refusals and reads are written beside the calls.
fn find(guest: &DaemonGuest, what: &str, is_it: impl Fn(&AuditEntry) -> bool) -> Result<AuditEntry> {
    let found = RefCell::new(None);
    guest.until(what, || {
        *found.borrow_mut() = entries(guest)?.into_iter().find(|entry| is_it(entry));
        Ok(found.borrow().is_some())
    })?;
    found.into_inner().context("it was found")
}

fn every_change_and_refusal_is_logged(fixture: &Fixture) -> Result<()> {
    let guest = fixture.new_daemon(&config())?;
    guest.add("p:calls __x64_sys_getppid")?;
    let made = entries(&guest)?.pop().context("an entry")?;
    ensure!(made.action() == AuditAction::Changed && made.principal == "loopback", "{made:?}");
    ensure!(
        made.method == "CreateProbe" && made.change == "create" && made.probe == "kprobes/calls",
        "{made:?}"
    );
    let in_kernel = guest.tracefs("kprobe_events")?;
    ensure!(in_kernel.contains(made.definition.trim_start_matches("p:")), "{in_kernel} {made:?}");
    ensure!(made.rule.starts_with("role `guest`, line "), "{made:?}");

    // The same call in the log, down to what is written to the kernel.
    ensure!(!made.operation.is_empty(), "{made:?}");
    let lines = guest.shell(&format!("grep 'operation={}' /run/log/kprobed.log", made.operation))?;
    let written = lines.lines().any(|line| line.contains("writes") && line.contains("kprobe_events"));
    ensure!(written && lines.contains("created") && lines.contains("method=\"CreateProbe\""), "{lines}");
    let logged = format!("audit entry sequence={} digest=", made.sequence);
    ensure!(lines.contains(&logged), "{lines}");

    // A refusal of the roles, one of the verdict, and one of the kernel.
    guest.refusal("p:other vfs_read")?;
    let denied = find(&guest, "a refusal of the roles", |entry| entry.probe == "kprobes/other")?;
    ensure!(denied.action() == AuditAction::Refused && denied.reason.contains("forbids"), "{denied:?}");
    guest.refusal("p:nowhere no_such_function")?;
    let refused = find(&guest, "a refusal of the verdict", |entry| entry.definition.contains("no_such"))?;
    ensure!(refused.action() == AuditAction::Refused && !refused.reason.is_empty(), "{refused:?}");
    for (change, command) in [("create", "add sched/no_such"), ("adopt", "adopt kprobes/no_such")] {
        ensure!(guest.ctl_says(command)?.code != 0, "{command}");
        // Of a definition that is refused, the text is all that is known.
        let is_it = |text: &str| text.ends_with("/no_such");
        let refused = find(&guest, change, |entry| {
            entry.change == change && (is_it(&entry.probe) || is_it(&entry.definition))
        })?;
        ensure!(refused.action() == AuditAction::Refused && !refused.reason.is_empty(), "{refused:?}");
    }
    let not_taken = guest.wait_for(guest.client.set_filter("calls", "nosuch == 1"))?;
    ensure!(not_taken.is_err());

    let stream = guest.subscribe(StreamRequest::new().probe("kprobes/*"))?;
    let read = find(&guest, "a stream", |entry| entry.action() == AuditAction::Read)?;
    ensure!(read.method == "StreamEvents" && read.probe == "kprobes/calls", "{read:?}");
    drop(stream);

    guest.shell("kprobectl delete kprobes/calls")?;
    let gone = find(&guest, "the deletion", |entry| entry.change == "delete")?;
    ensure!(gone.action() == AuditAction::Changed && gone.principal.starts_with("user:root"), "{gone:?}");

    guest.ctl_shows("audit verify", &["are as they were written"])?;
    guest.ctl_shows("audit --action refused --probe kprobes/*", &["refused", "kprobes/other"])?;
    Ok(())
}

/// Kills the daemon in the middle of changes. What the log says is then what became of them.
fn a_killed_daemon_leaves_a_whole_log(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.new_daemon(&config())?;
    let mut head = String::new();
    for turn in 0..effort::pick(2, 4) {
        let add = |number| guest.start_ctl(&format!("add 'p:t{turn}_{number} __x64_sys_getppid'"));
        let adding = (1..=8).map(add).collect::<Result<Vec<_>>>()?;
        guest.until("two probes", || {
            Ok(guest.tracefs("kprobe_events")?.matches(&format!("/t{turn}_")).count() >= 2)
        })?;
        guest.kill()?;
        drop(adding);
        guest.restart(&config())?;
        let known: HashSet<_> = guest.probes()?.into_iter().map(|probe| probe.name).collect();
        let entries = entries(&guest)?;
        for name in &known {
            let made = entries.iter().any(|entry| {
                entry.probe == *name && entry.action() == AuditAction::Changed && entry.change == "create"
            });
            ensure!(made, "`{name}` is in no entry");
        }
        for made in entries.iter().filter(|entry| entry.action() == AuditAction::Changed) {
            let after = entries.iter().filter(|entry| entry.sequence > made.sequence);
            let taken_back = after.filter(|entry| entry.probe == made.probe);
            let is_over = taken_back.into_iter().any(|entry| entry.action() == AuditAction::Failed);
            ensure!(
                known.contains(&made.probe) != is_over,
                "`{}` is there or was taken back: {entries:?}",
                made.probe
            );
        }
        let noted = if head.is_empty() { String::new() } else { format!(" --head {head}") };
        guest.ctl(&format!("audit verify{noted}"))?;
        let verified = guest.ctl("audit verify -o json")?;
        let (_, rest) = verified.split_once("\"head\": \"").context("a head")?;
        rest.split('"').next().unwrap_or_default().clone_into(&mut head);
    }
    Ok(())
}
