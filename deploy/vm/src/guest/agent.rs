//! The agent in the guest: accepts connections, reads the one request of each, and answers it.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kprobed_vm::protocol::{self, Frame, Process, Status, read_frame, write_frame};

use crate::background::Background;
use crate::{power, run, say};

/// A request that failed in a way that the host should know.
#[derive(Debug)]
pub(crate) struct Refusal {
    errno: i32,
    message: String,
}

impl Refusal {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { errno: 0, message: message.into() }
    }

    pub(crate) fn io(what: impl AsRef<str>, error: &io::Error) -> Self {
        Self { errno: error.raw_os_error().unwrap_or(0), message: format!("{}: {error}", what.as_ref()) }
    }
}

/// Why a connection ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Tell the host.
    Refused(Refusal),
    /// The host is gone or does not speak the protocol: there is no receiver for an error.
    Lost,
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Serves until that is no longer possible, and returns why.
pub(crate) fn serve() -> String {
    let address = (Ipv4Addr::from(protocol::GUEST_ADDRESS), protocol::AGENT_PORT);
    let listener = match TcpListener::bind(address) {
        Ok(listener) => listener,
        Err(error) => return format!("agent cannot listen: {error}"),
    };
    let background = Arc::new(Background::default());
    say(protocol::LISTENING_LINE);
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let background = Arc::clone(&background);
                thread::spawn(move || connection(&stream, &background));
            }
            // A connection that went away before it was accepted says nothing about the next one.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return format!("agent cannot accept: {error}"),
        }
    }
}

/// Sends a frame; a failure means that the host is gone.
pub(crate) fn send(mut stream: &TcpStream, frame: &Frame) -> Result<(), Stop> {
    write_frame(&mut stream, frame).map_err(|_host_is_gone| Stop::Lost)
}

fn receive(mut stream: &TcpStream) -> Result<Frame, Stop> {
    read_frame(&mut stream).map_err(|_host_is_gone| Stop::Lost)
}

/// The command for a process with the environment that every guest process has.
pub(crate) fn command(process: &Process) -> Result<Command, Refusal> {
    let [program, arguments @ ..] = process.argv.as_slice() else {
        return Err(Refusal::new("no program is given"));
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin")
        .env("HOME", "/root")
        .envs(process.env.iter().map(|(name, value)| (name, value)))
        .current_dir(process.cwd.as_deref().unwrap_or("/root"))
        .stdin(Stdio::null());
    Ok(command)
}

fn connection(stream: &TcpStream, background: &Background) {
    let answered = hello(stream).and_then(|()| match receive(stream)? {
        Frame::Run { process, timeout_ms, terminal } => {
            let status = run::run(stream, &process, timeout_ms.map(Duration::from_millis), terminal)?;
            send(stream, &Frame::Exit(status))
        }
        Frame::Put { path, mode } => {
            put(stream, &path, mode)?;
            send(stream, &Frame::Done)
        }
        Frame::Get { path } => get(stream, &path),
        Frame::Spawn { name, process } => {
            background.spawn(&name, &process)?;
            send(stream, &Frame::Done)
        }
        Frame::Signal { name, signal } => {
            background.signal(&name, signal)?;
            send(stream, &Frame::Done)
        }
        Frame::Wait { name, timeout_ms } => {
            let status = wait(stream, background, &name, Duration::from_millis(timeout_ms))?;
            send(stream, &Frame::Exit(status))
        }
        Frame::PowerOff => Err(Refusal::new(power::off(background)).into()),
        _ => Err(Refusal::new("not a request").into()),
    });
    if let Err(Stop::Refused(Refusal { errno, message })) = answered {
        drop(send(stream, &Frame::Failed { errno, message }));
    }
    // Only this direction: what the host still sends is read (by `run`), since closing over unread
    // bytes would reset the connection and take the answer with it.
    drop(stream.shutdown(std::net::Shutdown::Write));
}

fn hello(stream: &TcpStream) -> Result<(), Stop> {
    // Answers are many small frames: waiting to fill packets would only delay them.
    drop(stream.set_nodelay(true));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_err(|error| Refusal::io("/proc/sys/kernel/osrelease", &error))?;
    send(stream, &Frame::Hello { version: protocol::VERSION, release: release.trim().to_owned() })
}

fn put(stream: &TcpStream, path: &str, mode: u32) -> Result<(), Stop> {
    let written = (|| {
        if let Some(directory) = Path::new(path).parent() {
            fs::create_dir_all(directory)?;
        }
        // A running program cannot be written to, but its name can be given to a new file.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        Ok(file)
    })();
    let mut file = written.map_err(|error| Refusal::io(path, &error));
    // Read to the end even after a failure, for the reason given in `connection`.
    loop {
        match receive(stream)? {
            Frame::Data(bytes) => {
                if let Ok(open) = &mut file
                    && let Err(error) = open.write_all(&bytes)
                {
                    file = Err(Refusal::io(path, &error));
                }
            }
            Frame::End => return Ok(file.map(drop)?),
            _ => return Err(Refusal::new("put: expected data").into()),
        }
    }
}

fn get(stream: &TcpStream, path: &str) -> Result<(), Stop> {
    let failed = |error| Refusal::io(path, &error);
    let mut file = fs::File::open(path).map_err(failed)?;
    let mut chunk = vec![0; protocol::CHUNK_BYTES];
    loop {
        match file.read(&mut chunk).map_err(failed)? {
            0 => return send(stream, &Frame::End),
            count => send(stream, &Frame::Data(chunk[..count].to_vec()))?,
        }
    }
}

fn wait(stream: &TcpStream, background: &Background, name: &str, timeout: Duration) -> Result<Status, Stop> {
    let begun = Instant::now();
    loop {
        let left = timeout.saturating_sub(begun.elapsed());
        if let Some(status) = background.wait(name, left.min(protocol::ALIVE_INTERVAL))? {
            return Ok(status);
        }
        if begun.elapsed() >= timeout {
            return Ok(Status::TimedOut);
        }
        send(stream, &Frame::Alive)?;
    }
}
