//! `kprobectl` against a real daemon: times, fields and names that an operator types.

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::machine::Command;
use serde_json::Value;

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        times_that_are_printed_are_read,
        task_names_are_meant_whatever_a_probe_records,
        what_is_unknown_is_refused_with_what_is_known,
    }
};

/// `getsid` is called by nothing else in the guest, and `di` of its registers is its argument.
const NUMBERS: &str = "p:numbers __x64_sys_getsid n=+0x70(%di):s32";

/// Fields with the names of what all events have, of another type.
const NAMESAKES: &str = "p:namesakes __x64_sys_getsid comm=+0x70(%di):s32 pid=+0x70(%di):s32 cpu=+0x70(%di):s64 probe=+0x70(%di):s32";

/// The first number: no process has such an id.
const FIRST: i64 = 2_000_000;

/// Makes calls with `count` numbers, and has their events in the history.
fn call(guest: &DaemonGuest, count: i64) -> Result<()> {
    guest.call(FIRST, count)?;
    guest.ledger().map(drop)
}

/// Events that a command prints as JSON.
fn events(guest: &DaemonGuest, options: &str) -> Result<Vec<Value>> {
    let printed = guest.ctl(&format!("observe -q -o json {options}"))?;
    let objects = printed.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
    Ok(objects.with_context(|| printed.clone())?.into_iter().filter(|one| one["type"] == "event").collect())
}

fn times_that_are_printed_are_read(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add(NUMBERS)?;
    call(&guest, 6)?;
    let times = |options: &str| -> Result<Vec<String>> {
        let text = guest.ctl(&format!("observe numbers -q --no-header {options}"))?;
        Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
    };
    // Of the day, and with the date.
    for form in ["", "--wide"] {
        let all = times(&format!("--last 6 {form}"))?;
        ensure!(all.len() == 6, "{all:?}");
        let fourth = all.get(3).context("no time")?;
        let since = times(&format!("--since {fourth} {form}"))?;
        ensure!(
            since.as_slice() == all.get(3..).unwrap_or_default(),
            "--since {fourth}: {since:?} of {all:?}"
        );
    }
    let all = events(&guest, "numbers --last 6")?;
    let fourth = all.get(3).and_then(|event| event["time"].as_str()).context("no time")?;
    let since = events(&guest, &format!("numbers --since {fourth}"))?;
    ensure!(since.as_slice() == all.get(3..).unwrap_or_default(), "--since {fourth}: {since:?} of {all:?}");
    let refused = guest.ctl_says("observe --duration 07:00:00")?;
    ensure!(refused.stderr.contains("is a time of day"), "{refused:?}");
    Ok(())
}

fn task_names_are_meant_whatever_a_probe_records(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // Whatever their order: `namesakes` comes before `others`. No other test has events of this
    // name in the history.
    guest.add(NAMESAKES)?;
    guest.add(&NUMBERS.replacen(":numbers ", ":others ", 1))?;
    call(&guest, 3)?;
    let counts = |options: &str| -> Result<(usize, usize)> {
        let events = events(&guest, &format!("--last 100 {options}"))?;
        let of = |probe: &str| events.iter().filter(|event| event["probe"] == probe).count();
        Ok((of("kprobes/namesakes"), of("kprobes/others")))
    };
    let tid = events(&guest, "others --last 1")?.first().map(|event| event["tid"].clone()).context("none")?;
    for (options, expected) in [
        ("--comm workload", (3, 3)),
        ("--comm 'work*' --cpu 0 --cpu 1 --cpu 2 --cpu 3", (3, 3)),
        ("--comm nobody", (0, 0)),
        (&format!("--pid {tid}"), (3, 3)),
        ("--pid 2000001", (0, 0)),
        ("--filter 'fields.comm == 2000001'", (1, 0)),
        ("--filter 'comm == \"workload\" && fields.pid == 2000001'", (1, 0)),
        ("--filter 'probe == \"kprobes/namesakes\"'", (3, 0)),
    ] {
        let found = counts(options)?;
        ensure!(found == expected, "{options}: {found:?}");
    }

    // Of new events too, which are caused when the daemon has subscribed the command.
    let seen = guest.observe("--comm workload -n 2 --duration 60s -o json", || call(&guest, 1))?;
    ensure!(seen.contains("kprobes/namesakes") && seen.contains("kprobes/others"), "{seen}");

    // The kernel's filter of a probe follows the kernel's rule: the field of the probe comes first.
    guest.ctl("filter namesakes 'comm == 2000001'")?;
    let refused = guest.ctl_says("filter namesakes 'comm == \"workload\"'")?;
    ensure!(!refused.stdout.contains("workload"), "{refused:?}");
    Ok(())
}

fn what_is_unknown_is_refused_with_what_is_known(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add(NUMBERS)?;
    guest.add("p:beside __x64_sys_getppid")?;
    call(&guest, 1)?;
    for (arguments, expected) in [
        ("observe numbers --fields nosuch", "`kprobes/numbers` has no field `nosuch`"),
        ("observe --fields nosuch --last 1", "none of the 2 selected probes has a field `nosuch`"),
        ("observe --fields n,com --last 1", "did you mean `comm`?"),
        ("observe --fields n --last 1", "`kprobes/beside` has no field `n`"),
        ("symbols --module nosuch", "no module `nosuch` is loaded"),
    ] {
        let said = guest.ctl_says(arguments)?;
        ensure!(said.all().contains(expected), "{arguments}: {said:?}");
    }
    let absent = guest.machine.exec(&Command::shell("kprobectl version --server /run/nosuch.sock"))?;
    ensure!(absent.status.shell_code() == 3, "{absent:?}");
    ensure!(events(&guest, "--fields n --last 1")?.len() == 1);
    // An attached event counts as well as a probe.
    guest.ctl("attach raw_syscalls/sys_enter --filter 'id == 110'")?;
    guest.ctl("observe --fields id --last 1")?;
    guest.ctl("observe --filter 'id == 110' --last 1")?;
    guest.ctl("detach raw_syscalls/sys_enter")?;
    Ok(())
}
