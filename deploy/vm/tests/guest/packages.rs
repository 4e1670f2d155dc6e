//! The life of the Debian packages in a guest whose PID 1 is systemd: installed, upgraded while a client follows a
//! probe, removed, purged. A host test would not do: without a running systemd the packages start nothing, and nothing
//! arms a probe.

use std::path::Path;
use std::process;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_vm::initramfs::GuestFile;
use kprobed_vm::machine::{Command, Signal};
use kprobed_vm::packages::{ensure_programs, search_path};
use kprobed_vm::workspace;
use tempfile::TempDir;

use crate::Test;
use crate::fixture::{Fixture, programs};
use crate::systemd::Host;

pub(crate) const TESTS: &[Test] = tests! {
    Rarely {
        a_life_from_packages,
    }
};

/// What this machine needs to make packages.
const MAKING: [(&str, &str); 2] = [("dpkg-shlibdeps", "dpkg-dev"), ("strip", "binutils")];

/// Programs of packages that every Debian has, which dpkg and the packages' scripts call.
const OF_DEBIAN: [&str; 12] = [
    "deb-systemd-helper",
    "deb-systemd-invoke",
    "dpkg",
    "dpkg-deb",
    "dpkg-query",
    "dpkg-split",
    "getent",
    "groupadd",
    "groupdel",
    "ldconfig",
    "perl",
    "tar",
];

/// Packages that the guest's dpkg takes for installed: those that the made ones depend on.
const NEEDED: [&str; 4] = ["libc6", "libgcc-s1", "init-system-helpers", "systemd"];

/// Of the guest, half of which is for files: four packages, and what is installed.
const MEMORY_MIB: u32 = 1536;

/// The versions of the packages.
const VERSIONS: [&str; 2] = ["1.0.0", "1.0.1"];

/// Calls with rising numbers, at most twenty a second, which nothing else in the guest makes.
const WORK: &str = "exec workload numbers 2000000 1000000000 --pause-us 50000 > /dev/null";
const CALLS: &str = "__x64_sys_getsid n=+0x70(%di):s32";

/// All that is on the host but files of the kernel, of dpkg and of the trial.
const FILES: &str = "find / -xdev \\( -path /root -o -path /var/lib/dpkg -o -name 'dpkg.log' \\) -prune \
    -o -exec stat -c '%A %U:%G %n' {} + | sort; ls -d /run/kprobed* 2> /dev/null; cat /etc/passwd /etc/group";

/// The packages of both versions, for the guest.
fn make(directory: &Path) -> Result<Vec<GuestFile>> {
    ensure_programs(&MAKING)?;
    let root = workspace::root().context("no workspace")?;
    let built = programs()?.kprobed.parent().context("a program without a directory")?;
    let mut files = Vec::new();
    for version in VERSIONS {
        let to = directory.join(version);
        let output = process::Command::new(root.join("deploy/release"))
            .args(["--version", version, "--programs"])
            .args([built, &to])
            .arg("deb")
            // A release takes a minute to compress them, and an emulated guest as long for each time they are unpacked.
            .env("DPKG_DEB_COMPRESSOR_TYPE", "none")
            .output()?;
        ensure!(output.status.success(), "{output:?}");
        for name in ["kprobed", "kprobectl"] {
            let name = format!("{name}_{version}_amd64.deb");
            files.push(GuestFile { host: to.join(&name), guest: format!("/root/{name}") });
        }
    }
    Ok(files)
}

/// What dpkg and the packages' scripts run, from this machine.
fn tools() -> Result<Vec<GuestFile>> {
    let mut files = Vec::new();
    let programs = OF_DEBIAN.map(|name| (name, format!("/usr/bin/{name}")));
    // busybox's shell would run its own dpkg and tar in place of these.
    for (name, guest) in programs.into_iter().chain([("dash", "/bin/sh".to_owned())]) {
        let host = search_path(name).with_context(|| format!("every Debian has {name}"))?;
        files.push(GuestFile { host, guest });
    }
    let perl = said("dpkg", &["-L", "perl-base"])?;
    let modules = perl.lines().filter(|path| path.contains("/perl-base/") && Path::new(path).is_file());
    files.extend(modules.map(|path| GuestFile { host: path.into(), guest: path.to_owned() }));
    Ok(files)
}

