//! `cargo vm shell`: a person's shell in a guest in which the daemon runs.

use std::env;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::daemon;
use kprobed_vm::machine::{self, Command};
use kprobed_vm::progress;
use kprobed_vm::protocol::{Frame, Size};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::exec::pass_on;
use super::guest::{GuestArguments, post_mortem};

/// Open a shell in a guest, with kprobed running, and kprobectl and a workload in the PATH
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm shell
  cargo vm shell --kernel 6.1

Ctrl-D ends the shell and the guest. What is in /var/lib/kprobed is kept on a disk for the next time; --fresh begins
with an empty one.")]
pub(crate) struct Shell {
    #[command(flatten)]
    guest: GuestArguments,
}

impl Shell {
    pub(crate) fn run(self, cache: Cache) -> Result<ExitCode> {
        ensure!(
            io::stdin().is_terminal() && io::stdout().is_terminal(),
            "a shell needs a terminal; `cargo vm exec -- sh < script` runs a script"
        );
        let guest = self.guest.start(cache, "shell", 0, &[])?;
        progress::note(greeting(guest.machine.release()));
        let mut command = interactive(size()?);
        if let Ok(terminal) = env::var("TERM") {
            command = command.env("TERM", terminal);
        }
        let raw = Raw::enter()?;
        let mut shown = Ok(());
        let ran = guest.machine.exec_with_input(&command, typed(), |stream, bytes| {
            pass_on(stream, bytes, &mut shown);
        });
        drop(raw);
        let status = ran.inspect_err(|_| post_mortem(&guest.machine))?;
        guest.finish()?;
        shown.context("showing what the guest writes")?;
        Ok(ExitCode::from(status.shell_code()))
    }
}

/// A shell on a terminal, for as long as a person likes.
fn interactive(size: Size) -> Command {
    Command::new("sh").env("PS1", "\\h:\\w# ").terminal(size).unlimited()
}

/// Commands to try.
fn greeting(release: &str) -> String {
    format!(
        "a shell on {release}. kprobed runs with its own defaults. Try:

    kprobectl doctor
    kprobectl trace 'p do_sys_openat2 filename:ustring' -- workload open /etc/passwd 0 0 3
    kprobectl add 'p:open do_sys_openat2 filename:ustring'; kill -9 $(pidof kprobed); cat {trace}
    kprobed --config {config} >> {log} 2>&1 &          # starts it again: its probes are back

Ctrl-D ends the shell and the guest.
",
        trace = "/sys/kernel/tracing/kprobe_events",
        config = daemon::CONFIG_PATH,
        log = daemon::LOG_PATH,
    )
}

/// The size of this terminal.
fn size() -> Result<Size> {
    let size = tcgetwinsize(io::stdout()).context("the size of the terminal")?;
    Ok(Size { rows: size.ws_row, columns: size.ws_col })
}

/// What is typed, and before it the size of the terminal when that has changed.
fn typed() -> impl Iterator<Item = Frame> {
    let mut last = size().ok();
    machine::input(io::stdin()).flat_map(move |typed| {
        let now = size().ok().filter(|now| last != Some(*now));
        last = now.or(last);
        now.map(Frame::Resize).into_iter().chain([typed])
    })
}

/// The terminal while each key goes to the guest as it is.
struct Raw {
    before: Termios,
}

impl Raw {
    fn enter() -> Result<Self> {
        let before = tcgetattr(io::stdin()).context("the modes of the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).context("setting the modes of the terminal")?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        tcsetattr(io::stdin(), OptionalActions::Now, &self.before).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_does_not_end_by_itself() {
        let command = format!("{:?}", interactive(Size { rows: 24, columns: 80 }));
        assert!(command.contains("limit: None"), "{command}");
    }
}
