//! The daemon's sandbox on a real kernel: what the kernel says of every thread, and a whole life of
//! probes with all of it in force.
//!
//! Which files it can open is tried here, by links that it follows. What the filter refuses is tried in
//! `server/src/sandbox/tests.rs`, inside of a process that has it.

use anyhow::{Result, ensure};
use kprobed_vm::daemon;
use kprobed_vm::machine::{Command, Machine};

use crate::Test;
use crate::daemon::{DECLARATIONS, DaemonGuest, config};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        every_thread_is_restricted_and_the_daemon_works,
        without_a_sandbox_the_doctor_says_so,
    }
};

/// `CAP_SYS_RAWIO` and `CAP_SYSLOG` (include/uapi/linux/capability.h).
const KEPT: u64 = 1 << 17 | 1 << 34;

/// A field of the status of each thread of the daemon.
fn of_threads(machine: &Machine, field: &str) -> Result<Vec<String>> {
    let script = format!("cat /proc/$(pidof kprobed)/task/*/status | grep '^{field}:'");
    let output = machine.exec(&Command::shell(script))?;
    ensure!(output.status.success(), "{output:?}");
    let values = output.stdout_text();
    Ok(values.lines().filter_map(|line| Some(line.split_once(':')?.1.trim().to_owned())).collect())
}

/// All threads are restricted, those that were started before the filter and after it.
pub(crate) fn is_restricted(machine: &Machine) -> Result<()> {
    let filters = of_threads(machine, "Seccomp")?;
    // The control thread, a reader, the history, and threads of both runtimes.
    ensure!(filters.len() >= 6 && filters.iter().all(|filter| filter == "2"), "{filters:?}");
    let privileges = of_threads(machine, "NoNewPrivs")?;
    ensure!(privileges.iter().all(|set| set == "1"), "{privileges:?}");
    for field in ["CapEff", "CapPrm"] {
        let sets = of_threads(machine, field)?;
        ensure!(sets.iter().all(|set| u64::from_str_radix(set, 16) == Ok(KEPT)), "{field}: {sets:?}");
    }
    Ok(())
}

/// A file that declares a probe.
const DECLARATION: &str = "probe: kprobes/linked\ndefinition: p:kprobes/linked __x64_sys_getuid\n";

/// The daemon itself tries to open what lies at the end of a link: it may not, and goes on.
fn other_files_stay_closed(guest: &DaemonGuest) -> Result<()> {
    let files = ["/root/a.yaml", "/tmp/a.yaml", "/var/lib/other/a.yaml", "/run/a.yaml"];
    for file in files {
        guest.machine.put(file, 0o644, DECLARATION.as_bytes())?;
    }
    // As many as a finding lists.
    for some in [&files[..], &["/dev/vda"]].concat().chunks(3) {
        let links = some.iter().enumerate();
        let links: Vec<_> =
            links.map(|(number, file)| format!("ln -s {file} {DECLARATIONS}/linked{number}.yaml")).collect();
        guest.shell(&format!("mkdir -p {DECLARATIONS} && {}", links.join(" && ")))?;
        guest.until(&some.join(", "), || {
            let doctor = guest.ctl_says("doctor -o json")?.stdout;
            let is_denied = |number| doctor.contains(&format!("linked{number}.yaml"));
            Ok((0..some.len()).all(is_denied) && doctor.matches("Permission denied").count() >= some.len())
        })?;
        guest.shell(&format!("rm {DECLARATIONS}/linked*"))?;
        guest.until("the end of the links", || {
            Ok(!guest.ctl_says("doctor -o json")?.stdout.contains("linked"))
        })?;
    }
    // A directory that was not there at the start, in one that was.
    guest.machine.put(&format!("{DECLARATIONS}/own.yaml"), 0o644, DECLARATION.as_bytes())?;
    guest.until("the declared probe", || Ok(guest.probes()?.len() == 1))?;
    guest.shell(&format!("rm -r {DECLARATIONS}"))?;
    guest.until("its end", || Ok(guest.probes()?.is_empty()))?;
    Ok(())
}

fn every_thread_is_restricted_and_the_daemon_works(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.new_daemon(daemon::DEFAULT_CONFIG)?;
    is_restricted(&guest.machine)?;
    // A part that this kernel does not have is a check that fails.
    let doctor = guest.ctl_says("doctor -o json")?.stdout;
    ensure!(
        doctor.contains("system calls are filtered on ") && doctor.contains("capabilities 0x400020000"),
        "{doctor}"
    );
    let is_missed = guest.log().contains("a part of the sandbox does not apply");
    ensure!(is_missed != fixture.restricts_files(), "{}", guest.log());
    if fixture.restricts_files() {
        ensure!(doctor.contains("the daemon can open only the files that it needs"), "{doctor}");
        other_files_stay_closed(&guest)?;
    } else {
        ensure!(doctor.contains("the daemon can open every file that root can open"), "{doctor}");
    }
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
    guest.reload(daemon::DEFAULT_CONFIG)?;
    ensure!(guest.shell("kprobectl auth whoami")?.contains("root"));
    is_restricted(&guest.machine)?;
    let log = guest.log();
    ensure!(!log.contains("not permitted") && !log.contains("ERROR"), "{log}");
    guest.stop()?;
    let left = guest.shell("cat /sys/kernel/tracing/kprobe_events; ls /sys/kernel/tracing/instances")?;
    ensure!(left.trim().is_empty(), "{left}");
    // The next start finds what the first has kept.
    guest.restart(daemon::DEFAULT_CONFIG)?;
    ensure!(guest.probes()?.len() == 1);
    Ok(())
}

fn without_a_sandbox_the_doctor_says_so(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config("[sandbox]\nmode = \"off\""))?;
    ensure!(of_threads(&guest.machine, "Seccomp")?.iter().all(|filter| filter == "0"));
    let doctor = guest.ctl_says("doctor -o json")?.stdout;
    ensure!(doctor.contains("system calls are filtered on 0 of "), "{doctor}");
    ensure!(doctor.contains("set `sandbox.mode` to `on`"), "{doctor}");
    ensure!(doctor.contains("the daemon can open every file that root can open"), "{doctor}");
    // It follows the link that a daemon with a sandbox cannot follow.
    guest.machine.put("/root/a.yaml", 0o644, DECLARATION.as_bytes())?;
    guest.shell(&format!("mkdir -p {DECLARATIONS} && ln -s /root/a.yaml {DECLARATIONS}/linked.yaml"))?;
    guest.until("the linked probe", || Ok(guest.probes()?.len() == 1)).map(drop)
}
