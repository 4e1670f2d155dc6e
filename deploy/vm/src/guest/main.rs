//! `kprobed-guest`: PID 1 of the guest, and the agent that it starts.
//!
//! As PID 1 it sets the guest up ([`setup`]) and from then on only reaps, so that the agent, a
//! child, can wait for its own children undisturbed. In a guest that has systemd, PID 1 becomes
//! systemd then. It is also a relay for ports that are open only on the guest's loopback: the daemon
//! listens there alone, as it should, and QEMU forwards to the guest's network address. Knows nothing
//! about kprobed: the host decides what runs in the guest.

mod agent;
mod background;
mod run;
mod setup;

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;

use nix::errno::Errno;
use nix::sys::wait::wait;
use nix::unistd::getpid;

/// The init of a guest that has one.
const SYSTEMD: &str = "/lib/systemd/systemd";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let error = match arguments.as_slice() {
        _ if getpid().as_raw() == 1 => init(),
        [_, command, from, to] if command == "relay" => relay(from, to),
        _ => agent::serve(),
    };
    // When PID 1 returns the kernel panics, which is what the host looks for.
    say(&format!("kprobed-guest: failed: {error}"));
    ExitCode::FAILURE
}

/// Writes one line on the guest's console, which the host records. Failures are ignored: there is no other place to
/// report them.
fn say(line: &str) {
    if let Ok(mut console) = OpenOptions::new().write(true).open("/dev/console") {
        // One write, so that lines of several processes do not mix.
        drop(console.write_all(format!("{line}\n").as_bytes()));
    }
}

/// Never returns unless something failed.
fn init() -> String {
    if let Err(error) = setup::prepare() {
        return error;
    }
    let agent = match Command::new("/init").spawn() {
        Ok(agent) => i32::try_from(agent.id()).ok(),
        Err(error) => return format!("cannot start the agent: {error}"),
    };
    if Path::new(SYSTEMD).exists() {
        // It reaps what it did not start, as every PID 1 does: the agent's own children are the agent's.
        return format!("cannot run {SYSTEMD}: {}", Command::new(SYSTEMD).exec());
    }
    loop {
        match wait() {
            Ok(status) if status.pid().map(nix::unistd::Pid::as_raw) == agent => {
                return format!("the agent ended: {status:?}");
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return format!("waiting for children: {error}"),
        }
    }
}

/// Serves each connection in a thread of its own until that is no longer possible, and returns why.
fn accept(listener: &TcpListener, connection: impl Fn(&TcpStream) + Clone + Send + 'static) -> io::Error {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let connection = connection.clone();
                thread::spawn(move || connection(&stream));
            }
            // A connection that went away before it was accepted says nothing about the next one.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return error,
        }
    }
}

/// `kprobed-guest relay FROM TO`: forwards TCP connections from the guest's network address to a port of its
/// loopback until that is no longer possible, and returns why.
fn relay(from: &str, to: &str) -> String {
    let listener = match TcpListener::bind(from) {
        Ok(listener) => listener,
        Err(error) => return format!("cannot listen on {from}: {error}"),
    };
    let to = to.to_owned();
    let error = accept(&listener, move |outside| {
        // No program listens there (yet): closing the connection reports that to the peer.
        let Ok(inside) = TcpStream::connect(&to) else { return };
        for stream in [outside, &inside] {
            drop(stream.set_nodelay(true));
        }
        thread::scope(|scope| {
            scope.spawn(|| carry(outside, &inside));
            carry(&inside, outside);
        });
    });
    format!("cannot accept: {error}")
}

/// One direction, to its end. An error is an end too: the sides notice by themselves.
fn carry(mut from: &TcpStream, mut to: &TcpStream) {
    drop(io::copy(&mut from, &mut to));
    drop(to.shutdown(Shutdown::Write));
}
