//! CPUs and memory of the host, which limit the sizes in the configuration.

use nix::sys::sysinfo::sysinfo;
use nix::unistd::{SysconfVar, sysconf};

use crate::start_error::StartError;

/// How large the host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSize {
    /// CPUs that it can have.
    pub cpus: u64,
    /// Its memory, in KiB.
    pub memory_kib: u64,
}

/// The buffers of all CPUs take at most this part of the memory when the daemon starts. A hand-over
/// needs a second set of them.
const START_SHARE: u64 = 4;

/// The buffers of all CPUs never grow beyond this part of the memory.
const GROWTH_SHARE: u64 = 16;

impl HostSize {
    /// Of this host.
    ///
    /// # Errors
    /// The error of the system.
    pub fn here() -> Result<Self, StartError> {
        let unread = |error| {
            let message = format!("cannot read the number of CPUs and the size of the memory: {error}");
            StartError::new(message)
        };
        let cpus = sysconf(SysconfVar::_NPROCESSORS_CONF).map_err(unread)?.unwrap_or(1);
        let cpus = u64::try_from(cpus).unwrap_or(1).max(1);
        Ok(Self { cpus, memory_kib: sysinfo().map_err(unread)?.ram_total() / 1024 })
    }

    /// The largest `tracing.buffer_kib`.
    pub(crate) const fn most_buffer_kib(self) -> u64 {
        self.memory_kib / START_SHARE / self.cpus
    }

    /// Largest size that the buffer of one CPU may grow to, in KiB.
    pub(crate) const fn most_grown_kib(self) -> u64 {
        self.memory_kib / GROWTH_SHARE / self.cpus
    }
}