/// What a program of this machine prints.
fn said(program: &str, arguments: &[&str]) -> Result<String> {
    let output = process::Command::new(program).args(arguments).output().context(program.to_owned())?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What the guest's dpkg knows of the packages that are there.
fn status() -> Result<String> {
    let stanza = |package| {
        let version = said("dpkg-query", &["-W", "-f", "${Version}", package])?;
        // systemd is not installed on every machine: the guest has it from elsewhere.
        let version = if version.is_empty() { "252" } else { &version };
        Ok(format!(
            "Package: {package}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {version}\n\
             Maintainer: the trial\nDescription: of the guest\n\n"
        ))
    };
    NEEDED.into_iter().map(stanza).collect()
}

fn a_life_from_packages(fixture: &Fixture) -> Result<()> {
    let directory = TempDir::new()?;
    let mut files = make(directory.path())?;
    files.extend(tools()?);
    files.extend(programs()?.guest_files().into_iter().filter(|file| file.guest.ends_with("workload")));
    let host = Host::with(fixture, files, None, MEMORY_MIB)?;
    host.put("/var/lib/dpkg/status", &status()?)?;
    // As on a host with other packages. The group of other guests is not there, but for a trace in the file that groups
    // have beside /etc/group.
    host.shell(
        "mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates /var/lib/systemd /var/tmp /var/log /etc/logrotate.d
        mkdir -p /usr/share/doc && touch /etc/logrotate.d/dpkg
        echo 'kprobed:!::' > /etc/gshadow && cp /etc/gshadow /etc/gshadow.kept
        groupdel kprobed && mv /etc/gshadow.kept /etc/gshadow",
    )?;
    host.machine.spawn("work", &Command::shell(WORK))?;
    let before = host.shell(FILES)?;

    it_is_installed(fixture, &host)?;
    an_upgrade_loses_nothing_silently(&host)?;
    it_is_removed(&host)?;
    it_comes_back_and_stays_armed_over_an_upgrade(&host)?;
    it_is_removed(&host)?;
    host.shell("dpkg -P kprobed kprobectl")?;
    let after = host.shell(FILES)?;
    let differs = |these: &str, those: &str| {
        these.lines().filter(|line| !those.lines().any(|other| other == *line)).collect::<Vec<_>>().join("\n")
    };
    let (left, gone) = (differs(&after, &before), differs(&before, &after));
    ensure!(left.is_empty() && gone.is_empty(), "left:\n{left}\ngone:\n{gone}");
    ensure!(
        host.shell("dpkg-query -W kprobed kprobectl 2>&1 || true")?.matches("no packages found").count() == 2
    );
    host.machine.signal("work", Signal::SIGKILL)?;
    Ok(host.machine.power_off()?)
}

fn install(host: &Host, version: &str) -> Result<String> {
    let said = host.shell(&format!("dpkg -i /root/*_{version}_amd64.deb 2>&1"))?;
    let installed = host.shell("dpkg-query -W -f '${Version} ${db:Status-Status}\\n' kprobed kprobectl")?;
    ensure!(installed.lines().all(|line| line == format!("{version} installed")), "{installed}\n{said}");
    // Clients wait for a daemon that is started again.
    let socket = host.shell("grep listening /run/log/kprobed.log | tail -n 1")?;
    ensure!(socket.contains("of_service_manager=true"), "{socket}\n{said}");
    Ok(said)
}

/// One command, and a probe records. Both units are there at the next boot.
fn it_is_installed(fixture: &Fixture, host: &Host) -> Result<()> {
    let begun = Instant::now();
    let said = install(host, VERSIONS[0])?;
    let installed = begun.elapsed();
    let first = host.shell(&format!("timeout 120 kprobectl trace 'p:first {CALLS}' -n 1 --comm workload"));
    let first = first.with_context(|| said.clone())?;
    let traced = begun.elapsed();
    ensure!(first.contains("n=2"), "{first}");
    for unit in ["kprobed.service", "kprobed.socket"] {
        let state = host.shell(&format!("systemctl is-enabled {unit}; systemctl is-active {unit}"))?;
        ensure!(state == "enabled\nactive", "{unit}: {state}\n{said}");
    }
    let socket = host.shell("stat -c '%a %U %G' /run/kprobed/kprobed.sock")?;
    ensure!(socket == "660 root kprobed", "{socket}");
    ensure!(host.shell("systemctl is-enabled kprobed-tcp.socket || true")? == "disabled");
    fixture
        .note(format_args!("dpkg -i took {installed:.1?}, and the first event was there after {traced:.1?}"));
    Ok(())
}

/// A client that follows a probe while the package is installed again.
struct Follower<'a>(&'a Host);

