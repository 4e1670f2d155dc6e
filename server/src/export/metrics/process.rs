//! Process metrics of the daemon: processor time, memory, file descriptors, start time.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use kprobed_host::kernel::processor_time;

/// The daemon as a process. What cannot be read is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// Processor time, user and system.
    pub cpu: Option<Duration>,
    /// Memory that is its own now, in bytes (`VmRSS`).
    pub resident_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_files: Option<u64>,
    /// When it was started.
    pub start: Option<SystemTime>,
}

impl Process {
    /// Reads it.
    pub(super) fn read(procfs: &Path) -> Self {
        let own = procfs.join("self");
        let status = fs::read_to_string(own.join("status")).unwrap_or_default();
        Self {
            cpu: processor_time(),
            resident_bytes: resident_bytes(&status),
            open_files: fs::read_dir(own.join("fd")).ok().map(|files| files.count() as u64),
            start: fs::metadata(&own).and_then(|found| found.modified()).ok(),
        }
    }
}

/// `VmRSS` of a status file (fs/proc/task_mmu.c:task_mem).
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself() {
        let process = Process::read(Path::new("/proc"));
        assert!(process.resident_bytes.unwrap() > 1 << 20, "{process:?}");
        assert!(process.open_files.unwrap() > 2, "{process:?}");
        assert!(process.cpu.is_some() && process.start.unwrap() < SystemTime::now(), "{process:?}");
        assert_eq!(resident_bytes("VmRSS:\t  12 kB\n"), Some(12 << 10));
        assert_eq!(resident_bytes("VmRSS: many kB\n"), None);
    }
}
