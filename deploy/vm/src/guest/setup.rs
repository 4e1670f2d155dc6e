//! Setting up the guest, once, by PID 1: mounts, modules, host name, network, disk. Switching it off without losing
//! data.
//!
//! Never mounts tracefs or debugfs: that is the daemon's own work, and part of what is tested.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use kprobed_vm::protocol;
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, sethostname, sync};

use crate::background::Background;
use crate::say;

/// Where the disk's file system goes.
const DISK_MOUNT: &str = "/var/lib/kprobed";
const DISK_DEVICE: &str = "/dev/vda";

/// Everything, in the order in which it depends on each other.
pub(crate) fn prepare() -> Result<(), String> {
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    file_system("proc", "/proc", plain)?;
    file_system("sysfs", "/sys", plain)?;
    file_system("devtmpfs", "/dev", MsFlags::MS_NOSUID)?;
    file_system("devpts", "/dev/pts", MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC)?;
    file_system("tmpfs", "/dev/shm", MsFlags::MS_NOSUID | MsFlags::MS_NODEV)?;
    file_system("tmpfs", "/tmp", MsFlags::MS_NOSUID | MsFlags::MS_NODEV)?;
    file_system("tmpfs", "/run", MsFlags::MS_NOSUID | MsFlags::MS_NODEV)?;
    fs::create_dir_all("/run/log").map_err(|error| format!("/run/log: {error}"))?;
    load_modules()?;
    if let Ok(name) = fs::read_to_string("/etc/hostname") {
        sethostname(name.trim()).map_err(|error| format!("set the host name: {error}"))?;
    }
    network()?;
    if Path::new(DISK_DEVICE).exists() {
        fs::create_dir_all(DISK_MOUNT).map_err(|error| format!("{DISK_MOUNT}: {error}"))?;
        mount(Some(DISK_DEVICE), DISK_MOUNT, Some("ext4"), MsFlags::MS_NOATIME, None::<&str>)
            .map_err(|error| format!("mount {DISK_DEVICE}: {error}"))?;
    }
    Ok(())
}

fn file_system(kind: &str, on: &str, flags: MsFlags) -> Result<(), String> {
    fs::create_dir_all(on).map_err(|error| format!("{on}: {error}"))?;
    match mount(Some(kind), on, Some(kind), flags, None::<&str>) {
        // The kernel may have mounted devtmpfs itself.
        Ok(()) | Err(Errno::EBUSY) => Ok(()),
        Err(error) => Err(format!("mount {kind} on {on}: {error}")),
    }
}

/// The host put the modules there with names that sort in load order.
fn load_modules() -> Result<(), String> {
    let Ok(directory) = fs::read_dir("/lib/kprobed-guest/modules") else { return Ok(()) };
    let mut files: Vec<_> = directory.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    for path in files {
        let file = File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        match finit_module(&file, c"", ModuleInitFlags::empty()) {
            Ok(()) | Err(Errno::EEXIST) => {}
            // A device that the machine does not have is ignored; a missing network is found below.
            Err(error) => say(&format!("kprobed-guest: module {}: {error}", path.display())),
        }
    }
    Ok(())
}

fn network() -> Result<(), String> {
    let address = std::net::Ipv4Addr::from(protocol::GUEST_ADDRESS);
    ip(&["link", "set", "lo", "up"])?;
    ip(&["addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
    ip(&["link", "set", "eth0", "up"])
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("/bin/busybox")
        .arg("ip")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("busybox ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

/// How long background processes have after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
const EVERY_PROCESS: Pid = Pid::from_raw(-1);

/// Ends every process but PID 1 and this one, unmounts the disk, announces it, switches off.
/// Returns only on failure.
pub(crate) fn power_off(background: &Background) -> String {
    // ESRCH: there was no process to end.
    kill(EVERY_PROCESS, Signal::SIGTERM).ok();
    background.wait_for_all(GRACE);
    kill(EVERY_PROCESS, Signal::SIGKILL).ok();
    sync();
    if let Err(error) = unmount() {
        return format!("cannot unmount {DISK_MOUNT}: {error}");
    }
    say(protocol::POWER_OFF_LINE);
    match reboot(RebootMode::RB_POWER_OFF) {
        Err(error) => format!("power-off: {error}"),
        Ok(never) => match never {},
    }
}

/// A process that was just killed may take some milliseconds to close its files.
fn unmount() -> Result<(), Errno> {
    for _ in 0..50 {
        match umount(DISK_MOUNT) {
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(Errno::EBUSY) => thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error),
        }
    }
    Err(Errno::EBUSY)
}
