//! A guest machine: booting it, running commands in it, switching it off.
//!
//! Owns the QEMU process, the connection to the agent and the reading of the console. Never looks
//! into the initramfs, and knows nothing of kprobed.

mod accel;
mod agent;
mod command;
mod console;
mod qemu;
mod qmp;
mod snapshot;

use std::fs;
use std::io::{self, Cursor};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use accel::Accelerator;
use agent::{Conversation, Failure, SILENCE, unexpected};
pub use command::{Command, Output, PATIENCE, Stream, input};
use console::Console;
pub(crate) use console::tail;
pub use nix::sys::signal::Signal;
use qemu::Qemu;
use qmp::Qmp;
use serde_json::Value;
pub use snapshot::Snapshot;
pub(crate) use snapshot::copy_sparse;

use crate::disk::Disk;
use crate::protocol::{self, Frame, Status};

/// How long one attempt to be greeted by the agent takes at most.
const GREETING: Duration = Duration::from_millis(300);
/// How long the guest may take from the request to switch off to the end of QEMU.
const POWER_OFF: Duration = Duration::from_mins(1);
/// A guest that has panicked is about to take QEMU with it; this is how long that is waited for.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Why a machine could not be started or used.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The guest failed, or QEMU did: booting it again may help.
    #[error("{what}\n(serial log: {log})")]
    Failed {
        /// What shows it: a line of its kernel, the end of QEMU, its silence, or a lost connection.
        what: String,
        /// The whole serial log.
        log: PathBuf,
    },
    /// The agent carried out the request and failed, or refused it.
    #[error("in the guest: {message}")]
    Refused {
        /// The guest kernel's errno; 0 when the agent itself refused.
        errno: i32,
        /// What was tried and what went wrong.
        message: String,
    },
    /// The host or the request is at fault.
    #[error("{0}")]
    Other(String),
}

/// Settings of a machine.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// The kernel: a bzImage.
    pub image: PathBuf,
    /// Its initramfs, with `kprobed-guest` as `/init`.
    pub initramfs: PathBuf,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Virtual CPUs. More than one take turns when they are emulated.
    pub cpus: u32,
    /// CPUs that the guest has room for, the running ones among them; fewer than `cpus` are as
    /// many. Lists of CPUs that the kernel reads end there.
    pub cpus_possible: u32,
    /// Mounted on `/var/lib/kprobed`.
    pub disk: Option<Disk>,
    /// Loopback ports of the host and the guest ports that they lead to; host port 0 takes a free
    /// one.
    pub forwards: Vec<(u16, u16)>,
    /// Whether the guest reaches the host's network, and the host's loopback at
    /// [`protocol::HOST_ADDRESS`].
    pub reaches_host: bool,
    /// More for the kernel command line.
    pub cmdline: String,
    /// Where the console goes; QEMU's own messages go to a file with `.qemu` appended.
    pub serial_log: PathBuf,
    /// How long the guest may take until its agent answers.
    pub boot_deadline: Duration,
    /// A file with the state that it begins with, instead of booting.
    pub incoming: Option<PathBuf>,
}

/// A booted guest. Several threads may use it at once. Dropping it kills it.
#[derive(Debug)]
pub struct Machine {
    qemu: Qemu,
    qmp: Mutex<Qmp>,
    console: Console,
    qemu_messages: PathBuf,
    forwards: Vec<(u16, u16)>,
    agent: SocketAddr,
    release: String,
    /// Held so that no other program takes it.
    disk: Option<Disk>,
}

