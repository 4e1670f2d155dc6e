//! The daemon under systemd, with the units as they are shipped, in a guest whose PID 1 is systemd: a life from the
//! first call, which starts it, to its stop.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_vm::disk::Disk;
use kprobed_vm::initramfs::GuestFile;
use kprobed_vm::lab::GuestOptions;
use kprobed_vm::machine::{Command, PATIENCE};
use kprobed_vm::systemd::Systemd;
use kprobed_vm::{daemon, workspace};

use crate::Test;
use crate::certificates::{self, Authority};
use crate::daemon::OwnMachine;
use crate::fixture::{Fixture, programs};
use crate::sandbox::is_restricted;

pub(crate) const TESTS: &[Test] = tests! {
    Rarely {
        a_life_under_systemd,
    }
};

/// The shipped units.
const UNITS: [&str; 3] = ["kprobed.service", "kprobed.socket", "kprobed-tcp.socket"];

/// systemd has the daemon's output in its journal, which is not there: a file, as in other guests.
const OUTPUT: &str = "[Service]\nStandardOutput=append:/run/log/kprobed.log\nStandardError=inherit\n";

/// A guest with systemd.
pub(crate) struct Host {
    pub(crate) machine: OwnMachine,
}

/// The configuration of guests, with the address that the units have.
fn config() -> String {
    daemon::DEFAULT_CONFIG.replace("127.0.0.1:7000", "127.0.0.1:7443")
}

impl Host {
    /// One with the programs and the units.
    fn boot(fixture: &Fixture) -> Result<Self> {
        let units = workspace::root().context("no workspace")?.join("deploy/systemd");
        let mut files = programs()?.guest_files();
        files.extend(
            UNITS.map(|unit| GuestFile {
                host: units.join(unit),
                guest: format!("/etc/systemd/system/{unit}"),
            }),
        );
        let disk = fixture.lab()?.disk(&fixture.disk_name("systemd"), true)?;
        let host = Self::with(fixture, files, Some(disk), 768)?;
        host.put("/etc/kprobed/kprobed.toml", &config())?;
        Ok(host)
    }

    /// One with these files, and memory in MiB.
    pub(crate) fn with(
        fixture: &Fixture,
        files: Vec<GuestFile>,
        disk: Option<Disk>,
        memory_mib: u32,
    ) -> Result<Self> {
        let lab = fixture.lab()?;
        let systemd = Some(Systemd::ensure(lab.cache())?);
        let options =
            GuestOptions { files, disk, memory_mib, systemd, ..GuestOptions::new(fixture.kernel()?) };
        let host = Self { machine: OwnMachine::new(lab.boot(&options)?) };
        host.until("systemd", "systemctl is-active basic.target")?;
        host.put("/etc/systemd/system/kprobed.service.d/output.conf", OUTPUT)?;
        host.shell("systemctl daemon-reload")?;
        Ok(host)
    }

    pub(crate) fn put(&self, path: &str, text: &str) -> Result<()> {
        Ok(self.machine.put(path, 0o644, text.as_bytes())?)
    }

    /// The output of a script that has to succeed.
    pub(crate) fn shell(&self, script: &str) -> Result<String> {
        let output = self.machine.exec(&Command::shell(script))?;
        ensure!(output.status.success(), "{script}: {output:?}\n{}", self.log());
        Ok(output.stdout_text().trim().to_owned())
    }

    /// Waits until a script succeeds.
    pub(crate) fn until(&self, what: &str, script: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            let output = self.machine.exec(&Command::shell(script))?;
            if output.status.success() {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                bail!("{what} did not come: {output:?}\n{}", self.log());
            }
            // To ask systemd takes a guest longer than a look at a file.
            thread::sleep(Duration::from_millis(300));
        }
    }

    /// What systemd says of a unit.
    pub(crate) fn property(&self, unit: &str, name: &str) -> Result<String> {
        self.shell(&format!("systemctl show --value -p {name} {unit}"))
    }

    pub(crate) fn main_pid(&self) -> Result<String> {
        self.property("kprobed", "MainPID")
    }

    /// Waits until a daemon serves that is not this process. Its first client may have to wait.
    pub(crate) fn until_another_serves(&self, before: &str) -> Result<()> {
        let other = format!("pid=$(pidof kprobed) && test \"$pid\" != {before} && kprobectl list");
        self.until("another daemon", &other)
    }

    pub(crate) fn log(&self) -> String {
        let systemd =
            self.machine.exec(&Command::shell("systemctl status --no-pager kprobed; dmesg | tail -n 20"));
        let systemd = systemd.map(|output| output.stdout_text()).unwrap_or_default();
        format!("{}\n{systemd}", daemon::log_tail(&self.machine))
    }

    /// The probe is armed, and what it records arrives.
    fn records(&self) -> Result<()> {
        let listed = self.shell("kprobectl list")?;
        ensure!(listed.contains("kprobes/calls") && listed.contains("armed"), "{listed}");
        let events =
            "kprobectl observe calls --comm workload --since 10m -o json | grep -c '\"type\": *\"event\"'";
        let before = self.shell(&format!("{events} || true"))?;
        self.shell("workload getppid 20")?;
        self.until("its events", &format!("test $({events}) -ge $(({before} + 20))"))
    }
}

