//! The daemon's sandbox on a real kernel: what the kernel says of every thread, and a whole life of
//! probes with all of it in force.
//!
//! What the filter refuses is tried in `server/src/sandbox/tests.rs`, inside of a process that has it.

use anyhow::{Result, ensure};
use kprobed_vm::daemon;

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;
use crate::triggers::wait_until;

pub(crate) const TESTS: &[Test] = &[
    ("every_thread_is_restricted_and_the_daemon_works", every_thread_is_restricted_and_the_daemon_works),
    ("without_a_sandbox_the_doctor_says_so", without_a_sandbox_the_doctor_says_so),
];

/// `CAP_CHOWN`, `CAP_SYS_RAWIO` and `CAP_SYSLOG` (include/uapi/linux/capability.h).
const KEPT: u64 = 1 | 1 << 17 | 1 << 34;

/// A field of the status of each thread of the daemon.
fn of_threads(guest: &DaemonGuest, field: &str) -> Result<Vec<String>> {
    let values = guest.shell(&format!("cat /proc/$(pidof kprobed)/task/*/status | grep '^{field}:'"))?;
    Ok(values.lines().filter_map(|line| Some(line.split_once(':')?.1.trim().to_owned())).collect())
}

/// All threads are restricted, those that were started before the filter and after it.
fn is_restricted(guest: &DaemonGuest) -> Result<()> {
    let filters = of_threads(guest, "Seccomp")?;
    // The control thread, a reader, the history, and threads of both runtimes.
    ensure!(filters.len() >= 6 && filters.iter().all(|filter| filter == "2"), "{filters:?}");
    let privileges = of_threads(guest, "NoNewPrivs")?;
    ensure!(privileges.iter().all(|set| set == "1"), "{privileges:?}");
    for field in ["CapEff", "CapPrm"] {
        let sets = of_threads(guest, field)?;
        ensure!(sets.iter().all(|set| u64::from_str_radix(set, 16) == Ok(KEPT)), "{field}: {sets:?}");
    }
    Ok(())
}

fn every_thread_is_restricted_and_the_daemon_works(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.own_daemon("sandbox", daemon::DEFAULT_CONFIG)?;
    is_restricted(&guest)?;
    let doctor = guest.shell("kprobectl doctor -o json")?;
    ensure!(
        doctor.contains("system calls are filtered on ") && doctor.contains("capabilities 0x400020001"),
        "{doctor}"
    );
    ensure!(!guest.log().contains("a part of the sandbox is not in force"), "{}", guest.log());
    // Defined by code, symbols and types, by two clients; recorded, also in the history.
    guest.add("p:calls __x64_sys_getppid")?;
    guest.shell("kprobectl add 'p:opens do_sys_openat2 filename=+0($arg2):ustring'")?;
    let recording = guest.record(|| guest.workload(&["getppid", "20"]).map(drop))?;
    ensure!(recording.of("kprobes/calls", "workload").count() == 20, "{recording:?}");
    let past = guest
        .shell("kprobectl observe calls --since 10m -o json | grep -o '\"type\": *\"event\"' | wc -l")?;
    ensure!(past.trim().parse::<u64>()? >= 20, "{past}");
    // Deleting one of two probes makes a second trace instance, and removes the first.
    guest.delete("opens")?;
    ensure!(guest.instance()?.ends_with("/kprobed-next"), "{}", guest.log());
    let recording = guest.record(|| guest.workload(&["getppid", "20"]).map(drop))?;
    ensure!(recording.of("kprobes/calls", "workload").count() == 20, "{recording:?}");
    // The configuration is read again, and a user is looked up.
    guest.shell("kill -HUP $(pidof kprobed)")?;
    wait_until(&guest, "the reload", || Ok(guest.log().contains("the configuration is reloaded")))?;
    ensure!(guest.shell("kprobectl auth whoami")?.contains("root"));
    is_restricted(&guest)?;
    let log = guest.log();
    ensure!(!log.contains("not permitted") && !log.contains("ERROR"), "{log}");
    ensure!(guest.stop()?.success(), "{}", guest.log());
    let left = guest.shell("cat /sys/kernel/tracing/kprobe_events; ls /sys/kernel/tracing/instances")?;
    ensure!(left.trim().is_empty(), "{left}");
    // The next start finds what the first has kept.
    guest.restart(daemon::DEFAULT_CONFIG)?;
    ensure!(guest.probes()?.len() == 1);
    guest.machine.power_off().map_err(Into::into)
}

fn without_a_sandbox_the_doctor_says_so(fixture: &Fixture) -> Result<()> {
    let config = format!("{}\n[sandbox]\nmode = \"off\"\n", daemon::DEFAULT_CONFIG);
    let guest = fixture.own_daemon("no-sandbox", &config)?;
    ensure!(of_threads(&guest, "Seccomp")?.iter().all(|filter| filter == "0"));
    let doctor = guest.shell("kprobectl doctor -o json || true")?;
    ensure!(doctor.contains("system calls are filtered on 0 of "), "{doctor}");
    ensure!(doctor.contains("set `sandbox.mode` to `on`"), "{doctor}");
    guest.machine.power_off().map_err(Into::into)
}
