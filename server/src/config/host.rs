//! The size of the host, by which sizes in the configuration are judged.

use nix::sys::sysinfo::sysinfo;
use nix::unistd::{SysconfVar, sysconf};

/// How large the host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSize {
    /// CPUs that it can have.
    pub cpus: u64,
    /// Its memory, in KiB.
    pub memory_kib: u64,
}

/// The buffers of all CPUs take at most this part of the memory when the daemon starts. Deleting a probe while others record takes a
/// second set for a moment.
const START_SHARE: u64 = 4;

/// They never grow beyond this part.
const GROWTH_SHARE: u64 = 16;

impl HostSize {
    /// Of this host.
    ///
    /// # Errors
    /// What the system says.
    pub fn here() -> Result<Self, nix::Error> {
        let cpus = sysconf(SysconfVar::_NPROCESSORS_CONF)?.unwrap_or(1);
        let cpus = u64::try_from(cpus).unwrap_or(1).max(1);
        Ok(Self { cpus, memory_kib: sysinfo()?.ram_total() / 1024 })
    }

    /// The largest `tracing.buffer_kib`.
    pub const fn most_buffer_kib(self) -> u64 {
        self.memory_kib / START_SHARE / self.cpus
    }

    /// What the buffer of one CPU may grow to, in KiB.
    pub const fn most_grown_kib(self) -> u64 {
        self.memory_kib / GROWTH_SHARE / self.cpus
    }
}
