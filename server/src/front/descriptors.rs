//! The file descriptor limit, and how many descriptors connections may use.
//!
//! A connection that took the last descriptor would keep the readers, the history, SQLite and
//! tracefs from working.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that are kept for the rest of the daemon, apart from those of each CPU.
const RESERVED: u64 = 128;

/// Descriptors of each CPU: the buffers of two instances, their readers, and what is opened for a
/// moment.
const RESERVED_PER_CPU: u64 = 8;

/// Descriptors that a connection can need: its socket, and the file of the history that its stream
/// reads.
const PER_CONNECTION: u64 = 2;

/// Raises the limit of this process as far as it may: the usual one of 1,024 is for programs that
/// use `select`.
pub fn raise_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) }
    });
    if let Err(errno) = raised {
        tracing::warn!(%errno, "cannot raise the limit of open files");
    }
}

/// The limit in force.
pub(super) fn limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft)
}

/// Connections for which there are descriptors on a host with so many CPUs.
pub(super) fn for_connections(limit: u64, cpus: u64) -> u64 {
    (limit.saturating_sub(RESERVED + RESERVED_PER_CPU * cpus) / PER_CONNECTION).max(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_the_daemon_has_descriptors() {
        assert_eq!(for_connections(1024, 2), 440);
        assert_eq!(for_connections(524_288, 64), 261_824);
        // There is always a way in.
        assert_eq!(for_connections(64, 64), 4);
    }

    #[test]
    fn the_limit_is_the_largest_that_there_may_be() {
        raise_limit();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!((soft, limit()), (hard, hard));
    }
}
