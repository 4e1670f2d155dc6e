//! Switching the guest off without losing data.

use std::thread;
use std::time::Duration;

use kprobed_vm::protocol::POWER_OFF_LINE;
use nix::errno::Errno;
use nix::mount::umount;
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, sync};

use crate::background::Background;
use crate::say;
use crate::setup::DISK_MOUNT;

/// How long background processes have after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
const EVERY_PROCESS: Pid = Pid::from_raw(-1);

/// Ends every process but PID 1 and this one, unmounts the disk, announces it, switches off.
/// Returns only on failure.
pub(crate) fn off(background: &Background) -> String {
    // ESRCH: there was no process to end.
    kill(EVERY_PROCESS, Signal::SIGTERM).ok();
    background.wait_for_all(GRACE);
    kill(EVERY_PROCESS, Signal::SIGKILL).ok();
    sync();
    if let Err(error) = unmount() {
        return format!("cannot unmount {DISK_MOUNT}: {error}");
    }
    say(POWER_OFF_LINE);
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