impl<'a> Follower<'a> {
    fn start(host: &'a Host) -> Result<Self> {
        let follow = "exec kprobectl observe calls --comm workload > /tmp/observed 2> /tmp/observer";
        host.machine.spawn("follower", &Command::shell(follow))?;
        let this = Self(host);
        this.until_more()?;
        Ok(this)
    }

    fn until_more(&self) -> Result<()> {
        let seen = self.0.shell("grep -c n=2 /tmp/observed || true")?;
        let more = format!("test $(grep -c n=2 /tmp/observed) -gt $(({seen} + 10))");
        self.0.until("its events", &more)
    }

    /// Ends it: how many numbers lie between two that it was shown, and what it said.
    fn end(self) -> Result<(u64, String)> {
        self.0.machine.signal("follower", Signal::SIGINT)?;
        let status = self.0.machine.wait("follower", Duration::from_mins(1))?;
        let said = self.0.shell("cat /tmp/observer")?;
        ensure!(status.success(), "{status:?}: {said}");
        let shown = self.0.shell("sed -n 's/.*n=\\(2[0-9]*\\).*/\\1/p' /tmp/observed")?;
        let numbers = shown.lines().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let mut missing = 0;
        for pair in numbers.windows(2) {
            let [one, next] = pair else { bail!("{pair:?}") };
            ensure!(next > one, "{next} after {one}\n{said}");
            missing += next - one - 1;
        }
        Ok((missing, said))
    }
}

/// Installs a version while a client follows the probe: another daemon serves, of the installed program.
fn upgrade(host: &Host, version: &str) -> Result<(u64, String)> {
    let before = host.main_pid()?;
    let follower = Follower::start(host)?;
    install(host, version)?;
    host.until_another_serves(&before)?;
    let program = host.shell("readlink /proc/$(pidof kprobed)/exe")?;
    ensure!(program == "/usr/bin/kprobed", "{program}");
    ensure!(host.shell("kprobectl list")?.contains("armed"));
    follower.until_more()?;
    follower.end()
}

/// The probe is out of the kernel meanwhile, which the client says.
fn an_upgrade_loses_nothing_silently(host: &Host) -> Result<()> {
    host.shell(&format!("kprobectl add 'p:calls {CALLS}'"))?;
    let (missing, said) = upgrade(host, VERSIONS[1])?;
    ensure!(said.contains("maybe not recorded: "), "{missing} calls are missing: {said}");
    Ok(())
}

/// Daemon, units and probes are gone. What was declared stays for the next installation.
fn it_is_removed(host: &Host) -> Result<()> {
    host.shell("dpkg -r kprobed kprobectl 2>&1")?;
    let left = host.shell(
        "pidof kprobed; ls -d /run/kprobed /usr/bin/kprobe* 2> /dev/null; systemctl list-unit-files -q 'kprobed*'
        cat /sys/kernel/tracing/kprobe_events; ls /sys/kernel/tracing/instances",
    )?;
    ensure!(left.is_empty(), "{left}");
    host.shell("test -s /var/lib/kprobed/kprobed.db && grep -q ^kprobed: /etc/group").map(drop)
}

/// A package that is installed again finds the probe. With `on_exit = "keep"` it records throughout an upgrade.
fn it_comes_back_and_stays_armed_over_an_upgrade(host: &Host) -> Result<()> {
    install(host, VERSIONS[1])?;
    host.shell(
        "echo 'tracing.on_exit = \"keep\"' >> /etc/kprobed/kprobed.toml && systemctl restart kprobed",
    )?;
    let (missing, said) = upgrade(host, VERSIONS[1])?;
    ensure!(missing == 0, "{missing} calls are missing: {said}");
    Ok(())
}