fn a_life_under_systemd(fixture: &Fixture) -> Result<()> {
    let host = Host::boot(fixture)?;
    a_call_starts_the_daemon(&host, fixture.restricts_files())?;
    it_reloads(&host)?;
    a_restart_keeps_clients_waiting(&host)?;
    a_daemon_that_hangs_is_replaced(&host)?;
    it_leaves_nothing(&host)?;
    the_network_takes_a_drop_in(&host)?;
    keys_are_credentials_of_the_service(&host)?;
    a_socket_of_another_name_is_refused(&host)?;
    Ok(host.machine.power_off()?)
}

fn a_call_starts_the_daemon(host: &Host, restricts_files: bool) -> Result<()> {
    host.shell("systemctl start kprobed.socket kprobed-tcp.socket")?;
    ensure!(host.property("kprobed", "ActiveState")? == "inactive");
    let socket = host.shell("stat -c '%a %u %g' /run/kprobed/kprobed.sock")?;
    ensure!(socket == "660 0 900", "mode, user and group of the socket: {socket}");
    host.shell("kprobectl add 'p:calls __x64_sys_getppid'")?;
    ensure!(host.property("kprobed", "ActiveState")? == "active");
    ensure!(host.property("kprobed", "WatchdogUSec")? == "1min");
    is_restricted(&host.machine)?;
    host.records()?;
    host.shell("kprobectl --server tcp://127.0.0.1:7443 list | grep calls")?;
    let log = host.log();
    ensure!(log.contains("of_service_manager=true"), "{log}");
    ensure!(log.contains("a part of the sandbox does not apply") != restricts_files, "{log}");
    ensure!(!log.contains("not permitted"), "{log}");
    Ok(())
}

fn it_reloads(host: &Host) -> Result<()> {
    let before = host.main_pid()?;
    host.shell("systemctl reload kprobed")?;
    host.until("the reload", "grep -q 'the configuration is reloaded' /run/log/kprobed.log")?;
    ensure!(host.main_pid()? == before && host.property("kprobed", "ActiveState")? == "active");
    host.records()
}

/// As an upgrade does: a client streams, the daemon is started again, and the next client need not know.
fn a_restart_keeps_clients_waiting(host: &Host) -> Result<()> {
    let before = host.main_pid()?;
    let inode = host.shell("stat -c %i /run/kprobed/kprobed.sock")?;
    let observe = "exec kprobectl observe calls --comm workload > /tmp/observed 2> /tmp/observer";
    host.machine.spawn("observer", &Command::shell(observe))?;
    host.until("the observer", "workload getppid 1 && grep -q calls /tmp/observed")?;
    host.shell("systemctl restart --no-block kprobed")?;
    host.until_another_serves(&before)?;
    ensure!(host.shell("stat -c %i /run/kprobed/kprobed.sock")? == inode, "the socket was made anew");
    ensure!(host.property("kprobed", "NRestarts")? == "0", "{}", host.log());
    let seen = host.shell("grep -c calls /tmp/observed")?;
    host.records()?;
    // The stream went on by itself, where it was.
    host.until(
        "the events of the new daemon",
        &format!("test $(grep -c calls /tmp/observed) -ge $(({seen} + 20))"),
    )
}

fn a_daemon_that_hangs_is_replaced(host: &Host) -> Result<()> {
    // A shorter time, so that the test need not wait for the shipped one.
    host.put("/etc/systemd/system/kprobed.service.d/watchdog.conf", "[Service]\nWatchdogSec=8\n")?;
    host.shell("systemctl daemon-reload && systemctl restart kprobed")?;
    let before = host.main_pid()?;
    // It is fed while it works.
    let fed = "systemctl show --value -p WatchdogTimestampMonotonic kprobed";
    let first = host.shell(fed)?;
    host.until("the second feeding", &format!("test \"$({fed})\" != {first}"))?;
    ensure!(host.main_pid()? == before);
    host.shell(&format!("kill -STOP {before}"))?;
    host.until("its end", &format!("! kill -0 {before}"))?;
    host.until("the watchdog", "test $(systemctl show --value -p NRestarts kprobed) = 1")?;
    host.until_another_serves(&before)?;
    is_restricted(&host.machine)?;
    host.shell("rm /etc/systemd/system/kprobed.service.d/watchdog.conf && systemctl daemon-reload")?;
    host.records()
}

fn it_leaves_nothing(host: &Host) -> Result<()> {
    host.shell("systemctl stop kprobed.socket kprobed-tcp.socket kprobed")?;
    ensure!(host.property("kprobed", "Result")? == "success", "{}", host.log());
    let left = host
        .shell("cat /sys/kernel/tracing/kprobe_events; ls /sys/kernel/tracing/instances; ls /run/kprobed")?;
    ensure!(left.is_empty(), "{left}");
    Ok(())
}

