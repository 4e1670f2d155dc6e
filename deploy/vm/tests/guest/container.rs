//! The container image, run as the `DaemonSet` runs it: built by the script that is shipped,
//! unpacked, and started in a guest by crun, with exactly the mounts and capabilities of the
//! manifest.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::initramfs::GuestFile;
use kprobed_vm::lab::GuestOptions;
use kprobed_vm::machine::{Command, PATIENCE, Signal};
use kprobed_vm::protocol::Status;
use kprobed_vm::{packages, workspace};
use serde_json::Value;

use crate::Test;
use crate::container_spec::{Pod, Volume};
use crate::daemon::{OwnMachine, events};
use crate::fixture::{Fixture, programs};

pub(crate) const TESTS: &[Test] = tests! {
    Rarely {
        the_image_works_as_the_daemonset_runs_it,
    }
};

const BUNDLE: &str = "/var/lib/bundle";
/// The image in the guest's memory, as far as it is not unpacked.
const ARCHIVE: &str = "/root/rootfs.tar";
/// What kubelet makes of the two `ConfigMap`s.
const CONFIG: &str = "/var/lib/volumes/config";
const PROBES: &str = "/var/lib/volumes/probes";
/// What it makes of the downward API.
const PODINFO: &str = "/var/lib/volumes/podinfo";

const ONE: &str = "probe: k8s/open\ndefinition: p:k8s/open do_sys_openat2 filename=+0(%si):string\n";
const TWO: &str = "probe: k8s/getppid\ndefinition: p:k8s/getppid __x64_sys_getppid\n";

pub(crate) fn deploy() -> Result<std::path::PathBuf> {
    Ok(workspace::root().context("no workspace")?.join("deploy"))
}

/// Runs a program of the host; what it printed.
pub(crate) fn run(command: &mut process::Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let err = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}\n{err}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The image, unpacked as a tar archive.
fn image(directory: &Path) -> Result<std::path::PathBuf> {
    packages::ensure_programs(&[("umoci", "umoci"), ("crun", "crun"), ("tar", "tar")])?;
    let programs = programs()?;
    let from = directory.join("programs");
    fs::create_dir(&from)?;
    for file in programs.guest_files() {
        if let Some(name @ ("kprobed" | "kprobectl")) = file.guest.strip_prefix("/usr/bin/") {
            fs::copy(&file.host, from.join(name))?;
        }
    }
    let image = directory.join("image");
    run(process::Command::new(deploy()?.join("image/build")).arg(&image).arg(&from))?;
    let bundle = directory.join("bundle");
    let of = format!("{}:kprobed", image.display());
    run(process::Command::new("umoci").args(["unpack", "--rootless", "--image", &of]).arg(&bundle))?;
    // The manifest relies on the entry point.
    let unpacked: Value = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
    ensure!(unpacked["process"]["args"][0] == "/usr/bin/kprobed", "{unpacked}");
    let archive = directory.join("rootfs.tar");
    run(process::Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&bundle).arg("rootfs"))?;
    Ok(archive)
}

/// Runs a script until it succeeds.
fn wait_for(machine: &OwnMachine, script: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        let output = machine.exec(&Command::shell(script))?;
        if output.status.success() {
            return Ok(());
        }
        let log = || {
            String::from_utf8_lossy(&machine.get("/run/log/container.log").unwrap_or_default()).into_owned()
        };
        let ended = machine.wait("container", Duration::from_millis(500))?;
        ensure!(ended == Status::TimedOut, "the container has ended ({ended:?}):\n{}", log());
        ensure!(begun.elapsed() < PATIENCE, "{script}: {output:?}\n{}", log());
    }
}

/// Replaces the content of a volume as kubelet does: a new directory, to which the link `..data` is
/// switched.
fn publish(machine: &OwnMachine, volume: &str, version: u32, files: &[(&str, &str)]) -> Result<()> {
    for (name, text) in files {
        machine.put(&format!("{volume}/..{version}/{name}"), 0o644, text.as_bytes())?;
        machine.shell(&format!("cd {volume}; [ -L {name} ] || ln -s ..data/{name} {name}"))?;
    }
    let switch = format!("cd {volume}; ln -sfn ..{version} ..data_tmp; mv -T ..data_tmp ..data");
    machine.shell(&switch).map(drop)
}

