//! Shipped files: the capabilities of the systemd unit suffice.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::machine::{Command, Signal};
use kprobed_vm::protocol::Status;
use kprobed_vm::workspace;

use crate::Test;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        the_units_capabilities_are_enough,
    }
};

fn shipped(path: &str) -> Result<String> {
    let root = workspace::root().context("no workspace")?;
    fs::read_to_string(root.join("deploy").join(path)).with_context(|| path.to_owned())
}

/// What the unit sets.
fn of_unit(setting: &str) -> Result<String> {
    let unit = shipped("systemd/kprobed.service")?;
    let value = unit.lines().find_map(|line| line.strip_prefix(setting)?.strip_prefix('='));
    value.map(str::to_owned).with_context(|| format!("the unit has no {setting}="))
}

/// `CAP_SYS_RAWIO CAP_SYSLOG` as `-all,+sys_rawio,+syslog`.
fn bounding_set() -> Result<String> {
    let line = of_unit("CapabilityBoundingSet")?;
    let names = line.split_whitespace().filter_map(|name| name.strip_prefix("CAP_"));
    Ok(names.fold("-all".to_owned(), |set, name| format!("{set},+{}", name.to_lowercase())))
}

fn the_units_capabilities_are_enough(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    guest.stop()?;
    // The host mounts them before, as systemd does: the first daemon has left them mounted.
    guest.shell("test -e /sys/kernel/tracing/kprobe_events && test -e /sys/kernel/debug/kprobes")?;
    // The unit gives nothing else: no new privileges, the group of the socket, and nothing beyond the set.
    let confined = Command::new("setpriv")
        .arg("--no-new-privs")
        .arg(format!("--regid={}", of_unit("Group")?))
        .arg("--clear-groups")
        .arg(format!("--bounding-set={}", bounding_set()?))
        .args(["/usr/bin/kprobed", "--config", "/etc/kprobed/kprobed.toml"]);
    guest.machine.spawn("confined", &confined)?;
    guest.until("it serves", || {
        let status = guest.machine.wait("confined", Duration::from_millis(50))?;
        ensure!(status == Status::TimedOut, "{status:?}: {}", guest.shell("cat /run/log/confined.log")?);
        Ok(guest.ctl_says("list")?.code == 0)
    })?;
    let effective = guest.shell("grep CapEff /proc/$(pidof kprobed)/status")?;
    ensure!(!effective.contains("1ffffffffff"), "it has every capability: {effective}");
    guest.shell("kprobectl doctor")?;
    let socket = guest.shell("stat -c '%a %U %G' /run/kprobed/kprobed.sock")?;
    ensure!(socket.trim() == "660 root kprobed", "{socket}");
    // The client of this test is the first daemon's.
    guest.connect_again()?;
    guest.add("p:confined do_sys_openat2 filename=+0(%si):string")?;
    let seen = guest.observe("confined -n 1 --comm workload", || {
        guest.workload(&["open", "/etc/passwd", "0", "0", "1"]).map(drop)
    })?;
    ensure!(seen.contains("filename="), "{seen}");
    guest.delete("confined")?;
    guest.machine.signal("confined", Signal::SIGTERM)?;
    let ended = guest.machine.wait("confined", Duration::from_mins(1))?;
    ensure!(ended.success(), "{ended:?}");
    Ok(())
}