/// The unit keeps the daemon from the network, and the daemon says what opens it.
fn the_network_takes_a_drop_in(host: &Host) -> Result<()> {
    let hint = "RestrictAddressFamilies=AF_INET AF_INET6";
    host.shell("! systemctl start kprobed")?;
    let log = host.log();
    ensure!(log.contains("cannot listen on `127.0.0.1:7443`") && log.contains(hint), "{log}");
    host.shell("systemctl stop kprobed")?;
    // An exporter that cannot send is no reason not to serve.
    let local = config().replace("tcp = \"127.0.0.1:7443\"\n", "");
    let exporting = format!("{local}\n[export.otlp]\nendpoint = \"http://127.0.0.1:7001\"\n");
    host.put("/etc/kprobed/kprobed.toml", &exporting)?;
    host.shell("systemctl start kprobed")?;
    host.until("what is wrong", &format!("kprobectl doctor | grep -q '{hint}'"))?;
    host.shell("systemctl stop kprobed")?;
    host.put("/etc/kprobed/kprobed.toml", &config())?;
    let units = workspace::root().context("no workspace")?.join("deploy/systemd");
    host.put(
        "/etc/systemd/system/kprobed.service.d/network.conf",
        &fs::read_to_string(units.join("network.conf"))?,
    )?;
    host.shell("systemctl daemon-reload && systemctl start kprobed")?;
    host.shell("kprobectl --server tcp://127.0.0.1:7443 list")?;
    host.shell("systemctl stop kprobed && rm /etc/systemd/system/kprobed.service.d/network.conf")?;
    Ok(())
}

/// TCP with certificates, on a socket of systemd; the daemon finds its key where systemd has put it.
fn keys_are_credentials_of_the_service(host: &Host) -> Result<()> {
    let authority = Authority::new()?;
    let (server, client) = (authority.sign(certificates::DAEMON)?, authority.sign("client.test")?);
    let own = authority.pem();
    let files: [(&str, &[u8]); 5] = [
        ("/etc/kprobed/server.pem", &server.cert_pem),
        ("/etc/kprobed/ca.pem", own.as_bytes()),
        ("/root/kprobed.key", &server.key_pem),
        ("/root/client.pem", &client.cert_pem),
        ("/root/client.key", &client.key_pem),
    ];
    for (path, pem) in files {
        host.machine.put(path, 0o600, pem)?;
    }
    let with_tls = certificates::TLS_CONFIG
        .replace("0.0.0.0:7443", "127.0.0.1:7443")
        .replace("/etc/kprobed/server.key", "$CREDENTIALS_DIRECTORY/server.key");
    host.put("/etc/kprobed/kprobed.toml", &with_tls)?;
    let load = "[Service]\nLoadCredential=server.key:/root/kprobed.key\n";
    host.put("/etc/systemd/system/kprobed.service.d/credentials.conf", load)?;
    host.shell("systemctl daemon-reload && systemctl start kprobed-tcp.socket")?;
    let call = format!(
        "kprobectl --server https://127.0.0.1:7443 --ca /etc/kprobed/ca.pem --cert /root/client.pem --key /root/client.key \
         --domain {} auth whoami",
        certificates::DAEMON
    );
    // The first call starts the daemon, which may take longer than a client waits for TLS.
    host.until("a daemon with certificates", &call)?;
    let caller = host.shell(&call)?;
    ensure!(caller.contains("client.test"), "{caller}");
    // Read again from the same place.
    let reloaded = "grep -c 'the configuration is reloaded' /run/log/kprobed.log";
    let before = host.shell(reloaded)?;
    host.shell("systemctl reload kprobed")?;
    host.until("the reload", &format!("test $({reloaded}) -gt {before}"))?;
    host.shell(&call)?;
    // Outside of the service there is no such directory.
    let outside = host.shell("! kprobed --check-config --config /etc/kprobed/kprobed.toml 2>&1")?;
    ensure!(outside.contains("the environment has no `CREDENTIALS_DIRECTORY`"), "{outside}");
    host.shell("systemctl stop kprobed-tcp.socket kprobed")?;
    host.put("/etc/kprobed/kprobed.toml", &config())
}

fn a_socket_of_another_name_is_refused(host: &Host) -> Result<()> {
    host.put("/etc/systemd/system/kprobed.socket.d/name.conf", "[Socket]\nFileDescriptorName=other\n")?;
    host.shell("systemctl daemon-reload && systemctl start kprobed.socket")?;
    host.shell("! systemctl start kprobed")?;
    let log = host.log();
    ensure!(log.contains("cannot take over the socket `other` of the service manager"), "{log}");
    ensure!(log.contains("hint: set `FileDescriptorName=` in the socket unit to `unix` or `tcp`"), "{log}");
    Ok(())
}
