//! Start errors: the daemon says what failed, on what and why, once, and what to do.

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::machine::Command;

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        a_failed_start_says_what_to_do,
    }
};

/// What a daemon printed that ended by itself: its exit code, and the lines that are not of its
/// log.
fn ended(guest: &DaemonGuest, config: &str, before: &str) -> Result<(i32, Vec<String>)> {
    guest.machine.put("/tmp/start.toml", 0o644, config.as_bytes())?;
    let script = format!("{before}\nkprobed --config /tmp/start.toml\necho \"exit $?\" >&2");
    let output = guest.machine.exec(&Command::shell(script))?;
    let text = output.stderr_text();
    let lines = text
        .lines()
        .filter(|line| ["error: ", "warning: ", "hint: ", "exit "].iter().any(|kind| line.starts_with(kind)));
    let mut lines: Vec<_> = lines.map(str::to_owned).collect();
    ensure!(!text.contains("panicked"), "{text}");
    let code = lines.pop().and_then(|line| line.strip_prefix("exit ")?.parse().ok());
    Ok((code.with_context(|| text.clone())?, lines))
}

/// What keeps a daemon from starting: what is done before, its configuration, and what its error
/// and its hint have to contain.
struct Case {
    name: &'static str,
    before: &'static str,
    config: &'static str,
    error: &'static str,
    hint: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "a state directory that cannot be written",
        before: "mkdir -p /tmp/ro && mount -t tmpfs -o ro none /tmp/ro",
        config: "[state]\ndirectory = \"/tmp/ro\"\n",
        error: "cannot write to the state directory `/tmp/ro`: Read-only file system (os error 30)",
        hint: "set `state.directory` to a directory that can be written",
    },
    Case {
        name: "a history that cannot be written",
        before: "true",
        config: "[state]\ndirectory = \"/tmp/state\"\n[tracing]\ninstance = \"other\"\n[spool]\ndirectory = \"/tmp/ro/spool\"\n",
        error: "`/tmp/ro/spool`: Read-only file system (os error 30)",
        hint: "`enabled = false` in `[spool]`",
    },
    Case {
        name: "the state directory of another daemon",
        before: "umount /tmp/ro",
        config: "[state]\ndirectory = \"/var/lib/kprobed\"\n",
        error: "another kprobed has locked `/var/lib/kprobed/kprobed.lock`: process ",
        hint: "systemctl stop kprobed",
    },
    Case {
        name: "the instance of another daemon",
        before: "true",
        config: "[state]\ndirectory = \"/tmp/state\"\n",
        error: "another kprobed uses the tracing instance `/sys/kernel/tracing/instances/kprobed",
        hint: "set `tracing.instance` to another name",
    },
    Case {
        name: "a database that is not a file",
        before: "mkdir -p /tmp/garbage/kprobed.db",
        config: "[state]\ndirectory = \"/tmp/garbage\"\n",
        error: "cannot open the database `/tmp/garbage/kprobed.db`: unable to open database file",
        hint: "let the user of the daemon write to it and to its directory",
    },
    Case {
        name: "the socket of another daemon",
        before: "true",
        config: "[state]\ndirectory = \"/tmp/state\"\n[tracing]\ninstance = \"other\"\n",
        error: "cannot listen on `/run/kprobed/kprobed.sock`: another process listens there",
        hint: "set `listen.unix` to another place",
    },
    Case {
        name: "the port of another daemon",
        before: "true",
        config: "[listen]\nunix = \"/tmp/other.sock\"\ntcp = \"127.0.0.1:7000\"\n[state]\ndirectory = \"/tmp/state\"\n\
                 [tracing]\ninstance = \"other\"\n",
        error: "cannot listen on `127.0.0.1:7000`: Address already in use (os error 98)",
        hint: "stop the process that listens there",
    },
];

fn a_failed_start_says_what_to_do(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    for Case { name, before, config, error, hint } in CASES {
        let (code, lines) = ended(&guest, config, before)?;
        ensure!(code == 1, "{name}: {code} {lines:#?}");
        let [error_line, hint_line] = lines.as_slice() else { anyhow::bail!("{name}: {lines:#?}") };
        ensure!(error_line.starts_with("error: ") && error_line.contains(error), "{name}: {lines:#?}");
        ensure!(hint_line.starts_with("hint: ") && hint_line.contains(hint), "{name}: {lines:#?}");
        // The cause appears once.
        let cause = error.rsplit(": ").next().unwrap_or(error);
        ensure!(error_line.matches(cause).count() == 1, "{name}: {lines:#?}");
    }
    // The daemon that ran before goes on, and nothing is left of the others.
    ensure!(guest.probes()?.is_empty());
    guest.shell("test ! -e /sys/kernel/tracing/instances/other && test -S /run/kprobed/kprobed.sock")?;
    Ok(())
}
