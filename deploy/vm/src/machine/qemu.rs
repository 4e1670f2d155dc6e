//! The QEMU process: its command line, its life, its death.
//!
//! It must never outlive this program, not even when this program is killed with SIGKILL. `setpriv --pdeathsig` makes the
//! kernel kill QEMU when its parent dies; and because the kernel means the parent *thread*, a thread of its own starts QEMU
//! and stays until QEMU has ended, whichever thread asked for it.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::MachineConfig;
use crate::protocol;

/// The program that is run.
pub(super) const PROGRAM: &str = "qemu-system-x86_64";

/// A running, or ended, QEMU. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Qemu {
    pid: Pid,
    ended: Arc<(Mutex<Option<ExitStatus>>, Condvar)>,
}

impl Qemu {
    /// Starts QEMU with its own messages going to the file `messages`.
    pub(super) fn start(arguments: Vec<String>, messages: &Path) -> io::Result<Self> {
        let messages = File::create(messages)?;
        let ended = Arc::new((Mutex::new(None), Condvar::new()));
        let publish = Arc::clone(&ended);
        let (started, outcome) = mpsc::sync_channel(1);
        thread::Builder::new().name("qemu-parent".into()).spawn(move || {
            let child = Command::new("setpriv")
                .args(["--pdeathsig", "KILL", PROGRAM])
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(messages)
                // Ctrl-C at the terminal is for this program, which then switches the guest off properly.
                .process_group(0)
                .spawn();
            let pid = child.as_ref().map(|child| Pid::from_raw(child.id().cast_signed()));
            let told = started.send(pid.map_err(|error| io::Error::new(error.kind(), error.to_string())));
            let Ok(mut child) = child else { return };
            if told.is_err() {
                drop(child.kill());
            }
            // Until it is reaped below, under the lock, its pid cannot become another process's: `kill` hits the right one.
            let pid = Pid::from_raw(child.id().cast_signed());
            waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).ok();
            let mut status = publish.0.lock().unwrap_or_else(PoisonError::into_inner);
            *status = child.wait().ok();
            drop(status);
            publish.1.notify_all();
        })?;
        let pid = outcome.recv().map_err(io::Error::other)??;
        Ok(Self { pid, ended })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// How it ended, if it has.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        *self.lock()
    }

    /// Waits for its end for at most `timeout`.
    pub(super) fn wait(&self, timeout: Duration) -> Option<ExitStatus> {
        let waited = self.ended.1.wait_timeout_while(self.lock(), timeout, |status| status.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Kills it, as a power cut would, and waits until it is gone.
    pub(super) fn kill(&self) {
        if self.lock().is_none() {
            kill(self.pid, Signal::SIGKILL).ok();
        }
        // A killed process is gone within milliseconds, unless the host's disk hangs; then nobody is helped by waiting on.
        self.wait(Duration::from_secs(10));
    }

    fn lock(&self) -> MutexGuard<'_, Option<ExitStatus>> {
        self.ended.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What `--version` says in its first line, and the major number in it.
pub(super) fn version() -> io::Result<(String, u32)> {
    let output = Command::new(PROGRAM).arg("--version").stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().next().unwrap_or_default().to_owned();
    let major = major(&line).unwrap_or_default();
    Ok((line, major))
}

/// `QEMU emulator version 7.2.22 (Debian …)` is 7.
fn major(line: &str) -> Option<u32> {
    line.split_once("version ")?.1.split('.').next()?.parse().ok()
}

/// Free TCP ports on loopback, all different. Another program may take one before QEMU does: QEMU then says so and ends.
pub(super) fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    // All are held until all are known.
    let listeners: io::Result<Vec<_>> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect();
    listeners?
        .iter()
        .map(|listener| listener.local_addr().map(|address: SocketAddr| address.port()))
        .collect()
}

/// QEMU's arguments for `config` with these forwards from host to guest ports.
pub(super) fn arguments(config: &MachineConfig, forwards: &[(u16, u16)]) -> Vec<String> {
    let guest = Ipv4Addr::from(protocol::GUEST_ADDRESS);
    let mut network = vec!["user,id=net,restrict=on".to_owned()];
    network
        .extend(forwards.iter().map(|(host, port)| format!("hostfwd=tcp:127.0.0.1:{host}-{guest}:{port}")));
    let mut arguments: Vec<String> = Vec::new();
    let mut option = |name: &str, value: String| arguments.extend([format!("-{name}"), value]);
    // With a thread for each CPU, older versions lose track of code that the guest patches.
    option("accel", if config.cpus_possible > 1 { "tcg,thread=single" } else { "tcg" }.into());
    option("cpu", "max".into());
    option("smp", config.cpus_possible.max(config.cpus).to_string());
    option("m", format!("{}M", config.memory_mib));
    option("display", "none".into());
    option("serial", format!("file:{}", escaped(&config.serial_log)));
    option("netdev", network.join(","));
    option("device", "virtio-net-pci,netdev=net,romfile=".into());
    option("object", "rng-random,id=rng,filename=/dev/urandom".into());
    option("device", "virtio-rng-pci,rng=rng".into());
    if let Some(disk) = &config.disk {
        // Write-through: what the guest was told is on the disk survives a kill of QEMU.
        option(
            "drive",
            format!("if=none,id=disk,format=raw,cache=writethrough,file={}", escaped(disk.image())),
        );
        option("device", "virtio-blk-pci,drive=disk".into());
    }
    option("kernel", config.image.display().to_string());
    option("initrd", config.initramfs.display().to_string());
    option("append", kernel_command_line(config));
    arguments.extend(["-no-reboot".into(), "-nodefaults".into()]);
    arguments
}

/// `loglevel=5` after `quiet` shows warnings, `WARN_ON` among them. A panic reboots at once, which `-no-reboot` turns into an
/// end of QEMU; every oops, and a CPU that is stuck for twice the watchdog's seconds, is a panic. CPUs that are only possible are there
/// for QEMU, and never started: those that could be plugged in are no possible ones for a kernel that does not know the hypervisor
/// (arch/x86/kernel/acpi/boot.c:acpi_is_processor_usable).
fn kernel_command_line(config: &MachineConfig) -> String {
    let fixed = "console=ttyS0 quiet loglevel=5 panic=-1 oops=panic softlockup_panic=1 watchdog_thresh=20";
    let started =
        if config.cpus_possible > config.cpus { format!(" maxcpus={}", config.cpus) } else { String::new() };
    format!("{fixed}{started} {}", config.cmdline).trim_end().to_owned()
}

/// In QEMU's option lists a comma is written twice.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(major("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)"), Some(7));
        assert_eq!(major("QEMU emulator version 10.0.2"), Some(10));
        assert_eq!(major("something else"), None);
    }

    #[test]
    fn forwards_stay_on_loopback_and_the_guest_off_the_network() {
        let config = MachineConfig {
            serial_log: "/x,y/serial".into(),
            cmdline: "trace_clock=mono".into(),
            cpus_possible: 4,
            ..MachineConfig::new("/k", "/i", "/unused")
        };
        let arguments = arguments(&config, &[(4000, 7000), (4001, 7001)]);
        let network = arguments.iter().find(|argument| argument.starts_with("user,")).unwrap();
        assert_eq!(
            network,
            "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:4000-10.0.2.15:7000,hostfwd=tcp:127.0.0.1:4001-10.0.2.15:7001"
        );
        assert!(arguments.contains(&"file:/x,,y/serial".to_owned()));
        assert!(arguments.contains(&"4".to_owned()));
        assert!(
            arguments
                .iter()
                .any(|argument| argument.ends_with("watchdog_thresh=20 maxcpus=1 trace_clock=mono"))
        );
        assert!(!arguments.iter().any(|argument| argument.contains("virtio-blk")));
    }

    #[test]
    fn free_ports_differ() {
        let mut ports = free_ports(8).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
    }

    #[test]
    fn a_program_that_cannot_be_started_is_an_end_with_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let messages = directory.path().join("messages");
        // setpriv exists, so this starts; what it is told to run rejects the option and ends.
        let qemu = Qemu::start(vec!["--no-such-option".into()], &messages).unwrap();
        let status = qemu.wait(Duration::from_secs(20)).unwrap();
        assert!(!status.success());
        assert!(!std::fs::read_to_string(messages).unwrap().is_empty());
    }
}
