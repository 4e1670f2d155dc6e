//! Acknowledged changes survive the daemon's death and the machine's; a clean stop leaves nothing
//! behind.

use std::collections::HashMap;
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::ProbeState;
use kprobed_vm::daemon;
use kprobed_vm::machine::{Command, Signal};

use crate::Test;
use crate::daemon::{DaemonGuest, config};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        probes_survive_the_death_of_the_daemon,
        a_probe_that_can_not_come_back_says_why,
    }
    Seldom {
        probes_survive_a_power_cut,
        a_clean_stop_leaves_tracefs_as_it_was,
        an_instance_has_one_daemon,
        a_kept_probe_goes_on_recording,
    }
};

/// Two probes, one of them filtered, and one that is off.
fn add_three(guest: &DaemonGuest) -> Result<()> {
    guest.add("p:opens do_sys_openat2 filename=+0(%si):string mode=how->mode")?;
    guest.wait_for(guest.client.set_filter("opens", "mode == 256"))??;
    guest.add("r3:returns do_sys_openat2 ret=$retval:s32")?;
    guest.add("p:off vfs_write")?;
    guest.wait_for(guest.client.set_enabled("off", false))??;
    Ok(())
}

/// The three are there as they were, and record.
fn expect_three(guest: &DaemonGuest) -> Result<()> {
    let probes = guest.probes()?;
    let states: Vec<_> =
        probes.iter().map(|probe| (probe.name.as_str(), probe.state(), probe.filter.as_str())).collect();
    let expected = [
        ("kprobes/off", ProbeState::Disabled, ""),
        ("kprobes/opens", ProbeState::Armed, "mode == 256"),
        ("kprobes/returns", ProbeState::Armed, ""),
    ];
    ensure!(states == expected, "{states:?}\n{}", guest.log());
    ensure!(guest.tracefs("kprobe_events")?.lines().count() == 3, "{}", guest.tracefs("kprobe_events")?);
    let recording = guest.record(|| {
        guest.workload(&["open", "/tmp/survived", "65", "256", "2"])?;
        guest.workload(&["open", "/tmp/filtered", "65", "384", "2"]).map(drop)
    })?;
    let names: Vec<_> =
        recording.of("kprobes/opens", "workload").map(|event| event.field("filename")).collect();
    ensure!(names == ["\"/tmp/survived\"", "\"/tmp/survived\""], "{recording:?}");
    ensure!(recording.of("kprobes/returns", "workload").count() >= 4, "{recording:?}");
    Ok(())
}

fn probes_survive_the_death_of_the_daemon(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    add_three(&guest)?;
    guest.add("p:elsewhere/calls __x64_sys_getppid")?;
    let labels = HashMap::from([("team".to_owned(), "net".to_owned())]);
    let labelled = guest.wait_for(guest.client.change_labels("opens", labels, Vec::new()))??;
    guest.kill()?;
    // The kernel counts hits while no daemon reads, and these must not confuse the ledger.
    guest.workload(&["getppid", "700"])?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    guest.workload(&["getppid", "300"])?;
    let profile = guest.wait_for(guest.client.hits("elsewhere/*"))??;
    ensure!(profile.len() == 1 && profile[0].hits >= 1000, "{profile:?}");
    let ledger = guest.ledger_of("elsewhere/calls")?;
    ensure!(ledger.not_read == 0 && (300..320).contains(&ledger.read), "{ledger:?}");
    guest.delete("elsewhere/calls")?;
    expect_three(&guest)?;
    // The revision is that which a client knows.
    let back = guest.probe("opens")?;
    ensure!(back.labels == labelled.labels && back.etag == labelled.etag, "{back:?}\n{labelled:?}");
    // What was deleted stays deleted.
    guest.delete("returns")?;
    guest.kill_and_restart()?;
    ensure!(guest.probes()?.len() == 2 && guest.tracefs("kprobe_events")?.lines().count() == 2);
    Ok(())
}

