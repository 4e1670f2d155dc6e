//! `cargo vm exec`: one command in a guest in which the daemon runs.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::initramfs::GuestFile;
use kprobed_vm::machine::{self, Command, MachineError, Stream};
use kprobed_vm::progress;
use kprobed_vm::protocol::Status;
use nix::errno::Errno;

use super::guest::{GuestArguments, post_mortem};

/// Run a command in a guest, with kprobed running and kprobectl in the PATH
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm exec -- kprobectl doctor
  cargo vm exec --kernel 6.1 -- uname -r
  cargo vm exec -- sh < script
  cargo vm exec --copy ./workload -- sh -c './workload & kprobectl list'
  cargo vm exec --copy ./rules.toml:/etc/rules.toml -- cat /etc/rules.toml

Standard input, unless it is a terminal, and the command's output are passed through (`cargo vm shell` is for a terminal). Its
exit status is this one's: 126 or 127 when it cannot be run, 128 + N when signal N ended it.")]
pub(crate) struct Exec {
    #[command(flatten)]
    guest: GuestArguments,
    /// Copy a file into the working directory, or to a path of its own; programs bring their
    /// libraries
    #[arg(long = "copy", value_name = "FILE[:/PATH]")]
    copies: Vec<String>,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) fn run(self, cache: Cache) -> Result<ExitCode> {
        let copies = self.copies.iter().map(|copy| guest_file(copy)).collect::<Result<Vec<_>>>()?;
        let (program, arguments) = self.command.split_first().context("no command is given")?;
        let guest = self.guest.start(cache, "exec", 0, &copies)?;
        let command = Command::new(program).args(arguments).unlimited();
        let mut delivered = Ok(());
        let stdin = io::stdin();
        let input = (!stdin.is_terminal()).then(|| machine::input(stdin));
        let ran = guest.machine.exec_with_input(&command, input.into_iter().flatten(), |stream, bytes| {
            pass_on(stream, bytes, &mut delivered);
        });
        let code = match ran {
            Ok(Status::Signaled(signal)) => {
                progress::note(format_args!("{program} was ended by signal {signal}"));
                Status::Signaled(signal).shell_code()
            }
            Ok(status) => status.shell_code(),
            Err(MachineError::Refused { errno, message }) => {
                progress::note(format_args!("cannot run {message}"));
                match Errno::from_raw(errno) {
                    Errno::ENOENT => 127,
                    Errno::EACCES => 126,
                    _ => 125,
                }
            }
            Err(error) => {
                post_mortem(&guest.machine);
                return Err(error.into());
            }
        };
        guest.finish()?;
        delivered.context("passing the output on")?;
        Ok(ExitCode::from(code))
    }
}

/// Passes on what a command writes. It continues when its output is no longer read: the first failure is kept.
pub(super) fn pass_on(stream: Stream, bytes: &[u8], delivered: &mut io::Result<()>) {
    let written = match stream {
        Stream::Stdout => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(bytes).and_then(|()| stdout.flush())
        }
        Stream::Stderr => io::stderr().lock().write_all(bytes),
    };
    if delivered.is_ok() {
        *delivered = written;
    }
}

/// `FILE` goes to its base name in `/root`, `FILE:/PATH` to its path.
fn guest_file(copy: &str) -> Result<GuestFile> {
    if let Some((host, guest)) = copy.split_once(":/").filter(|(host, _)| !host.is_empty()) {
        return Ok(GuestFile { host: PathBuf::from(host), guest: format!("/{guest}") });
    }
    let host = Path::new(copy);
    let name = host.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("--copy {copy}: not a file"))?;
    Ok(GuestFile { host: host.to_owned(), guest: format!("/root/{name}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_a_place_in_the_guest() {
        let places = |copy| guest_file(copy).map(|file| (file.host.display().to_string(), file.guest));
        assert_eq!(places("./a/b").unwrap(), ("./a/b".to_owned(), "/root/b".to_owned()));
        assert_eq!(places("b:/etc/c").unwrap(), ("b".to_owned(), "/etc/c".to_owned()));
        assert!(places("..").is_err());
    }
}
