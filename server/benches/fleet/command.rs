//! Running `kprobectl` as a child process, with its processor time and memory.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::resource::{Usage, UsageWho, getrusage};

use crate::inventory::{Fleet, Way};

/// How often a child is looked at while it runs.
const LOOK: Duration = Duration::from_millis(5);

/// Sockets by which a program that waits for signals wakes itself.
const OWN_SOCKETS: usize = 3;

/// The program, and what it needs to know.
pub(crate) struct Kprobectl {
    program: PathBuf,
    state: PathBuf,
    configs: [(Way, PathBuf); 2],
}

/// What a run took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Took {
    wall: Duration,
    cpu: Duration,
    peak_kib: u64,
    /// Most connections that were open at a time.
    pub(crate) connections: usize,
}

/// A run that is over.
pub(crate) struct Ran {
    pub(crate) output: String,
    pub(crate) messages: String,
    pub(crate) code: Option<i32>,
    pub(crate) took: Took,
}

impl Kprobectl {
    pub(crate) fn new(program: Option<PathBuf>, fleet: &Fleet) -> anyhow::Result<Self> {
        let program = match program {
            Some(program) => program,
            None => beside()?,
        };
        let state = fleet.directory().join("state");
        fs::create_dir_all(&state)?;
        let configs = [Way::Tls, Way::Unix].map(|way| (way, fleet.config(way)));
        Ok(Self { program, state, configs })
    }

    /// Runs it to its end, whatever that is.
    pub(crate) fn run(&self, way: Way, arguments: &[&str]) -> anyhow::Result<Ran> {
        let (_, config) = self.configs.iter().find(|(of, _)| *of == way).context("no configuration")?;
        let (cpu, begun) = (cpu_of_children()?, Instant::now());
        let mut child = Command::new(&self.program)
            .args(arguments)
            .env("KPROBECTL_CONFIG", config)
            .env("XDG_STATE_HOME", &self.state)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run `{}`", self.program.display()))?;
        let (Some(mut output), Some(mut messages)) = (child.stdout.take(), child.stderr.take()) else {
            bail!("the child has no pipes");
        };
        let process = PathBuf::from(format!("/proc/{}", child.id()));
        let (output, messages, status, seen) = std::thread::scope(|scope| {
            let output = scope.spawn(move || {
                let mut text = String::new();
                output.read_to_string(&mut text).map(|_bytes| text)
            });
            let messages = scope.spawn(move || {
                let mut text = String::new();
                messages.read_to_string(&mut text).map(|_bytes| text)
            });
            let mut seen = (0, 0);
            let status = loop {
                if let Some(status) = child.try_wait()? {
                    break status;
                }
                seen = (seen.0.max(sockets(&process)), seen.1.max(peak_kib(&process)));
                std::thread::sleep(LOOK);
            };
            let joined = |text: std::thread::ScopedJoinHandle<'_, std::io::Result<String>>| {
                text.join()
                    .map_err(|_panic| anyhow::anyhow!("a reader panicked"))?
                    .map_err(anyhow::Error::from)
            };
            anyhow::Ok((joined(output)?, joined(messages)?, status, seen))
        })?;
        let took = Took {
            wall: begun.elapsed(),
            cpu: cpu_of_children()?.saturating_sub(cpu),
            peak_kib: seen.1,
            connections: seen.0.saturating_sub(OWN_SOCKETS),
        };
        Ok(Ran { output, messages, code: status.code(), took })
    }
}

impl Took {
    pub(crate) fn print_head() {
        println!(
            "{:<58} {:>6} {:>9} {:>9} {:>9} {:>11}",
            "command", "hosts", "wall", "cpu", "memory", "connections"
        );
    }

    pub(crate) fn print(&self, what: &str, hosts: usize) {
        println!(
            "{what:<58} {hosts:>6} {:>7.2} s {:>7.2} s {:>5.1} MiB {:>11}",
            self.wall.as_secs_f64(),
            self.cpu.as_secs_f64(),
            self.peak_kib as f64 / 1024.0,
            self.connections,
        );
    }
}

/// Benchmarks are in a directory beside the programs of the same profile.
fn beside() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let directory = own.parent().and_then(Path::parent).context("this program has no directory")?;
    let program = directory.join("kprobectl");
    if !program.exists() {
        bail!(
            "there is no `{}`: build it first (`cargo build -p kprobectl --bin kprobectl`, with `--release` for `cargo bench`), \
             or name one with `--kprobectl`",
            program.display()
        );
    }
    Ok(program)
}

/// Processor time of user and system together.
pub(crate) fn cpu_time(usage: Usage) -> Duration {
    let micros = [usage.user_time(), usage.system_time()]
        .map(|time| time.tv_sec().unsigned_abs() * 1_000_000 + time.tv_usec().unsigned_abs());
    Duration::from_micros(micros.iter().sum())
}

/// That of all children that have ended.
fn cpu_of_children() -> anyhow::Result<Duration> {
    Ok(cpu_time(getrusage(UsageWho::RUSAGE_CHILDREN)?))
}

fn sockets(process: &Path) -> usize {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return 0 };
    let is_socket = |path: PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    descriptors.flatten().filter(|descriptor| is_socket(descriptor.path())).count()
}

fn peak_kib(process: &Path) -> u64 {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or_default()
}
