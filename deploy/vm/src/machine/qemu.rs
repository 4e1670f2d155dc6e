//! The QEMU process: its command line, starting and killing it.
//!
//! QEMU never outlives this program, not even if this program is killed with SIGKILL:
//! `setpriv --pdeathsig` has the kernel kill QEMU when its parent ends. The kernel means the parent
//! *thread*, so a thread of its own starts QEMU and stays until QEMU has ended.

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

use super::accel::Accelerator;
use super::qmp::Qmp;
use super::{MachineConfig, snapshot};
use crate::protocol;

/// The program that is run.
pub(super) const PROGRAM: &str = "qemu-system-x86_64";

/// A running, or ended, QEMU. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Qemu {
    pid: Pid,
    /// How it ended; absent while it runs.
    ended: Arc<(Mutex<Option<ExitStatus>>, Condvar)>,
}

impl Qemu {
    /// Starts QEMU with its own messages going to the file `messages`, and the connection to
    /// control it.
    pub(super) fn start(arguments: Vec<String>, messages: &Path) -> io::Result<(Self, Qmp)> {
        let messages = File::create(messages)?;
        let ended = Arc::new((Mutex::new(None), Condvar::new()));
        let publish = Arc::clone(&ended);
        let (started, outcome) = mpsc::sync_channel(1);
        thread::Builder::new().name("qemu-parent".into()).spawn(move || {
            let mut child = Command::new("setpriv")
                .args(["--pdeathsig", "KILL", PROGRAM])
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(messages)
                // Ctrl-C at the terminal is for this program, which then switches the guest off
                // properly.
                .process_group(0)
                .spawn();
            let told = started.send(match &mut child {
                Ok(child) => {
                    Ok((Pid::from_raw(child.id().cast_signed()), child.stdin.take(), child.stdout.take()))
                }
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            });
            let Ok(mut child) = child else { return };
            if told.is_err() {
                drop(child.kill());
            }
            // Until it is reaped below, under the lock, its pid cannot become another process's:
            // `kill` hits the right one.
            let pid = Pid::from_raw(child.id().cast_signed());
            waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).ok();
            let mut end = publish.0.lock().unwrap_or_else(PoisonError::into_inner);
            *end = child.wait().ok();
            drop(end);
            publish.1.notify_all();
        })?;
        let (pid, to, from) = outcome.recv().map_err(io::Error::other)??;
        let qemu = Self { pid, ended };
        let (Some(to), Some(from)) = (to, from) else { return Err(io::Error::other("QEMU has no pipes")) };
        Ok((qemu, Qmp::new(to, from)))
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
        let waited = self.ended.1.wait_timeout_while(self.lock(), timeout, |end| end.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Kills it, as a power cut would, and waits until it is gone.
    pub(super) fn kill(&self) {
        if self.lock().is_none() {
            kill(self.pid, Signal::SIGKILL).ok();
        }
        // A killed process is gone within milliseconds, unless the host's disk hangs; then waiting
        // longer does not help.
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

/// Free TCP ports on loopback, all different. Another program may take one before QEMU does: QEMU
/// then says so and ends.
pub(super) fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    // All are held until all are known.
    let listeners: io::Result<Vec<_>> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect();
    listeners?
        .iter()
        .map(|listener| listener.local_addr().map(|address: SocketAddr| address.port()))
        .collect()
}

/// All that can be emulated, apart from quick string instructions.
const SLOW_STRINGS: &str = "max,erms=off,fsrm=off";

/// QEMU's arguments for `config` with these forwards from host to guest ports.
pub(super) fn arguments(
    config: &MachineConfig,
    forwards: &[(u16, u16)],
    accelerator: Accelerator,
) -> Vec<String> {
    let guest = Ipv4Addr::from(protocol::GUEST_ADDRESS);
    let restrict = if config.reaches_host { "off" } else { "on" };
    let mut network = vec![format!("user,id=net,restrict={restrict}")];
    network
        .extend(forwards.iter().map(|(host, port)| format!("hostfwd=tcp:127.0.0.1:{host}-{guest}:{port}")));
    let mut arguments: Vec<String> = Vec::new();
    let mut option = |name: &str, value: String| arguments.extend([format!("-{name}"), value]);
    // With a thread for each CPU, older versions lose track of code that the guest patches. An emulated CPU
    // runs `rep movsb` byte by byte: a kernel that does not know it as quick uses larger steps.
    let (name, cpu) = match accelerator {
        Accelerator::Kvm => ("kvm", "max"),
        Accelerator::Tcg if config.cpus_possible.max(config.cpus) > 1 => ("tcg,thread=single", SLOW_STRINGS),
        Accelerator::Tcg => ("tcg", SLOW_STRINGS),
    };
    option("accel", name.into());
    option("cpu", cpu.into());
    option("smp", config.cpus_possible.max(config.cpus).to_string());
    option("m", format!("{}M", config.memory_mib));
    option("display", "none".into());
    option("serial", format!("file:{}", escaped(&config.serial_log)));
    option("netdev", network.join(","));
    option("device", "virtio-net-pci,netdev=net,romfile=".into());
    option("object", "rng-random,id=rng,filename=/dev/urandom".into());
    option("device", "virtio-rng-pci,rng=rng".into());
    if let Some((disk, log)) = config.disk.as_ref().and_then(|disk| Some((disk, disk.log()?))) {
        // The disk has a cache as far as the guest knows, so that it flushes. QEMU need not flush
        // on the host, which keeps its power.
        let file = |node: &str, path: &Path| {
            format!("driver=file,node-name={node},cache.no-flush=on,filename={}", escaped(path))
        };
        option("blockdev", file("image", disk.image()));
        option("blockdev", file("writes", log));
        option("blockdev", "driver=blklogwrites,node-name=disk,file=image,log=writes".into());
        // Without requests to write zeroes, whose place in the log others may take (QEMU before
        // 9.0).
        option("device", "virtio-blk-pci,drive=disk,write-cache=on,discard=off,write-zeroes=off".into());
    } else if let Some(disk) = &config.disk {
        // Write-through: what the disk acknowledged to the guest survives a kill of QEMU.
        option(
            "drive",
            format!("if=none,id=disk,format=raw,cache=writethrough,file={}", escaped(disk.image())),
        );
        option("device", "virtio-blk-pci,drive=disk".into());
    }
    option("kernel", config.image.display().to_string());
    option("initrd", config.initramfs.display().to_string());
    option("append", kernel_command_line(config, accelerator));
    if let Some(state) = &config.incoming {
        option("incoming", snapshot::incoming(state));
    }
    option("chardev", "stdio,id=qmp,signal=off".into());
    option("mon", "chardev=qmp,mode=control".into());
    arguments.extend(["-no-reboot".into(), "-nodefaults".into()]);
    arguments
}

/// `loglevel=5` after `quiet` shows warnings, `WARN_ON` among them. A panic reboots at once, which
/// `-no-reboot` turns into an end of QEMU; every oops, and a CPU that is stuck for twice the
/// watchdog's seconds, is a panic. CPUs that are only possible are there for QEMU, and never
/// started: those that could be plugged in are not possible CPUs for a kernel that does not know
/// the hypervisor (arch/x86/kernel/acpi/boot.c:acpi_is_processor_usable). QEMU keeps translated code by
/// its virtual address: with programs at other addresses in each run, it would translate all of their
/// code in each: half of the time of a test that runs many commands.
fn kernel_command_line(config: &MachineConfig, accelerator: Accelerator) -> String {
    let addresses = match accelerator {
        Accelerator::Kvm => "",
        Accelerator::Tcg => " norandmaps",
    };
    let fixed = "console=ttyS0 quiet loglevel=5 panic=-1 oops=panic softlockup_panic=1 watchdog_thresh=20";
    let started =
        if config.cpus_possible > config.cpus { format!(" maxcpus={}", config.cpus) } else { String::new() };
    format!("{fixed}{addresses}{started} {}", config.cmdline).trim_end().to_owned()
}

/// In QEMU's option lists a comma is written twice.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn forwards_stay_on_loopback_and_the_guest_off_the_network() {
        let config = MachineConfig {
            image: "/k".into(),
            initramfs: "/i".into(),
            memory_mib: 768,
            cpus: 1,
            cpus_possible: 4,
            disk: None,
            forwards: Vec::new(),
            reaches_host: false,
            cmdline: "trace_clock=mono".into(),
            serial_log: "/x,y/serial".into(),
            boot_deadline: Duration::ZERO,
            incoming: None,
        };
        let arguments = arguments(&config, &[(4000, 7000), (4001, 7001)], Accelerator::Tcg);
        let network = arguments.iter().find(|argument| argument.starts_with("user,")).unwrap();
        assert_eq!(
            network,
            "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:4000-10.0.2.15:7000,hostfwd=tcp:127.0.0.1:4001-10.0.2.15:7001"
        );
        assert!(arguments.contains(&"file:/x,,y/serial".to_owned()));
        assert!(arguments.contains(&"4".to_owned()));
        assert!(
            arguments.iter().any(
                |argument| argument.ends_with("watchdog_thresh=20 norandmaps maxcpus=1 trace_clock=mono")
            )
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
        // setpriv exists, so this starts; the program that it runs rejects the option and ends.
        let (qemu, mut qmp) = Qemu::start(vec!["--no-such-option".into()], &messages).unwrap();
        let status = qemu.wait(Duration::from_secs(20)).unwrap();
        assert!(!status.success());
        assert!(!fs::read_to_string(messages).unwrap().is_empty());
        assert!(qmp.command("query-status", &serde_json::json!({})).is_err());
    }
}