impl Machine {
    /// Boots and waits until the agent answers.
    pub fn boot(config: &MachineConfig) -> Result<Self, MachineError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match Self::boot_once(config) {
                // Another program took the port between its choice and its use.
                Err(MachineError::Failed { what, .. })
                    if attempts < 4 && what.contains("Could not set up host forwarding") => {}
                other => return other,
            }
        }
    }

    fn boot_once(config: &MachineConfig) -> Result<Self, MachineError> {
        // QEMU empties it, but only once it runs; what an earlier boot said must not be taken for this one's.
        let console = Console::create(config.serial_log.clone()).map_err(host("write the serial log"))?;
        let mut qemu_messages = config.serial_log.clone().into_os_string();
        qemu_messages.push(".qemu");
        let qemu_messages = PathBuf::from(qemu_messages);
        let mut ports = qemu::free_ports(config.forwards.len() + 1).map_err(host("find a free port"))?;
        let agent_port = ports.pop().unwrap_or_default();
        let mut forwards: Vec<(u16, u16)> = config
            .forwards
            .iter()
            .zip(ports)
            .map(|((host, guest), free)| (if *host == 0 { free } else { *host }, *guest))
            .collect();
        forwards.push((agent_port, protocol::AGENT_PORT));
        let (qemu, qmp) =
            Qemu::start(qemu::arguments(config, &forwards, Accelerator::of_this_host()), &qemu_messages)
                .map_err(host("start QEMU through setpriv"))?;
        let mut machine = Self {
            qemu,
            qmp: Mutex::new(qmp),
            console,
            qemu_messages,
            forwards,
            agent: SocketAddr::from((Ipv4Addr::LOCALHOST, agent_port)),
            release: String::new(),
            disk: config.disk.clone(),
        };
        if config.incoming.is_some()
            && let Err(error) = machine.resume()
        {
            machine.qemu.wait(LAST_WORDS);
            machine.check("")?;
            return Err(host("restore the guest")(error));
        }
        machine.release = machine.wait_for_agent(config)?;
        Ok(machine)
    }

    fn wait_for_agent(&self, config: &MachineConfig) -> Result<String, MachineError> {
        // The line on the console only says when it is worth asking; the greeting is the proof.
        // Should the line not be readable, asking at intervals works as well. A guest that is
        // restored has said it before.
        let ask_anyway = if config.incoming.is_some() { Duration::ZERO } else { Duration::from_secs(2) };
        let deadline = config.boot_deadline;
        let start = Instant::now();
        let mut asked = start;
        loop {
            let text = self.console.text();
            self.check(&text)?;
            if console::has_line(&text, protocol::LISTENING_LINE) || asked.elapsed() > ask_anyway {
                asked = Instant::now();
                match Conversation::open(self.agent, GREETING) {
                    Ok(conversation) => return Ok(conversation.release),
                    Err(Failure::Said(error)) => return Err(error),
                    Err(Failure::Connection(_not_yet)) => {}
                }
            }
            if start.elapsed() > deadline {
                return Err(self.silent_for(deadline));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs `command` to its end and collects its output.
    ///
    /// # Errors
    /// Also if it does not end within its limit; the error has what it has printed.
    pub fn exec(&self, command: &Command) -> Result<Output, MachineError> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let status = self.exec_streaming(command, |stream, bytes| match stream {
            Stream::Stdout => stdout.extend_from_slice(bytes),
            Stream::Stderr => stderr.extend_from_slice(bytes),
        })?;
        let output = Output { status, stdout, stderr };
        match (status, command.limit) {
            (Status::TimedOut, Some(after)) => Err(MachineError::Other(format!(
                "`{command}` did not end within {after:.0?} and was killed; until then: {output:?}"
            ))),
            _ => Ok(output),
        }
    }

    /// Runs `command` to its end, giving its output to `output` as it comes.
    pub fn exec_streaming(
        &self,
        command: &Command,
        output: impl FnMut(Stream, &[u8]),
    ) -> Result<Status, MachineError> {
        self.exec_with_input(command, input(Cursor::new(command.stdin.clone())), output)
    }

    /// As [`Machine::exec_streaming`], with `input` instead of the command's own, taken while it runs:
    /// [`Frame::Data`] and [`Frame::Resize`]. The end of the command does not wait for the end of `input`.
    pub fn exec_with_input(
        &self,
        command: &Command,
        input: impl Iterator<Item = Frame> + Send + 'static,
        mut output: impl FnMut(Stream, &[u8]),
    ) -> Result<Status, MachineError> {
        self.converse(&request(command), |conversation| {
            conversation.with_input(input, |conversation| conversation.outcome(&mut output))
        })
    }

    /// Writes a file, replacing what is there and creating its directories. `mode` are its
    /// permission bits.
    pub fn put(&self, path: &str, mode: u32, bytes: &[u8]) -> Result<(), MachineError> {
        let request = Frame::Put { path: path.to_owned(), mode };
        let bytes = input(Cursor::new(bytes.to_vec()));
        self.converse(&request, |conversation| conversation.with_input(bytes, Conversation::done))
    }

    /// Reads a file.
    pub fn get(&self, path: &str) -> Result<Vec<u8>, MachineError> {
        self.converse(&Frame::Get { path: path.to_owned() }, |conversation| {
            let mut bytes = Vec::new();
            loop {
                match conversation.next()? {
                    Frame::Data(chunk) => bytes.extend_from_slice(&chunk),
                    Frame::End => return Ok(bytes),
                    _ => return Err(unexpected("no file content")),
                }
            }
        })
    }

    /// Starts `command` in the background; its output is appended to `/run/log/NAME.log`. Its
    /// standard input is empty and it has no limit. An error when a process of that name
    /// runs.
    pub fn spawn(&self, name: &str, command: &Command) -> Result<(), MachineError> {
        let request = Frame::Spawn { name: name.to_owned(), process: command.process.clone() };
        self.converse(&request, Conversation::done)
    }

    /// Sends a signal to a background process.
    ///
    /// # Errors
    /// [`MachineError::Refused`] with ESRCH if no process of that name runs.
    pub fn signal(&self, name: &str, signal: Signal) -> Result<(), MachineError> {
        let request = Frame::Signal { name: name.to_owned(), signal: signal as i32 };
        self.converse(&request, Conversation::done)
    }

    /// Waits until a background process has ended, for at most `timeout`: then the status is
    /// [`Status::TimedOut`], and the process goes on.
    pub fn wait(&self, name: &str, timeout: Duration) -> Result<Status, MachineError> {
        let request = Frame::Wait { name: name.to_owned(), timeout_ms: milliseconds(timeout) };
        self.converse(&request, Conversation::status)
    }

    /// Ends every process with SIGTERM, then SIGKILL, unmounts the disk, switches off, and proves
    /// that it went that way.
    pub fn power_off(self) -> Result<(), MachineError> {
        let mut conversation = self.conversation()?;
        conversation.send(&Frame::PowerOff).map_err(|failure| self.explain(failure))?;
        // Only a failure is answered; otherwise the connection ends with the guest.
        if let Err(Failure::Said(error)) = conversation.next() {
            return Err(error);
        }
        let Some(status) = self.qemu.wait(POWER_OFF) else { return Err(self.silent_for(POWER_OFF)) };
        if status.success() && console::has_line(&self.console.text(), protocol::POWER_OFF_LINE) {
            return Ok(());
        }
        Err(self.failed(format!("the guest did not switch off cleanly ({status})")))
    }

    /// Kills the guest where it stands, as a power cut would. What the disk acknowledged to the
    /// guest is there afterwards.
    pub fn power_cut(self) {
        self.kill();
    }

    /// As [`Machine::power_cut`], while others may use it: what they wait for fails.
    pub fn kill(&self) {
        self.qemu.kill();
    }

    /// The first line on the console so far that reports a panic, oops, bug, warning, lock-up or
    /// stall.
    pub fn console_problem(&self) -> Option<String> {
        self.console_problems().into_iter().next()
    }

    /// All such lines.
    pub fn console_problems(&self) -> Vec<String> {
        console::problems(&self.console.text()).map(str::to_owned).collect()
    }

    /// Why the guest has ended, or should be abandoned, if so: QEMU has ended, or its kernel has
    /// failed.
    pub fn failure(&self) -> Option<MachineError> {
        self.check(&self.console.text()).err()
    }

    /// The last `lines` lines on the console.
    pub fn console_tail(&self, lines: usize) -> String {
        tail(&self.console.text(), lines)
    }

    /// Where the host reaches a guest port that is forwarded.
    pub fn address(&self, guest_port: u16) -> Option<SocketAddr> {
        let (host, _) = self.forwards.iter().find(|(_, guest)| *guest == guest_port)?;
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, *host)))
    }

    /// `uname -r` of the guest.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// The file that the console goes to.
    pub fn serial_log(&self) -> &Path {
        self.console.path()
    }

    /// Process id of QEMU.
    pub fn qemu_pid(&self) -> u32 {
        self.qemu.pid()
    }

    fn converse<T>(
        &self,
        request: &Frame,
        answer: impl FnOnce(&mut Conversation) -> Result<T, Failure>,
    ) -> Result<T, MachineError> {
        let mut conversation = self.conversation()?;
        conversation
            .send(request)
            .and_then(|()| answer(&mut conversation))
            .map_err(|failure| self.explain(failure))
    }

    fn conversation(&self) -> Result<Conversation, MachineError> {
        Conversation::open(self.agent, SILENCE).map_err(|failure| self.explain(failure))
    }

    /// Asks QEMU itself.
    fn qmp(&self, command: &str, arguments: &Value) -> io::Result<Value> {
        self.qmp.lock().unwrap_or_else(PoisonError::into_inner).command(command, arguments)
    }

    /// A failed request may be the first sign that the guest has failed.
    fn explain(&self, failure: Failure) -> MachineError {
        let source = match failure {
            Failure::Said(error) => return error,
            Failure::Connection(source) => source,
        };
        let is_silence = matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        if !is_silence {
            self.qemu.wait(LAST_WORDS);
        }
        self.failure().unwrap_or_else(|| {
            if is_silence {
                return self.silent_for(SILENCE);
            }
            self.failed(format!("lost the connection to the guest: {source}"))
        })
    }

    /// An error when QEMU has ended, or the console tells of a failure that the guest does not
    /// survive.
    fn check(&self, console: &str) -> Result<(), MachineError> {
        let status = self.qemu.status();
        let line = match status {
            // It may have written its last words after `console` was read.
            Some(_) => console::failure(&self.console.text()),
            None => console::failure(console),
        };
        let what = match (line, status) {
            (Some(line), _) => format!("the guest kernel failed: {line}"),
            (None, Some(status)) => {
                let said = fs::read_to_string(&self.qemu_messages).unwrap_or_default();
                let said = said.trim().lines().fold(String::new(), |shown, line| shown + "\n  " + line);
                format!("QEMU ended unexpectedly ({status}){said}")
            }
            (None, None) => return Ok(()),
        };
        Err(self.failed(what))
    }

    fn silent_for(&self, time: Duration) -> MachineError {
        self.failed(format!("the guest did not answer for {time:.1?}"))
    }

    fn failed(&self, what: String) -> MachineError {
        MachineError::Failed { what, log: self.serial_log().to_owned() }
    }
}

fn request(command: &Command) -> Frame {
    Frame::Run {
        process: command.process.clone(),
        timeout_ms: command.limit.map(milliseconds),
        terminal: command.terminal,
    }
}

fn host(what: &str) -> impl FnOnce(io::Error) -> MachineError {
    let what = what.to_owned();
    move |source| MachineError::Other(format!("{what}: {source}"))
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
