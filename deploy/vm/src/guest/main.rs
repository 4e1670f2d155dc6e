//! `kprobed-guest`: PID 1 of the guest, and the agent that it starts.
//!
//! As PID 1 it sets the guest up ([`setup`]) and from then on only reaps, so that the agent, a
//! child, can wait for its own children undisturbed. In a guest that has systemd, PID 1 becomes
//! systemd then. It is also a relay for ports that are open only on the guest's loopback
//! ([`relay`]). Knows nothing about kprobed: the host decides what runs in the guest.

mod agent;
mod background;
mod power;
mod relay;
mod run;
mod setup;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use nix::errno::Errno;
use nix::sys::wait::wait;
use nix::unistd::getpid;

/// The init of a guest that has one.
const SYSTEMD: &str = "/lib/systemd/systemd";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let error = match arguments.as_slice() {
        _ if getpid().as_raw() == 1 => init(),
        [_, command, from, to] if command == "relay" => relay::serve(from, to),
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
