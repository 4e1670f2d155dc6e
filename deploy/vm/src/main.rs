//! `kprobed-vm`, run as `cargo vm`: real kernels in QEMU with kprobed inside.

mod commands;

use std::process::ExitCode;

use clap::Parser as _;
use kprobed_vm::progress;

fn main() -> ExitCode {
    match commands::Arguments::parse().run() {
        Ok(code) => code,
        Err(error) => {
            progress::note(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
