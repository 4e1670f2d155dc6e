//! Whole paths (`:path`): what the kernel shows as the path of a file is what an event of it has.

use anyhow::{Context as _, Result, ensure};

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        a_file_has_its_whole_path,
    }
};

/// What `head` reads, by what its reads are called in events.
const READ: &[(&str, &str)] = &[
    ("head /etc/kprobed/kprobed.toml", "/etc/kprobed/kprobed.toml"),
    // A file system on a directory of another one, on a directory of a third.
    ("head /sys/kernel/tracing/trace_clock", "/sys/kernel/tracing/trace_clock"),
    ("head /proc/self/mounts", "/proc/"),
    ("head /tmp/paths/a/b/file", "/tmp/paths/a/b/file"),
    // A part of a file system, mounted elsewhere: what is above it is not in the path.
    ("head /tmp/paths/mnt/b/file", "/tmp/paths/mnt/b/file"),
    ("head /tmp/paths/1/2/3/4/5/6/7/8/9/file", ".../"),
    ("true | head", "pipefs:"),
];

const MAKE: &str = "mkdir -p /tmp/paths/a/b /tmp/paths/mnt /tmp/paths/1/2/3/4/5/6/7/8/9
    for i in a/b 1/2/3/4/5/6/7/8/9; do echo x > /tmp/paths/$i/file; done
    mount --bind /tmp/paths/a /tmp/paths/mnt";

/// The paths in a field of a probe's events of one program; empty where none could be read.
fn paths(guest: &DaemonGuest, probe: &str, field: &str, comm: &str) -> Result<Vec<String>> {
    let filter = format!("comm == \"{comm}\"");
    // The history has the events of probes of other tests too, which may have had these names in the group of all.
    let text = guest.ctl(&format!("observe paths/{probe} -q -o json --last 1000 --filter '{filter}'"))?;
    let events = text.lines().filter(|line| line.contains("\"fields\""));
    let path = |line: &str| -> Result<String> {
        let event: serde_json::Value = serde_json::from_str(line)?;
        let value = event["fields"].get(field).with_context(|| line.to_owned())?;
        Ok(value.as_str().unwrap_or_default().to_owned())
    };
    events.map(path).collect()
}

fn a_file_has_its_whole_path(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.shell(MAKE)?;
    for definition in [
        "p:paths/reads vfs_read file:path count",
        "p:paths/opens vfs_open name=path:path",
        "p:paths/deleted vfs_unlink dentry:path",
    ] {
        guest.add(definition)?;
    }
    // The function has this name from 7.2 on.
    guest
        .add("r:paths/opened do_filp_open $retval:path")
        .or_else(|_error| guest.add("r:paths/opened do_file_open $retval:path"))?;
    let commands = READ.iter().map(|(command, _)| format!("{command} > /dev/null\n"));
    let ran = guest.shell(
        &(commands.collect::<String>()
            + "touch /tmp/paths/new; rm /tmp/paths/new; head /tmp/paths/nosuch || true"),
    );
    let seen = ["reads file head", "opens name head", "opened arg1 head", "deleted dentry rm"].map(|words| {
        let words: Vec<_> = words.split(' ').collect();
        paths(&guest, words[0], words[1], words[2])
    });
    guest.shell("umount /tmp/paths/mnt; rm -r /tmp/paths")?;
    ran?;
    let [read, opens, opened, deleted] = seen;
    let (read, opens, opened, deleted) = (read?, opens?, opened?, deleted?);
    for (command, expected) in READ {
        let is_it = |path: &&String| {
            if expected.ends_with('/') { path.starts_with(expected) } else { *path == expected }
        };
        let is_in = |seen: &[String]| seen.iter().any(|path| is_it(&path));
        ensure!(is_in(&read), "{command}: {expected} is not in {read:?}");
        if command.starts_with("head ") {
            // 5.10 skips returns in a guest, and counts them (NMISSED).
            let is_returned = is_in(&opened) || fixture.is_older_than(6, 1);
            ensure!(is_in(&opens) && is_returned, "{command}: {expected} is not in {opens:?} and {opened:?}");
        }
    }
    // The path of a directory entry ends where its file system does, which is mounted on /tmp.
    ensure!(deleted.iter().any(|path| path == "/paths/new"), "{deleted:?}");
    // An error that a function returns points to no file.
    ensure!(opened.iter().any(String::is_empty), "no fault in {opened:?}");
    let deep = read.iter().find(|path| path.starts_with(".../")).context("no path was cut")?;
    ensure!("/tmp/paths/1/2/3/4/5/6/7/8/9/file".ends_with(deep.trim_start_matches("...")), "{deep}");
    let filter =
        "kprobectl observe paths/reads -q --last 1000 --filter 'file == \"/etc/kprobed/kprobed.toml\"'";
    let filtered = guest.shell(filter)?;
    let mut events = filtered.lines().filter(|line| line.contains("paths/reads")).peekable();
    ensure!(
        events.peek().is_some() && events.all(|line| line.contains("file=\"/etc/kprobed/kprobed.toml\"")),
        "{filtered}"
    );
    Ok(())
}
