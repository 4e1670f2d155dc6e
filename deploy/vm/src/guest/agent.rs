//! The agent in the guest: accepts connections, reads the one request of each, and answers it.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kprobed_vm::protocol::{self, Frame, Process, Status, read_frame, write_frame};

use crate::background::Background;
use crate::setup::power_off;
use crate::{accept, run, say};

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

/// Serves until that is no longer possible, and returns why.
pub(crate) fn serve() -> String {
    let address = (Ipv4Addr::from(protocol::GUEST_ADDRESS), protocol::AGENT_PORT);
    let listener = match TcpListener::bind(address) {
        Ok(listener) => listener,
        Err(error) => return format!("agent cannot listen: {error}"),
    };
    let background = Background::default();
    say(protocol::LISTENING_LINE);
    let error = accept(&listener, move |stream| connection(stream, &background));
    format!("agent cannot accept: {error}")
}

/// Sends a frame. After a failure the host is gone, and nothing else reaches it either.
pub(crate) fn send(mut stream: &TcpStream, frame: &Frame) -> Result<(), Refusal> {
    write_frame(&mut stream, frame).map_err(|error| Refusal::io("host", &error))
}

fn receive(mut stream: &TcpStream) -> Result<Frame, Refusal> {
    read_frame(&mut stream).map_err(|error| Refusal::io("host", &error))
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
        Frame::PowerOff => Err(Refusal::new(power_off(background))),
        _ => Err(Refusal::new("not a request")),
    });
    if let Err(Refusal { errno, message }) = answered {
        drop(send(stream, &Frame::Failed { errno, message }));
    }
    // Only this direction: what the host still sends is read (by `run`), since closing over unread
    // bytes would reset the connection and take the answer with it.
    drop(stream.shutdown(std::net::Shutdown::Write));
}

fn hello(stream: &TcpStream) -> Result<(), Refusal> {
    // Answers are many small frames: waiting to fill packets would only delay them.
    drop(stream.set_nodelay(true));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_err(|error| Refusal::io("/proc/sys/kernel/osrelease", &error))?;
    send(stream, &Frame::Hello { version: protocol::VERSION, release: release.trim().to_owned() })
}

fn put(stream: &TcpStream, path: &str, mode: u32) -> Result<(), Refusal> {
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
            Frame::End => return file.map(drop),
            _ => return Err(Refusal::new("put: expected data")),
        }
    }
}

fn get(stream: &TcpStream, path: &str) -> Result<(), Refusal> {
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

fn wait(
    stream: &TcpStream,
    background: &Background,
    name: &str,
    timeout: Duration,
) -> Result<Status, Refusal> {
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
