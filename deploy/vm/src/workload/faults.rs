//! Fault injection into another program with ptrace(2): it is killed before a system call, or the
//! call fails without having been made.
//!
//! Owns the definition of a step: a system call that changes tracefs or the daemon's database. The
//! other program runs as it was built. Never makes a second fault: the test is what the program
//! does about the first one. But a disk that is full stays full until this program ends.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use clap::ValueEnum;
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{self, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Longest path that is looked at, in bytes.
const LONGEST_PATH: usize = 256;

/// The fault that happens at the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// SIGKILL before a step of any kind
    Kill,
    /// An error of the kernel at a change of tracefs
    Kernel,
    /// An error of the disk at a change of the database
    Disk,
    /// No space on the disk, at this change of the database and at all later ones
    Full,
}

/// The object that a step changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Tracefs,
    Database,
}

impl Fault {
    fn counts(self, target: Target, call: &str) -> bool {
        match self {
            Self::Kill => true,
            Self::Kernel => target == Target::Tracefs,
            Self::Disk => target == Target::Database,
            // What takes room. To give some back, and to make sure of what has room, works on a
            // full disk.
            Self::Full => target == Target::Database && matches!(call, "write" | "pwrite"),
        }
    }

    /// Whether it strikes at this step, when it was asked for at `at`.
    fn strikes(self, step: u64, at: u64) -> bool {
        step == at || (self == Self::Full && at > 0 && step > at)
    }

    /// The error of step `number`, which is one that such a call can have.
    fn errno(self, call: &str, number: u64) -> Errno {
        match (self, call) {
            (Self::Full, _) => Errno::ENOSPC,
            (Self::Disk, _) if number.is_multiple_of(2) => Errno::ENOSPC,
            (Self::Disk, _) => Errno::EIO,
            (_, "rmdir") => Errno::EBUSY,
            _ => Errno::ENOMEM,
        }
    }
}

