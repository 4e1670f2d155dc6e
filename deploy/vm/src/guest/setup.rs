//! Setting up the guest, once, by PID 1: mounts, modules, host name, network, disk.
//!
//! Never mounts tracefs or debugfs: that is the daemon's own work, and part of what is tested.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::unistd::sethostname;

use crate::say;
use kprobed_vm::protocol;

/// Where the disk's file system goes.
pub(crate) const DISK_MOUNT: &str = "/var/lib/kprobed";
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