fn the_image_works_as_the_daemonset_runs_it(fixture: &Fixture) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let archive = image(directory.path())?;
    let lab = fixture.lab()?;
    let mut files = programs()?.guest_files();
    // The container has its own daemon.
    files.retain(|file| file.guest != "/usr/bin/kprobed");
    let crun = packages::search_path("crun").context("no crun")?;
    files.push(GuestFile { host: crun, guest: "/usr/bin/crun".to_owned() });
    files.push(GuestFile { host: archive, guest: ARCHIVE.to_owned() });
    let options = GuestOptions {
        files,
        disk: Some(lab.disk(&fixture.disk_name("container"), true)?),
        ..GuestOptions::new(fixture.kernel()?)
    };
    let machine = OwnMachine::new(lab.boot(&options)?);
    let pod = Pod::of(&fs::read_to_string(deploy()?.join("kubernetes/base/daemonset.yaml"))?)?;
    let served =
        BTreeMap::from([("kprobed-config", CONFIG), ("kprobed-probes", PROBES), ("podinfo", PODINFO)]);
    let volumes = pod.volumes(&served)?;
    let config = pod.config("/usr/bin/kprobed", &volumes)?;
    prepare(&machine, &volumes, &config)?;

    let crun = ["--cgroup-manager=disabled", "run", "--no-pivot", "--bundle", BUNDLE, "kprobed"];
    machine.spawn("container", &Command::new("crun").args(crun))?;
    wait_for(&machine, "test -S /run/kprobed/kprobed.sock")?;
    wait_for(&machine, "kprobectl list > /dev/null")?;
    only_these_capabilities(&machine, &pod)?;
    // The name of the node, not that of the pod.
    let (host, healthy) = (machine.shell("hostname")?, machine.shell("kprobectl doctor")?);
    ensure!(healthy.contains(host.trim()), "{healthy}");
    // The labels of the pod, and other ones.
    ensure!(healthy.contains("topology.kubernetes.io/zone=eu-1a"), "{healthy}");
    publish(&machine, PODINFO, 2, &[("labels", "topology.kubernetes.io/zone=\"eu-1b\"\n")])?;
    wait_for(&machine, "kprobectl doctor | grep -q 'topology.kubernetes.io/zone=eu-1b'")?;

    // What the ConfigMap declares is there, fires, and is observed.
    wait_for(&machine, "kprobectl get k8s/open -o json | grep -q '\"state\": *\"PROBE_STATE_ARMED\"'")?;
    machine.shell("workload open /etc/passwd 0 0 3 && kprobectl ledger > /dev/null")?;
    let seen = machine.shell("kprobectl observe k8s/open --oldest --until-now -o json")?;
    let events = events(&seen)?;
    let opened = |event: &&Value| event["comm"] == "workload" && event["fields"]["filename"] == "/etc/passwd";
    ensure!(events.iter().filter(opened).count() == 3, "{seen}");
    // The daemon knows its threads by the ids that the kernel knows them by, although it has a pid
    // namespace: it does not record itself.
    let own = |event: &&Value| event["comm"].as_str().is_some_and(|comm| comm.starts_with("kprobed"));
    ensure!(events.iter().filter(own).count() == 0, "{seen}");
    let ledger: Value = serde_json::from_str(&machine.shell("kprobectl ledger -o json")?)?;
    let of_probe = ledger["probes"].as_array().into_iter().flatten().find(|one| one["probe"] == "k8s/open");
    let own = of_probe.and_then(|one| one["own"].as_str()).context("hits by the daemon's own threads")?;
    ensure!(own.parse::<u64>()? > 0, "{ledger}");

    // Another version of the ConfigMap.
    publish(&machine, PROBES, 2, &[("open.yaml", ONE), ("getppid.yaml", TWO)])?;
    wait_for(&machine, "kprobectl get k8s/getppid -o json | grep -q '\"state\": *\"PROBE_STATE_ARMED\"'")?;

    nothing_else_was_written(&machine, &volumes)?;
    machine.shell(&format!("crun --cgroup-manager=disabled kill kprobed {}", Signal::SIGTERM as i32))?;
    let ended = machine.wait("container", PATIENCE)?;
    ensure!(
        ended.success(),
        "{ended:?}: {}",
        String::from_utf8_lossy(&machine.get("/run/log/container.log")?)
    );
    let left = machine.shell("cat /sys/kernel/tracing/kprobe_events; ls /sys/kernel/tracing/instances")?;
    ensure!(left.trim().is_empty(), "the daemon has left {left}");
    machine.power_off().map_err(Into::into)
}

