//! The system calls that a daemon makes after its start.
//!
//! A call that is not in the list fails with EPERM, and the daemon lives on. To kill it would stop no
//! attacker who tests calls elsewhere first, but would turn a call that a later libc makes on a rare path
//! into a daemon that dies with its probes armed. Lists are by purpose; what is missing on purpose is
//! executing programs, making processes, mounting, tracing, loading modules, BPF, `io_uring`, changing owners
//! and identities, setting clocks, and listening on further sockets.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};

/// Files: tracefs, the database, the history, exports, certificates, the user database.
const FILES: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_stat,
    libc::SYS_fstat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_truncate,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_copy_file_range,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_utimensat,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
];

/// Memory. Making it executable is in [`rules`].
const MEMORY: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
];

/// Threads, and waiting.
const THREADS: &[c_long] = &[
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_membarrier,
    libc::SYS_restart_syscall,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
];

/// Time and timers: leases end by the clock.
const TIME: &[c_long] = &[
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_times,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_timer_delete,
];

/// Connections. `listen` is missing: all sockets of the daemon listen by then.
const CONNECTIONS: &[c_long] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
];

/// Signals to itself, and facts about the process and the host.
const PROCESS: &[c_long] = &[
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpgrp,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getrlimit,
    libc::SYS_getrusage,
    libc::SYS_capget,
    libc::SYS_getrandom,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Families of sockets: clients and receivers, and the notices of the kernel about modules.
const FAMILIES: &[i32] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// What is asked of file descriptors: to block or not, how much there is, and whether it is a terminal.
const REQUESTS: &[u64] = &[libc::FIONBIO, libc::FIOCLEX, libc::FIONREAD, libc::TCGETS, libc::TIOCGWINSZ];

/// Names of threads and of memory, and how exactly a reader is woken.
const PROCESS_CONTROL: &[i32] =
    &[libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_TIMERSLACK, libc::PR_SET_VMA];

/// Puts the filter in force on all threads of the process.
///
/// # Errors
/// Those of seccomp(2).
pub(super) fn apply() -> Result<(), Error> {
    apply_filter_all_threads(&without_clone3()?)?;
    apply_filter_all_threads(&allowed()?)
}

/// What `clone3` is to do lies in memory, which a filter cannot read. The C library uses `clone` if there
/// is no `clone3`.
fn without_clone3() -> Result<BpfProgram, Error> {
    let no_such_call = SeccompAction::Errno(errno(libc::ENOSYS));
    program(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), SeccompAction::Allow, no_such_call)
}

fn allowed() -> Result<BpfProgram, Error> {
    program(rules()?, SeccompAction::Errno(errno(libc::EPERM)), SeccompAction::Allow)
}

fn program(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matching: SeccompAction,
) -> Result<BpfProgram, Error> {
    let filter = SeccompFilter::new(rules, otherwise, matching, TargetArch::x86_64)?;
    Ok(filter.try_into()?)
}

const fn errno(errno: i32) -> u32 {
    errno.unsigned_abs()
}

/// The calls that are allowed, and with which arguments. A call is allowed if one of its rules matches;
/// one without rules is allowed with all arguments.
fn rules() -> Result<BTreeMap<c_long, Vec<SeccompRule>>, BackendError> {
    let plain = [FILES, MEMORY, THREADS, TIME, CONNECTIONS, PROCESS].concat();
    let mut rules: BTreeMap<_, _> = plain.into_iter().map(|call| (call, Vec::new())).collect();
    // The second filter refuses it before this one is asked.
    rules.insert(libc::SYS_clone3, Vec::new());
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    rules.insert(libc::SYS_clone, vec![rule(0, SeccompCmpArgLen::Qword, MaskedEq(thread), thread)?]);
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![rule(0, Dword, Eq, own)?]);
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        rules.insert(call, each(0, FAMILIES.iter().map(|family| u64::from(family.unsigned_abs())))?);
    }
    rules.insert(libc::SYS_ioctl, each(1, REQUESTS.iter().copied())?);
    rules
        .insert(libc::SYS_prctl, each(0, PROCESS_CONTROL.iter().map(|what| u64::from(what.unsigned_abs())))?);
    // Reading a limit is allowed, and setting one not: the third argument is the new one.
    rules.insert(libc::SYS_prlimit64, vec![rule(2, SeccompCmpArgLen::Qword, Eq, 0)?]);
    // Memory is never writable and executable at a time, and never becomes executable. Modules of the user database are
    // mapped executable from their files.
    let [write, execute] = [libc::PROT_WRITE, libc::PROT_EXEC].map(|flag| u64::from(flag.unsigned_abs()));
    let is_without = |flag| rule(2, Dword, MaskedEq(flag), 0);
    rules.insert(libc::SYS_mmap, vec![is_without(write)?, is_without(execute)?]);
    rules.insert(libc::SYS_mprotect, vec![is_without(execute)?]);
    Ok(rules)
}

/// A rule for each of these values of an argument.
fn each(argument: u8, values: impl Iterator<Item = u64>) -> Result<Vec<SeccompRule>, BackendError> {
    values.map(|value| rule(argument, Dword, Eq, value)).collect()
}

fn rule(
    argument: u8,
    length: SeccompCmpArgLen,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, length, operator, value)?])
}