fn probes_survive_a_power_cut(fixture: &Fixture) -> Result<()> {
    let guest = fixture.own_daemon("power-cut", daemon::DEFAULT_CONFIG)?;
    add_three(&guest)?;
    // Nothing is flushed and nothing is stopped: what was acknowledged must be on the disk.
    guest.machine.power_cut();
    let guest = DaemonGuest::boot(fixture, &fixture.disk_name("power-cut"), daemon::DEFAULT_CONFIG)?;
    expect_three(&guest)?;
    let start_time = Some(SystemTime::UNIX_EPOCH.into());
    let request =
        kprobed_client::api::ListHitsRequest { start_time, step_seconds: 86_400, ..Default::default() };
    guest.wait_for(guest.client.hits_over_time(request))??;
    Ok(())
}

/// All that tracefs shows of probes and instances.
fn footprint(guest: &DaemonGuest) -> Result<String> {
    guest.shell(
        "cd /sys/kernel/tracing && cat kprobe_events && ls instances events && cat tracing_on && cat set_event && ls events/kprobes \
         2>/dev/null || true",
    )
}

fn a_clean_stop_leaves_tracefs_as_it_was(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    guest.stop()?;
    // What it has mounted stays: it has no privilege to unmount any more.
    guest.shell("test -e /sys/kernel/tracing/kprobe_events && test -e /sys/kernel/debug/kprobes")?;
    let before = footprint(&guest)?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    add_three(&guest)?;
    guest.workload(&["open", "/etc/passwd", "0", "0", "10"])?;
    ensure!(footprint(&guest)? != before);
    guest.stop()?;
    let after = footprint(&guest)?;
    ensure!(after == before, "before:\n{before}\nafter:\n{after}");
    ensure!(guest.shell("cat /sys/kernel/debug/kprobes/list")?.is_empty());
    // So does one that brings everything back and then cannot listen, because another program does.
    guest
        .machine
        .spawn("taker", &Command::new("/init").args(["relay", "127.0.0.1:7001", "127.0.0.1:7000"]))?;
    let taken = daemon::DEFAULT_CONFIG.replace("127.0.0.1:7000", "127.0.0.1:7001");
    let failed = guest.restart(&taken).err().context("it listens where another does")?.to_string();
    ensure!(
        failed.contains("brought back") && failed.contains("cannot listen on `127.0.0.1:7001`"),
        "{failed}"
    );
    ensure!(!failed.contains("panicked") && footprint(&guest)? == before, "{failed}\n{}", footprint(&guest)?);
    // And all of it is back with the next start.
    guest.restart(daemon::DEFAULT_CONFIG)?;
    expect_three(&guest)?;
    Ok(guest.machine.signal("taker", Signal::SIGKILL)?)
}

fn a_kept_probe_goes_on_recording(fixture: &Fixture) -> Result<()> {
    let config = config("[tracing]\non_exit = \"keep\"");
    let mut guest = fixture.daemon_with(&config)?;
    add_three(&guest)?;
    guest.stop()?;
    ensure!(guest.tracefs("instances/kprobed/events/kprobes/returns/enable")?.trim() == "1");
    guest.workload(&["open", "/tmp/kept", "65", "256", "3"])?;
    let trace = guest.tracefs("instances/kprobed/trace")?;
    ensure!(trace.matches("opens: ").count() >= 3, "{trace}");
    guest.restart(&config)?;
    expect_three(&guest)?;
    Ok(())
}

fn a_probe_that_can_not_come_back_says_why(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    guest.add("p:mine vfs_read")?;
    guest.stop()?;
    guest.shell("echo 'p:kprobes/mine vfs_write' >> /sys/kernel/tracing/kprobe_events")?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    let probe = guest.probe("mine")?;
    ensure!(
        probe.state() == ProbeState::Failed && probe.state_message.contains("kprobed did not define it"),
        "{probe:?}"
    );
    ensure!(guest.tracefs("kprobe_events")?.trim() == "p:kprobes/mine vfs_write");
    // It can still be deleted, and that touches nothing of the other one.
    guest.delete("mine")?;
    ensure!(guest.tracefs("kprobe_events")?.trim() == "p:kprobes/mine vfs_write");
    Ok(())
}