/// The node as kubelet leaves it before it starts the container.
fn prepare(machine: &OwnMachine, volumes: &[Volume], config: &Value) -> Result<()> {
    machine.shell(&format!(
        "mount -t tracefs tracefs /sys/kernel/tracing; mount -t debugfs debugfs /sys/kernel/debug
             mount -t cgroup2 cgroup2 /sys/fs/cgroup
             mkdir -p {BUNDLE} && tar -xf {ARCHIVE} -C {BUNDLE} && rm {ARCHIVE}"
    ))?;
    machine.put(&format!("{BUNDLE}/config.json"), 0o600, config.to_string().as_bytes())?;
    let configuration = fs::read_to_string(deploy()?.join("kubernetes/base/kprobed.toml"))?;
    publish(machine, CONFIG, 1, &[("kprobed.toml", &configuration)])?;
    publish(machine, PROBES, 1, &[("open.yaml", ONE)])?;
    publish(machine, PODINFO, 1, &[("labels", "topology.kubernetes.io/zone=\"eu-1a\"\n")])?;
    // DirectoryOrCreate.
    for volume in volumes {
        machine.shell(&format!("mkdir -p {}", volume.source))?;
    }
    machine.shell("sleep 1.1; touch /tmp/before").map(drop)
}

/// The capabilities of the manifest, and none else.
fn only_these_capabilities(machine: &OwnMachine, pod: &Pod) -> Result<()> {
    let wanted = pod.capabilities()?.iter().try_fold(0_u64, |set, name| {
        // include/uapi/linux/capability.h
        let bit = match name.as_str() {
            "CAP_DAC_OVERRIDE" => 1,
            "CAP_SYS_RAWIO" => 17,
            "CAP_SYS_ADMIN" => 21,
            "CAP_SYSLOG" => 34,
            other => anyhow::bail!("{other}: its number belongs here"),
        };
        Ok(set | 1 << bit)
    })?;
    let status = machine.shell("cat /proc/$(pidof kprobed)/status")?;
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        let line = status.lines().find_map(|line| line.strip_prefix(&format!("{set}:"))).context(set)?;
        ensure!(
            u64::from_str_radix(line.trim(), 16)? == wanted,
            "{set} is {line}, and {wanted:x} was requested"
        );
    }
    ensure!(status.contains("NoNewPrivs:\t1"), "{status}");
    Ok(())
}

/// Since the container was started, files have changed in its writable volumes only.
fn nothing_else_was_written(machine: &OwnMachine, volumes: &[Volume]) -> Result<()> {
    let rootfs = machine.shell(&format!("find {BUNDLE}/rootfs -newer /tmp/before ! -type d"))?;
    ensure!(rootfs.is_empty(), "the container wrote into its image: {rootfs}");
    let writable: Vec<&str> =
        volumes.iter().filter(|volume| volume.writable).map(|volume| volume.source.as_str()).collect();
    // Threads end while their directories are looked at.
    let changed = machine.shell(
        "find / \\( -path /proc -o -path /sys -o -path /dev \\) -prune -o -newer /tmp/before ! -type d -print",
    )?;
    let others: Vec<&str> = changed
        .lines()
        .filter(|path| {
            let of = |directory: &str| path.starts_with(directory);
            // The agent's logs, the state of crun, and what this test has put there.
            !writable.iter().any(|directory| of(directory))
                && !["/run/log/", "/run/crun/", PROBES, PODINFO].into_iter().any(of)
        })
        .collect();
    ensure!(others.is_empty(), "written beside the volumes: {others:?}");
    ensure!(
        changed.lines().any(|path| path.starts_with("/var/lib/kprobed/")),
        "the state is not there: {changed}"
    );
    Ok(())
}
