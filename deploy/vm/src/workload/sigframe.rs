//! A return from a signal with a floating-point state that the CPU refuses (XRSTOR raises a general
//! protection fault). The kernel expects that, and ends the program with SIGSEGV.
//!
//! Needs no privilege: the state lies in memory of the program. A debugger changes it here, so that
//! this program need not contain a handler of signals.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Where the frame of a signal has the address of the floating-point state, in bytes from the stack
/// pointer with which rt_sigreturn(2) is called (arch/x86/include/uapi/asm/sigcontext.h).
const STATE_AT: u64 = 224;

/// Where that state has XCOMP_BV, which must be 0 in the form that user memory has: behind the legacy
/// area of 512 bytes and XSTATE_BV.
const XCOMP_BV_AT: u64 = 512 + 8;

/// Prints how the program that returns from the signal has ended.
pub(crate) fn run(output: &mut impl Write) -> io::Result<()> {
    let script = "trap : USR1; read start; kill -USR1 $$; echo survived";
    let mut child = Command::new("/bin/sh").args(["-c", script]).stdin(Stdio::piped()).spawn()?;
    let process = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    ptrace::seize(process, Options::PTRACE_O_TRACESYSGOOD)?;
    ptrace::interrupt(process)?;
    if let Some(mut start) = child.stdin.take() {
        start.write_all(b"\n")?;
    }
    loop {
        let deliver = match waitpid(process, Some(WaitPidFlag::__WALL))? {
            WaitStatus::PtraceSyscall(_) => {
                damage(process)?;
                None
            }
            WaitStatus::Stopped(_, signal) if signal != Signal::SIGTRAP => Some(signal),
            WaitStatus::Exited(_, code) => return writeln!(output, "exit {code}"),
            WaitStatus::Signaled(_, signal, _) => return writeln!(output, "{signal}"),
            _ => None,
        };
        ptrace::syscall(process, deliver)?;
    }
}

/// Changes the saved state, if the process is about to return from a signal.
fn damage(process: Pid) -> io::Result<()> {
    let registers = ptrace::getregs(process)?;
    let is_entry = ptrace::syscall_info(process)?.op == libc::PTRACE_SYSCALL_INFO_ENTRY;
    if !is_entry || registers.orig_rax.cast_signed() != libc::SYS_rt_sigreturn {
        return Ok(());
    }
    let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{process}/mem"))?;
    let mut state = [0; 8];
    memory.read_exact_at(&mut state, registers.rsp + STATE_AT)?;
    memory.write_all_at(&[0xff; 8], u64::from_le_bytes(state) + XCOMP_BV_AT)
}
