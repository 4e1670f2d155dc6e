//! `cargo vm up`: a guest with a daemon that accepts connections, until Ctrl-C.

use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::daemon;
use kprobed_vm::progress;
use kprobed_vm::protocol::Status;

use super::guest::{GuestArguments, post_mortem};

/// How often guest and daemon are looked after.
const LOOK: Duration = Duration::from_secs(5);

/// Run kprobed in a guest and print its address, until Ctrl-C
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm up                            kernel 6.12, any free port
  cargo vm up --kernel 6.1 --port 7000   another kernel, a fixed port
  cargo vm up --kernel ./bzImage --modules ./lib/modules/6.15.0

What clients add is kept on a disk for the next time; --fresh begins with an empty one.")]
pub(crate) struct Up {
    #[command(flatten)]
    guest: GuestArguments,
    /// Port on 127.0.0.1 [default: any free one]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

impl Up {
    pub(crate) fn run(self, cache: Cache) -> Result<ExitCode> {
        let guest = self.guest.start(cache, "up", self.port, &[])?;
        let (interrupt, interrupted) = mpsc::channel();
        ctrlc::set_handler(move || {
            // A second Ctrl-C comes while the first is being served: nothing more to do.
            interrupt.send(()).ok();
        })?;
        let address = guest.address;
        progress::result(format_args!("tcp://{address}"))?;
        let kprobectl = guest.programs.kprobectl.display();
        progress::note(format_args!(
            "kprobed runs on {}. Try:\n\n    {kprobectl} --server tcp://{address} doctor\n\nCtrl-C ends it.",
            guest.machine.release()
        ));
        loop {
            match interrupted.recv_timeout(LOOK) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(failure) = guest.machine.failure() {
                post_mortem(&guest.machine);
                return Err(failure.into());
            }
            match guest.machine.wait(daemon::NAME, Duration::ZERO)? {
                Status::TimedOut => {}
                status => bail!("kprobed ended ({status:?}):\n{}", daemon::log_tail(&guest.machine)),
            }
        }
        guest.finish()?;
        Ok(ExitCode::SUCCESS)
    }
}
