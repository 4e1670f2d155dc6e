//! Limit of open files (`RLIMIT_NOFILE`), which each connection counts against.
//!
//! Raised only if a command needs more: child processes inherit it, and programs that use `select`
//! expect the usual limit of 1,024.

use kprobed_client::fleet::FanOut;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::Failure;

/// Descriptors for everything but connections.
const OTHERS: u64 = 64;

/// Raises the limit so that this many connections can be open at a time.
///
/// # Errors
/// When the hard limit is lower; `instead` is the other way out, for the hint.
pub(super) fn raise(connections: usize, instead: &str) -> Result<(), Failure> {
    let needed = OTHERS.saturating_add(connections as u64);
    // Without a limit that can be read, connections themselves say what is wrong.
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(()) };
    if needed <= soft || needed <= hard && setrlimit(Resource::RLIMIT_NOFILE, needed, hard).is_ok() {
        return Ok(());
    }
    let message = format!(
        "{connections} connections need {needed} open files, and the limit of this process is {hard}"
    );
    Err(Failure::usage(message, &format!("raise it (`ulimit -Hn {needed}` as root), or {instead}")))
}

/// Raises the limit for a run over this many hosts.
///
/// # Errors
/// As [`raise`].
pub(super) fn raise_for(fan_out: &FanOut, hosts: usize) -> Result<(), Failure> {
    // Those to the last hosts may be closing while those to the next are made.
    raise(fan_out.parallel.get().min(hosts) * 2, "lower `--parallel`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_as_far_as_it_is_needed_and_no_further() {
        let soft = || getrlimit(Resource::RLIMIT_NOFILE).unwrap().0;
        let (before, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 200, hard).unwrap();
        raise(100, "").unwrap();
        assert_eq!(soft(), 200);
        raise(300, "").unwrap();
        assert_eq!(soft(), 364);
        let connections = usize::try_from(hard).unwrap();
        let refused = raise(connections, "walk").unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "{hard} connections need {} open files, and the limit of this process is {hard}",
                hard + 64
            )
        );
        assert_eq!(refused.hints(), [format!("raise it (`ulimit -Hn {}` as root), or walk", hard + 64)]);
        setrlimit(Resource::RLIMIT_NOFILE, before, hard).unwrap();
    }
}
