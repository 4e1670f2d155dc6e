//! The checks of the daemon's own sandbox: what the kernel says of its threads, and which files it opens for them.

use std::fs;
use std::io;
use std::path::Path;

use super::{HostCheck, ok, warning};
use crate::sandbox::KEPT;

/// What the kernel says of the threads of a process (proc(5), `/proc/[pid]/task/[tid]/status`).
#[derive(Debug, Default, PartialEq, Eq)]
struct Threads {
    count: usize,
    /// Threads with a filter of system calls.
    filtered: usize,
    /// Threads whose programs gain no privileges.
    no_new_privileges: usize,
    /// Effective capabilities of all threads together.
    capabilities: u64,
}

/// Whether the kernel keeps this daemon from files that it does not need (Landlock). There is no file that says so: it
/// is tried to list the root, for which the daemon has no rule.
pub fn files_check() -> HostCheck {
    judge_files(fs::read_dir("/").map(drop))
}

fn judge_files(listed: io::Result<()>) -> HostCheck {
    match listed {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            ok("files", "the daemon can open only the files that it needs")
        }
        _ => warning(
            "files",
            "the daemon can open every file that root can open",
            "set `sandbox.mode` to `on`, and boot a kernel with CONFIG_SECURITY_LANDLOCK and `landlock` in `lsm=`",
        ),
    }
}

/// Whether the threads of this daemon are restricted. `procfs` is usually `/proc`.
pub fn sandbox_check(procfs: &Path) -> HostCheck {
    match read(&procfs.join("self/task")) {
        Ok(threads) => judge(&threads),
        Err(error) => {
            let finding = format!("cannot read what restricts the daemon: {error}");
            warning("sandbox", finding, "mount procfs, and set `tracing.procfs` to where it is")
        }
    }
}

fn read(tasks: &Path) -> io::Result<Threads> {
    let mut threads = Threads::default();
    for task in fs::read_dir(tasks)? {
        // A thread can end meanwhile.
        if let Ok(status) = fs::read_to_string(task?.path().join("status")) {
            threads.add(&status);
        }
    }
    Ok(threads)
}

impl Threads {
    fn add(&mut self, status: &str) {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        self.count += 1;
        // SECCOMP_MODE_FILTER
        self.filtered += usize::from(field("Seccomp:") == Some("2"));
        self.no_new_privileges += usize::from(field("NoNewPrivs:") == Some("1"));
        self.capabilities |= field("CapEff:").and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or(0);
    }
}

fn judge(threads: &Threads) -> HostCheck {
    let Threads { count, filtered, no_new_privileges, capabilities } = *threads;
    let finding = format!(
        "system calls are filtered on {filtered} of {count} threads, no_new_privs is set on {no_new_privileges}, \
         capabilities {capabilities:#x}"
    );
    let is_kept = capabilities & !KEPT.bits() == 0;
    if filtered == count && no_new_privileges == count && is_kept {
        return ok("sandbox", finding);
    }
    warning("sandbox", finding, "set `sandbox.mode` to `on`, and look for `sandbox` in the daemon's log")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::CheckStatus;

    const RESTRICTED: &str =
        "Name:\tkprobed\nCapEff:\t0000000400020000\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t2\n";

    #[test]
    fn one_thread_without_a_filter_is_a_warning() {
        let mut threads = Threads::default();
        threads.add(RESTRICTED);
        threads.add(RESTRICTED);
        let check = judge(&threads);
        assert_eq!((check.status(), check.fix.as_str()), (CheckStatus::Ok, ""));
        assert_eq!(
            check.finding,
            "system calls are filtered on 2 of 2 threads, no_new_privs is set on 2, capabilities 0x400020000"
        );
        let mut more = Threads::default();
        more.add(&RESTRICTED.replace("20000", "20003"));
        assert_eq!(judge(&more).status(), CheckStatus::Warning, "a capability that was to be dropped");
        threads.add("Name:\tkprobed\nCapEff:\t0000000000000020\nNoNewPrivs:\t0\nSeccomp:\t0\n");
        let check = judge(&threads);
        assert_eq!(check.status(), CheckStatus::Warning);
        assert!(
            check.finding.contains("2 of 3 threads") && check.finding.ends_with("0x400020020"),
            "{check:?}"
        );
    }

    #[test]
    fn files_are_restricted_if_the_root_cannot_be_listed() {
        let refused = judge_files(Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!((refused.status(), refused.fix.as_str()), (CheckStatus::Ok, ""));
        let listed = judge_files(Ok(()));
        assert_eq!(listed.status(), CheckStatus::Warning);
        assert!(listed.fix.contains("`landlock` in `lsm=`"), "{listed:?}");
    }

    #[test]
    fn the_threads_of_this_process_are_read() {
        let threads = read(Path::new("/proc/self/task")).unwrap();
        assert!(threads.count >= 1);
    }
}
