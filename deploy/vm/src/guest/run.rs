//! Running a process in the guest, with its output sent to the host and its input read from the
//! host, through pipes or a terminal.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kprobed_vm::protocol::{ALIVE_INTERVAL, CHUNK_BYTES, Frame, Process, Size, Status, read_frame};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::agent::{Refusal, command, send};

/// How long output may still come after the process has ended: a process that it started may keep
/// the pipes open.
const LINGER: Duration = Duration::from_millis(300);
/// How long a process may still be there after it was killed: one that sleeps in the kernel may stay.
const DYING: Duration = Duration::from_secs(5);
/// How often a quiet process is looked at, in milliseconds.
const TICK_MS: u8 = 100;

/// A process that was started, and this end of its streams.
struct Started {
    child: Child,
    stdin: Option<File>,
    stdout: Option<File>,
    stderr: Option<File>,
}

/// With three pipes.
fn piped(process: &Process) -> Result<Started, Refusal> {
    let mut command = command(process)?;
    // A group of its own, so that a time-out ends what it started too.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| Refusal::io(name(process), &error))?;
    let stdin = child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    let stdout = child.stdout.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    let stderr = child.stderr.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    Ok(Started { child, stdin, stdout, stderr })
}

/// With a terminal, which is that of its session: Ctrl-C reaches what runs in the foreground.
fn at_terminal(process: &Process, size: Size) -> Result<Started, Refusal> {
    let failed = |error| Refusal::io("terminal", &error);
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let opened = (|| {
        let ours = openpt(flags)?;
        unlockpt(&ours)?;
        resize(&ours, size)?;
        let theirs = ioctl_tiocgptpeer(&ours, flags)?;
        io::Result::Ok((File::from(ours), theirs))
    })();
    let (ours, theirs) = opened.map_err(failed)?;
    let as_leader = ["/bin/busybox", "setsid", "-c"].map(str::to_owned);
    let argv = as_leader.into_iter().chain(process.argv.iter().cloned()).collect();
    let mut command = command(&Process { argv, ..process.clone() })?;
    command
        .stdin(theirs.try_clone().map_err(failed)?)
        .stdout(theirs.try_clone().map_err(failed)?)
        .stderr(theirs);
    let child = command.spawn().map_err(|error| Refusal::io(name(process), &error))?;
    let stdin = ours.try_clone().map_err(failed)?;
    Ok(Started { child, stdin: Some(stdin), stdout: Some(ours), stderr: None })
}

fn resize(terminal: impl AsFd, Size { rows, columns }: Size) -> io::Result<()> {
    Ok(tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?)
}

fn name(process: &Process) -> &str {
    process.argv.first().map_or("", String::as_str)
}

/// Runs `process`; the host's `Data` frames on `stream` are its standard input.
pub(crate) fn run(
    stream: &TcpStream,
    process: &Process,
    timeout: Option<Duration>,
    terminal: Option<Size>,
) -> Result<Status, Refusal> {
    let incoming = stream.try_clone().map_err(|error| Refusal::io("socket", &error))?;
    let mut started = terminal.map_or_else(|| piped(process), |size| at_terminal(process, size));
    let host_gone = Arc::new(AtomicBool::new(false));
    let stdin = started.as_mut().ok().and_then(|started| started.stdin.take());
    // Also when nothing was started: the host's bytes have to leave the socket.
    feed(incoming, stdin, Arc::clone(&host_gone));
    let Started { mut child, mut stdout, mut stderr, .. } = started?;
    let group = Pid::from_raw(i32::try_from(child.id()).map_err(|error| Refusal::new(error.to_string()))?);
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut last_sent = Instant::now();
    let mut ended: Option<(ExitStatus, Instant)> = None;
    let mut timed_out = false;
    loop {
        let mut moved = pump(&mut stdout, &mut chunk, |bytes| send(stream, &Frame::Stdout(bytes)))?;
        moved |= pump(&mut stderr, &mut chunk, |bytes| send(stream, &Frame::Stderr(bytes)))?;
        if moved {
            last_sent = Instant::now();
        } else if last_sent.elapsed() >= ALIVE_INTERVAL {
            send(stream, &Frame::Alive).inspect_err(|_| kill(group))?;
            last_sent = Instant::now();
        }
        if ended.is_none() {
            let status = child.try_wait().map_err(|error| Refusal::io(name(process), &error))?;
            ended = status.map(|status| (status, Instant::now()));
            timed_out |= ended.is_none() && deadline.is_some_and(|deadline| deadline <= Instant::now());
            if timed_out || host_gone.load(Ordering::Relaxed) {
                kill(group);
            }
        }
        let drained = stdout.is_none() && stderr.is_none();
        if let Some((status, at)) = ended
            && (drained || (!moved && at.elapsed() >= LINGER))
        {
            return Ok(if timed_out { Status::TimedOut } else { convert(status) });
        }
        if deadline.is_some_and(|deadline| deadline + DYING <= Instant::now()) {
            return Ok(match ended {
                Some((status, _)) if !timed_out => convert(status),
                _ => Status::TimedOut,
            });
        }
        if drained {
            // Nothing left to poll: the end is near, or the process has closed its output.
            thread::sleep(Duration::from_millis(5));
        } else {
            wait_for_output(stdout.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd));
        }
    }
}

