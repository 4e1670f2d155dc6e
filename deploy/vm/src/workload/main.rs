//! `kprobed-workload`: system calls with known arguments, a known number of times.
//!
//! Runs in the guest, where it is called `workload`. Tests compare what probes record with what it
//! prints.

mod define;
mod faults;
mod files;
#[expect(unreachable_pub, reason = "the kernel in memory, which answers the same script, shares the file")]
#[path = "../../../../server/fixtures/fake_kernel/src/script.rs"]
mod script;
mod sigframe;
mod storm;

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, Seek as _, SeekFrom, Write as _};
use std::num::ParseIntError;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use clap::{Parser, Subcommand};
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, getpgid, getppid, getsid};

/// Makes system calls with known arguments, a known number of times.
#[derive(Debug, Parser)]
struct Arguments {
    /// Wait for a line on standard input before the first call
    #[arg(long, global = true)]
    wait: bool,
    #[command(subcommand)]
    call: Call,
}

#[derive(Debug, Subcommand)]
enum Call {
    /// getppid(2)
    Getppid {
        /// How often.
        count: u64,
    },
    /// getpgid(2) of 1, 2, 3 and so on, whether there are such processes or not
    Number {
        /// How often.
        count: i32,
    },
    /// getsid(2) of FIRST, FIRST + 1 and so on, which are numbers and no processes that matter;
    /// prints the number after the last one
    Numbers {
        /// The first number.
        first: i32,
        /// How many.
        count: i32,
        /// End before that when this file exists.
        #[arg(long)]
        until: Option<PathBuf>,
        /// Microseconds to sleep after each call.
        #[arg(long, default_value_t = 0)]
        pause_us: u64,
    },
    /// openat(2) relative to the working directory; prints the descriptors, or negative errnos
    Open {
        /// What to open.
        path: PathBuf,
        /// Flags, as a number.
        flags: i32,
        /// Mode, as a number.
        mode: u32,
        /// How often.
        count: u64,
    },
    /// Defines, enables, disables and deletes a probe for each line of a file, a place with its
    /// arguments; prints the seconds of each
    Cycle {
        /// Where tracefs is mounted.
        tracefs: PathBuf,
        /// Places.
        places: PathBuf,
    },
    /// Writes each line of a file to `kprobe_events`; prints what the kernel says to it: errno,
    /// caret, message. What it takes is deleted at once
    Define {
        /// `kprobe_events`.
        events: PathBuf,
        /// Definitions.
        lines: PathBuf,
    },
    /// Follows a process and makes one fault at a step that changes tracefs or the daemon's
    /// database; prints the steps
    Faults {
        /// The process.
        process: i32,
        /// What happens.
        fault: faults::Fault,
        /// At which step; 0 for none.
        at: u64,
    },
    /// Carries out a script of changes of tracefs; prints what each step was answered
    Files {
        /// Where tracefs is mounted.
        tracefs: PathBuf,
        /// The script.
        script: PathBuf,
    },
    /// lseek(2) from where the file is; prints nothing
    Seek {
        /// What to open for writing.
        path: PathBuf,
        /// How far, in bytes.
        #[arg(allow_negative_numbers = true)]
        distance: i64,
    },
    /// getpgid(2) of itself; prints the numbers that it returns
    Pgid {
        /// How often.
        count: u64,
    },
    /// Returns from a signal with a floating-point state that the CPU refuses; prints how that ended
    Sigframe,
    /// Starts /bin/true; prints the process ids
    Spawn {
        /// How often.
        count: u64,
    },
    /// getppid(2) for some time; prints for each 2 ms the calls a second, and those a second of its
    /// own processor time
    Storm {
        /// How long, in milliseconds.
        millis: u64,
        /// At most so many calls a second; 0: as often as possible.
        #[arg(long, default_value_t = 0)]
        per_second: u64,
    },
    /// One pwrite(2) from memory of known content; prints nothing
    Write {
        /// What to open for writing.
        path: PathBuf,
        /// Where in the file, in bytes.
        offset: u64,
        /// The content: 64-bit words as hexadecimal digits.
        #[arg(required = true, value_parser = word)]
        words: Vec<u64>,
    },
}

/// A word from its hexadecimal digits.
fn word(digits: &str) -> Result<u64, ParseIntError> {
    u64::from_str_radix(digits, 16)
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "workload: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    if arguments.wait {
        io::stdin().lock().read_line(&mut String::new())?;
    }
    let mut stdout = io::stdout().lock();
    match &arguments.call {
        Call::Getppid { count } => {
            for _ in 0..*count {
                getppid();
            }
        }
        Call::Number { count } => {
            for number in 1..=*count {
                // Most of them do not exist.
                let _no_group: Result<Pid, _> = getpgid(Some(Pid::from_raw(number)));
            }
        }
        Call::Numbers { first, count, until, pause_us } => {
            writeln!(stdout, "{}", numbers(*first, *count, until.as_deref(), *pause_us))?;
        }
        Call::Open { path, flags, mode, count } => {
            for _ in 0..*count {
                let opened =
                    openat(AT_FDCWD, path, OFlag::from_bits_retain(*flags), Mode::from_bits_retain(*mode));
                let number = match opened.map(File::from) {
                    Ok(file) => std::os::fd::AsRawFd::as_raw_fd(&file),
                    Err(errno) => -(errno as i32),
                };
                writeln!(stdout, "{number}")?;
            }
        }
        Call::Cycle { tracefs, places } => define::cycle(tracefs, places, &mut stdout)?,
        Call::Define { events, lines } => define::run(events, lines, &mut stdout)?,
        Call::Faults { process, fault, at } => faults::run(*process, *fault, *at, &mut stdout)?,
        Call::Files { tracefs, script } => files::run(tracefs, script, &mut stdout)?,
        Call::Pgid { count } => {
            for _ in 0..*count {
                writeln!(stdout, "{}", getpgid(None)?)?;
            }
        }
        Call::Seek { path, distance } => {
            OpenOptions::new().write(true).open(path)?.seek(SeekFrom::Current(*distance))?;
        }
        Call::Sigframe => sigframe::run(&mut stdout)?,
        Call::Spawn { count } => {
            for _ in 0..*count {
                let mut child = Command::new("/bin/true").stdin(Stdio::null()).spawn()?;
                writeln!(stdout, "{}", child.id())?;
                child.wait()?;
            }
        }
        Call::Storm { millis, per_second } => storm::run(*millis, *per_second, &mut stdout)?,
        Call::Write { path, offset, words } => {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            // One call, whatever part of it the file takes.
            let written = OpenOptions::new().write(true).open(path)?.write_at(&bytes, *offset)?;
            if written != bytes.len() {
                return Err(io::Error::other(format!("{written} of {} bytes are written", bytes.len())));
            }
        }
    }
    Ok(())
}

/// Calls between two looks for the file that ends them.
const LOOK_EVERY: i32 = 1024;

fn numbers(first: i32, count: i32, until: Option<&Path>, pause_us: u64) -> i32 {
    let end = first.saturating_add(count);
    for number in first..end {
        let is_time_to_look = pause_us > 0 || (number - first) % LOOK_EVERY == 0;
        if is_time_to_look && until.is_some_and(Path::exists) {
            return number;
        }
        // Most numbers are not a process; only the call matters, not its result.
        getsid(Some(Pid::from_raw(number))).ok();
        if pause_us > 0 {
            thread::sleep(Duration::from_micros(pause_us));
        }
    }
    end
}