/// Follows all threads of a process, makes the fault at step `at` (the first one is 1; 0 makes
/// none), and goes on until the process has ended.
///
/// Prints `ready` when all threads are followed, then `step CALL PATH` before each step that
/// counts, and `fault` before a fault.
pub(crate) fn run(process: i32, fault: Fault, at: u64, output: &mut impl Write) -> io::Result<()> {
    let process = Pid::from_raw(process);
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let Some(thread) = thread?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let thread = Pid::from_raw(thread);
        match ptrace::seize(thread, Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_TRACESYSGOOD) {
            // One that was followed since its beginning needs no interruption, one that has gone
            // needs nothing.
            Err(Errno::EPERM | Errno::ESRCH) => continue,
            outcome => outcome?,
        }
        match ptrace::interrupt(thread) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    line(output, "ready")?;
    let mut steps = 0;
    // Threads in a call that fails, and with which error.
    let mut failing = BTreeMap::new();
    loop {
        let status = match waitpid(None, Some(WaitPidFlag::__WALL)) {
            Ok(status) => status,
            Err(Errno::ECHILD) => return Ok(()),
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let (thread, deliver) = match status {
            WaitStatus::PtraceSyscall(thread) => {
                if let Some(errno) = failing.remove(&thread) {
                    fail(thread, errno)?;
                } else if let Some((call, target, path)) = entered(process, thread)
                    && fault.counts(target, call)
                {
                    steps += 1;
                    line(output, &format!("step {call} {path}"))?;
                    if fault.strikes(steps, at) {
                        line(output, "fault")?;
                        if fault == Fault::Kill {
                            // A call that is entered with a deadly signal pending is not made
                            // (`syscall_trace_enter`).
                            signal::kill(process, Signal::SIGKILL)?;
                        } else {
                            skip(thread)?;
                            failing.insert(thread, fault.errno(call, at));
                        }
                    }
                }
                (thread, None)
            }
            WaitStatus::PtraceEvent(thread, ..) => (thread, None),
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            _ => continue,
        };
        match ptrace::syscall(thread, deliver) {
            // It was killed in the meantime.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn line(output: &mut impl Write, text: &str) -> io::Result<()> {
    writeln!(output, "{text}")?;
    output.flush()
}

/// The call that a thread is about to make, if that is a step.
fn entered(process: Pid, thread: Pid) -> Option<(&'static str, Target, String)> {
    // At the end of a call there is nothing to do; a thread that is gone makes none.
    if ptrace::syscall_info(thread).ok()?.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    let registers = ptrace::getregs(thread).ok()?;
    let number = i64::try_from(registers.orig_rax).ok()?;
    let (call, path) = match number {
        libc::SYS_write => ("write", opened(process, registers.rdi)?),
        libc::SYS_pwrite64 => ("pwrite", opened(process, registers.rdi)?),
        libc::SYS_ftruncate => ("ftruncate", opened(process, registers.rdi)?),
        libc::SYS_fsync | libc::SYS_fdatasync => ("sync", opened(process, registers.rdi)?),
        libc::SYS_mkdir => ("mkdir", named(process, registers.rdi)?),
        libc::SYS_mkdirat => ("mkdir", named(process, registers.rsi)?),
        libc::SYS_rmdir => ("rmdir", named(process, registers.rdi)?),
        libc::SYS_unlink => ("unlink", named(process, registers.rdi)?),
        libc::SYS_unlinkat if registers.rdx & 0x200 != 0 => ("rmdir", named(process, registers.rsi)?),
        libc::SYS_unlinkat => ("unlink", named(process, registers.rsi)?),
        _ => return None,
    };
    Some((call, target(&path)?, path))
}

fn target(path: &str) -> Option<Target> {
    if path.contains("/tracing/") {
        Some(Target::Tracefs)
    } else if path.contains("kprobed.db") {
        Some(Target::Database)
    } else {
        None
    }
}

/// The file that a descriptor is open on.
fn opened(process: Pid, descriptor: u64) -> Option<String> {
    let link = PathBuf::from(format!("/proc/{process}/fd/{descriptor}"));
    Some(fs::read_link(link).ok()?.to_string_lossy().into_owned())
}

/// A path in the memory of the process. AT_REMOVEDIR and the like apart, the daemon gives whole
/// paths.
fn named(process: Pid, address: u64) -> Option<String> {
    let mut bytes = [0; LONGEST_PATH];
    let length = File::open(format!("/proc/{process}/mem")).ok()?.read_at(&mut bytes, address).ok()?;
    let bytes = bytes.get(..length)?;
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// Has the kernel make no call at all: there is none with this number.
fn skip(thread: Pid) -> io::Result<()> {
    let mut registers = ptrace::getregs(thread)?;
    registers.orig_rax = u64::MAX;
    Ok(ptrace::setregs(thread, registers)?)
}

/// The return value of the call, as the thread gets it.
fn fail(thread: Pid, errno: Errno) -> io::Result<()> {
    let mut registers = ptrace::getregs(thread)?;
    registers.rax = i64::from(-(errno as i32)).cast_unsigned();
    Ok(ptrace::setregs(thread, registers)?)
}

#[cfg(test)]
mod tests {
    use super::{Fault, Target, target};

    #[test]
    fn steps_are_told_from_other_writes() {
        for (path, expected) in [
            ("/sys/kernel/tracing/kprobe_events", Some(Target::Tracefs)),
            ("/sys/kernel/tracing/instances/kprobed", Some(Target::Tracefs)),
            ("/var/lib/kprobed/kprobed.db-wal", Some(Target::Database)),
            ("/var/lib/kprobed/events/0001", None),
            ("socket:[1]", None),
        ] {
            assert_eq!(target(path), expected, "{path}");
        }
        assert!(
            Fault::Kill.counts(Target::Database, "sync") && !Fault::Kernel.counts(Target::Database, "sync")
        );
        assert!(
            Fault::Full.counts(Target::Database, "pwrite") && !Fault::Full.counts(Target::Database, "sync")
        );
    }

    #[test]
    fn only_a_full_disk_stays_as_it_is() {
        let strikes = |fault: Fault, at| (1..5).filter(|step| fault.strikes(*step, at)).collect::<Vec<_>>();
        assert_eq!((strikes(Fault::Disk, 2), strikes(Fault::Full, 2)), (vec![2], vec![2, 3, 4]));
        assert!(strikes(Fault::Full, 0).is_empty());
    }
}