/// How the process ended, in the protocol's words.
pub(crate) fn convert(status: ExitStatus) -> Status {
    status.signal().map_or_else(|| Status::Exited(status.code().unwrap_or_default()), Status::Signaled)
}

fn kill(group: Pid) {
    // Already gone is what is wanted.
    killpg(group, Signal::SIGKILL).ok();
}

/// Moves what is there without waiting; true when something moved. At the end the pipe becomes
/// `None`.
fn pump(
    pipe: &mut Option<File>,
    chunk: &mut [u8],
    mut deliver: impl FnMut(Vec<u8>) -> Result<(), Refusal>,
) -> Result<bool, Refusal> {
    let Some(open) = pipe else { return Ok(false) };
    let mut ready = [PollFd::new(open.as_fd(), PollFlags::POLLIN)];
    if !matches!(poll(&mut ready, PollTimeout::ZERO), Ok(count) if count > 0) {
        return Ok(false);
    }
    match open.read(chunk) {
        Ok(0) | Err(_) => {
            *pipe = None;
            Ok(false)
        }
        Ok(count) => deliver(chunk[..count].to_vec()).map(|()| true),
    }
}

fn wait_for_output(stdout: Option<std::os::fd::BorrowedFd<'_>>, stderr: Option<std::os::fd::BorrowedFd<'_>>) {
    let mut ready: Vec<_> =
        stdout.into_iter().chain(stderr).map(|pipe| PollFd::new(pipe, PollFlags::POLLIN)).collect();
    match poll(&mut ready, TICK_MS) {
        Ok(_) | Err(Errno::EINTR) => {}
        // Can only be a lack of kernel memory; trying again later is all there is.
        Err(_) => thread::sleep(Duration::from_millis(u64::from(TICK_MS))),
    }
}

/// Feeds the process from the connection until `End`, then watches the connection: when the host
/// closes it while the process runs, the host is gone. This thread is never joined, because a pipe
/// that is never read may hold it.
fn feed(mut incoming: TcpStream, mut stdin: Option<File>, host_gone: Arc<AtomicBool>) {
    thread::spawn(move || {
        loop {
            match read_frame(&mut incoming) {
                Ok(Frame::Data(bytes)) => {
                    // A process need not read its input; the rest still has to leave the socket.
                    if stdin.as_mut().is_some_and(|pipe| pipe.write_all(&bytes).is_err()) {
                        stdin = None;
                    }
                }
                // Of a program that has ended meanwhile, or of one without a terminal: there is nothing to do.
                Ok(Frame::Resize(size)) => drop(stdin.as_ref().map(|terminal| resize(terminal, size))),
                // At a terminal that is a key, and comes as one.
                Ok(Frame::End) => stdin = None,
                Ok(_) | Err(_) => break host_gone.store(true, Ordering::Relaxed),
            }
        }
    });
}