/// A daemon with a state directory and a socket of its own, and the same instance.
fn second(name: &str) -> String {
    daemon::DEFAULT_CONFIG
        .replace("/run/kprobed/kprobed.sock", &format!("/run/{name}.sock"))
        .replace("/var/lib/kprobed", &format!("/var/lib/kprobed/{name}"))
}

/// What a daemon says that is refused.
fn refused(guest: &DaemonGuest, run: &str) -> Result<String> {
    let output = guest.shell(&format!("{run} 2>&1; echo status $?"))?;
    ensure!(!output.contains("status 0") && output.contains("uses the tracing instance"), "{output}");
    Ok(output)
}

fn an_instance_has_one_daemon(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.new_daemon(daemon::DEFAULT_CONFIG)?;
    guest.add("p:calls __x64_sys_getppid")?;
    guest.add("p:goes __x64_sys_getppid")?;
    for name in ["a", "b"] {
        let config = second(name).replace("tcp = \"127.0.0.1:7000\"\n", "");
        guest.machine.put(&format!("/etc/kprobed/{name}.toml"), 0o644, config.as_bytes())?;
    }
    let pid = guest.shell("pidof kprobed")?;
    let who = [
        "/sys/kernel/tracing/instances/kprobed".to_owned(),
        format!("process {}", pid.trim()),
        "state directory `/var/lib/kprobed`".to_owned(),
        "socket `/run/kprobed/kprobed.sock`; this one has the state directory `".to_owned(),
    ];
    let run = "kprobed --config /etc/kprobed/a.toml";
    for _ in 0..2 {
        // Its threads come and go, the first one stays.
        let is_excluded = |guest: &DaemonGuest| -> Result<bool> {
            Ok(guest.in_instance("set_event_notrace_pid")?.lines().any(|line| line.trim() == pid.trim()))
        };
        ensure!(is_excluded(&guest)?);
        let said = refused(&guest, run)?;
        ensure!(who.iter().all(|word| said.contains(word)), "{said}");
        // All mounts of tracefs show one file system.
        let script =
            format!("umount /sys/kernel/tracing; mount -t tracefs nodev /sys/kernel/tracing; exec {run}");
        let said = refused(&guest, &format!("unshare -m sh -c '{script}'"))?;
        ensure!(who.iter().all(|word| said.contains(word)), "{said}");
        ensure!(is_excluded(&guest)?, "{}", guest.in_instance("set_event_notrace_pid")?);
        ensure!(guest.tracefs("kprobe_events")?.lines().count() == guest.probes()?.len());
        let recording = guest.record(|| guest.workload(&["getppid", "20"]).map(drop))?;
        ensure!(recording.of("kprobes/calls", "workload").count() == 20, "{recording:?}");
        // The same again in the other of its two instances.
        if guest.probes()?.len() == 2 {
            guest.delete("goes")?;
            ensure!(guest.instance()?.ends_with("/kprobed-next"), "{}", guest.log());
        }
    }
    // A daemon that was killed has no claim any more: the next one takes what it has left.
    guest.kill()?;
    guest.restart(&second("a"))?;
    ensure!(guest.probes()?.is_empty() && guest.tracefs("instances/kprobed/tracing_on").is_err());
    ensure!(guest.instance()?.ends_with("/kprobed-next"));
    // Of two that start at a time one does.
    guest.kill()?;
    let alone = guest.shell(
        "for name in a b; do kprobed --config /etc/kprobed/$name.toml > /tmp/$name.log 2>&1 & done
         until grep -q 'uses the tracing instance' /tmp/a.log /tmp/b.log; do sleep 0.1; done
         until [ $(pidof kprobed | wc -w) = 1 ]; do sleep 0.1; done
         grep -l 'uses the tracing instance' /tmp/a.log /tmp/b.log; kill $(pidof kprobed); wait",
    )?;
    ensure!(alone.lines().count() == 1, "{alone}");
    Ok(())
}
