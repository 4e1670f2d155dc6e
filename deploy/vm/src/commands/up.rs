//! `cargo vm up`: a guest with a daemon that accepts connections, until Ctrl-C.

use std::io::{self, IsTerminal as _};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::daemon;
use kprobed_vm::progress;

use super::guest::{GuestArguments, post_mortem};

/// How often guest and daemon are looked after.
const LOOK: Duration = Duration::from_secs(5);

/// What the person wants.
enum Wish {
    /// Ctrl-C.
    End,
    /// Enter.
    StartAgain,
}

/// Run kprobed in a guest and print its address, until Ctrl-C
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm up                            kernel 6.12, any free port
  cargo vm up --kernel 6.1 --port 7000   another kernel, a fixed port
  cargo vm up --kernel ./bzImage --modules ./lib/modules/6.15.0

What clients add is kept on a disk for the next time; --fresh begins with an empty one. The guest goes on when its daemon ends.")]
pub(crate) struct Up {
    #[command(flatten)]
    guest: GuestArguments,
    /// Port on 127.0.0.1 [default: any free one]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

impl Up {
    pub(crate) fn run(self, cache: Cache) -> Result<()> {
        let guest = self.guest.start(cache, "up", self.port, &[])?;
        let (wish, wishes) = mpsc::channel();
        let end = wish.clone();
        ctrlc::set_handler(move || {
            // A second Ctrl-C comes while the first is being served: nothing more to do.
            end.send(Wish::End).ok();
        })?;
        let is_attended = io::stdin().is_terminal();
        if is_attended {
            thread::spawn(move || {
                io::stdin().lines().map_while(Result::ok).all(|_line| wish.send(Wish::StartAgain).is_ok())
            });
        }
        let address = guest.address;
        progress::result(format_args!("tcp://{address}"))?;
        let kprobectl = guest.programs.kprobectl.display();
        progress::note(format_args!(
            "kprobed runs on {}. Try:\n\n    {kprobectl} --server tcp://{address} doctor\n\nCtrl-C ends it.",
            guest.machine.release()
        ));
        let mut runs = true;
        loop {
            let wish = wishes.recv_timeout(LOOK);
            if matches!(wish, Ok(Wish::End) | Err(RecvTimeoutError::Disconnected)) {
                break;
            }
            if let Some(failure) = guest.machine.failure() {
                post_mortem(&guest.machine);
                return Err(failure.into());
            }
            if runs {
                if let Some(ended) = daemon::ended(&guest.machine, Duration::ZERO)? {
                    runs = false;
                    let again = if is_attended { "Enter starts kprobed again, " } else { "" };
                    progress::note(format_args!("{ended}\n\nThe guest goes on: {again}Ctrl-C ends it."));
                }
            } else if let Ok(Wish::StartAgain) = wish {
                match daemon::start(&guest.machine, daemon::PRODUCT_CONFIG) {
                    Ok(_as_before) => {
                        runs = true;
                        progress::note("kprobed runs again");
                    }
                    Err(error) => progress::note(format_args!("{error:#}")),
                }
            }
        }
        guest.finish()
    }
}
