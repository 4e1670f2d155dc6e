//! `kprobectl` against a real daemon: times, fields and names that an operator types.

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::machine::Command;
use serde_json::Value;

use crate::Test;
use crate::daemon::{self, DaemonGuest, NUMBERS};
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        times_that_are_printed_are_read,
        what_is_unknown_is_refused_with_what_is_known,
        a_command_that_ends_at_once_has_its_events,
    }
    Seldom {
        a_trace_records_what_it_shows,
        task_names_are_meant_whatever_a_probe_records,
    }
};

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
    daemon::events(&guest.ctl(&format!("observe -q -o json {options}"))?)
}

fn times_that_are_printed_are_read(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add(NUMBERS)?;
    call(&guest, 6)?;
    let times = |options: &str| -> Result<Vec<String>> {
        let text = guest.ctl(&format!("observe numbers -q --no-headers {options}"))?;
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
    let refused = guest.ctl_says("observe --for 07:00:00")?;
    ensure!(refused.stderr.contains("is not a duration"), "{refused:?}");
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
        (&format!("--tid {tid}"), (3, 3)),
        ("--tid 2000001", (0, 0)),
        ("--pid 2000001", (0, 0)),
        ("--filter 'fields.comm == 2000001'", (1, 0)),
        ("--filter 'comm == \"workload\" && fields.pid == 2000001'", (1, 0)),
        ("--filter 'probe == \"kprobes/namesakes\"'", (3, 0)),
    ] {
        let found = counts(options)?;
        ensure!(found == expected, "{options}: {found:?}");
    }

    // Of new events too, which are caused when the daemon has subscribed the command.
    let seen = guest.observe("--comm workload -n 2 --for 60s -o json", || call(&guest, 1))?;
    ensure!(seen.contains("kprobes/namesakes") && seen.contains("kprobes/others"), "{seen}");

    // The kernel's filter of a probe follows the kernel's rule: the field of the probe comes first.
    guest.ctl("update namesakes --filter 'comm == 2000001'")?;
    let refused = guest.ctl_says("update namesakes --filter 'comm == \"workload\"'")?;
    ensure!(refused.code == 1 && guest.probe("namesakes")?.filter == "comm == 2000001", "{refused:?}");
    Ok(())
}

/// Events and figures of so many runs of `kprobectl trace`, one after the other.
fn traces(guest: &DaemonGuest, runs: u32, arguments: &str) -> Result<Vec<u64>> {
    let script = format!(
        "i=0; while [ $i -lt {runs} ]; do i=$((i + 1))\n\
         kprobectl trace -o json {arguments} > /tmp/seen 2> /tmp/said || {{ cat /tmp/said >&2; exit 1; }}\n\
         echo \"$(grep -c '\"type\":\"event\"' /tmp/seen) $(grep -v '^observing ' /tmp/said)\"\n\
         done"
    );
    let printed = guest.shell(&script)?;
    let counts = printed.lines().map(|line| {
        let (count, figures) = line.split_once(' ').context("no figures")?;
        ensure!(figures == format!("{count} recorded, {count} shown, 0 lost"), "{arguments}: {printed}");
        Ok(count.parse()?)
    });
    let counts = counts.collect::<Result<Vec<u64>>>().with_context(|| printed.clone())?;
    ensure!(counts.len() == usize::try_from(runs)?, "{arguments}: {printed}");
    Ok(counts)
}

/// Only a kernel that fires at once, and a daemon that a command has to itself, shows what a command
/// of a few milliseconds misses.
fn a_command_that_ends_at_once_has_its_events(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let counts = traces(&guest, effort::pick(4, 20), "'p:brief __x64_sys_execve' -- touch /tmp/brief")?;
    ensure!(counts.iter().all(|count| *count > 0), "a run without the execve of its command: {counts:?}");
    // The history has all that the kernel recorded.
    guest.ledger()?;
    let recorded = events(&guest, "brief --last 10000")?.len() as u64;
    ensure!(counts.iter().sum::<u64>() == recorded, "{recorded} were recorded: {counts:?}");

    // Without a value that a kernel may not prove to be read: that would be a warning.
    let few = format!("'p:few __x64_sys_getsid n=%di' -- workload numbers {FIRST} 3");
    let counts = traces(&guest, effort::pick(3, 10), &few)?;
    ensure!(counts.iter().all(|count| *count == 3), "{counts:?}");
    // A limit that is over before the first event.
    let counts = traces(&guest, effort::pick(3, 5), "'p:never __x64_sys_getsid' --for 1ms")?;
    ensure!(counts.iter().all(|count| *count == 0), "{counts:?}");
    Ok(())
}

/// Only a kernel decides by its filter what it records.
fn a_trace_records_what_it_shows(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.shell("cp $(command -v workload) /tmp/other")?;
    let program = format!("workload numbers {FIRST} 3; /tmp/other numbers {FIRST} 5");
    let (second, fourth) = (FIRST + 1, FIRST + 3);
    for (conditions, said) in [
        ("", "8 recorded, 8 shown, 0 lost"),
        ("--comm workload", "3 recorded, 3 shown, 0 lost"),
        ("--comm 'ot*'", "5 recorded, 5 shown, 0 lost"),
        ("--comm nobody", "0 recorded, 0 shown, 0 lost"),
        ("--tid 1", "0 recorded, 0 shown, 0 lost"),
        ("--cpu 4000", "0 recorded, 0 shown, 0 lost"),
        (&format!("--filter 'n == {second}'"), "2 recorded, 2 shown, 0 lost"),
        (&format!("--filter 'n >= {fourth} || comm == \"workload\"'"), "5 recorded, 5 shown, 0 lost"),
        ("--filter 'nosuch == 1'", "there is no field `nosuch`"),
        // A process is no field of an event.
        ("--pid 1", "8 recorded, 0 shown, 0 lost\n  8 of them were not selected"),
        (
            &format!("--pid 1 --filter 'n == {second}'"),
            "2 recorded, 0 shown, 0 lost\n  2 of them were not selected",
        ),
    ] {
        let command =
            format!("kprobectl trace '{NUMBERS}' {conditions} -o json -- sh -c '{program}' 2>&1 > /tmp/seen");
        let told = guest.shell(&format!("{command} || true"))?;
        ensure!(told.contains(said), "{conditions}: {told}");
        let left = guest.ctl("list --no-headers")?;
        ensure!(left.is_empty(), "{conditions}: {left}");
    }
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
    // An event of the host counts as well.
    guest.ctl("add raw_syscalls/sys_enter --filter 'id == 110'")?;
    guest.ctl("observe --fields id --last 1")?;
    guest.ctl("observe --filter 'id == 110' --last 1")?;
    guest.ctl("delete raw_syscalls/sys_enter")?;
    Ok(())
}
