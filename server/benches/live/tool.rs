//! A tool of another project as a child process: starting it, measuring it, ending it.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::accounts;

/// Whether a program can be started at all.
pub(crate) fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// A program that runs.
#[derive(Debug)]
pub(crate) struct Tool {
    child: Child,
    name: String,
    log: PathBuf,
    /// What it and its children had used when the measurement began.
    before: Duration,
    peak_rss_kib: u64,
}

/// Processor time and memory of a program in a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) cpu: Duration,
    pub(crate) peak_rss_kib: u64,
}

impl Tool {
    /// Starts a program, on the same CPU as this thread. What it says goes to `log`.
    pub(crate) fn start(mut command: Command, log: PathBuf) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let file = File::create(&log)?;
        // A group of its own, so that nothing of it is left when it ends before its children.
        command.process_group(0).stdin(Stdio::null()).stderr(file);
        let child = command.spawn().with_context(|| name.clone())?;
        Ok(Self { child, name, log, before: Duration::ZERO, peak_rss_kib: 0 })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn output(&mut self) -> anyhow::Result<ChildStdout> {
        self.child.stdout.take().context("no output")
    }

    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until something is so.
    pub(crate) fn wait_until(&mut self, what: &str, mut is: impl FnMut() -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        while !is() {
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!("{} has ended ({status}): {}", self.name, last_lines(&self.said()));
            }
            ensure!(start.elapsed() < Duration::from_mins(1), "{}: no {what} after a minute", self.name);
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// From here on its work counts.
    pub(crate) fn measure(&mut self) {
        self.before = accounts::cpu_of_all(&accounts::family(self.pid()));
    }

    /// What it has used since then, while it lives.
    pub(crate) fn cost(&mut self) -> Cost {
        let family = accounts::family(self.pid());
        let rss = family.iter().map(|pid| accounts::peak_rss_kib(*pid)).sum();
        self.peak_rss_kib = self.peak_rss_kib.max(rss);
        let cpu = accounts::cpu_of_all(&family).saturating_sub(self.before);
        Cost { cpu, peak_rss_kib: self.peak_rss_kib }
    }

    /// Asks it to end, and waits until it has: what it has used, its end included. No other child
    /// may be waited for meanwhile.
    pub(crate) fn end(mut self, signal: Option<Signal>) -> anyhow::Result<Cost> {
        self.cost();
        if let Some(signal) = signal {
            kill(Pid::from_raw(self.pid().cast_signed()), signal)?;
        }
        let ended = accounts::cpu_of_ended_children()?;
        let start = Instant::now();
        // What it still holds is seen only while it lives.
        while self.child.try_wait()?.is_none() {
            let rss = accounts::peak_rss_kib(self.pid());
            self.peak_rss_kib = self.peak_rss_kib.max(rss);
            ensure!(start.elapsed() < Duration::from_mins(5), "{} does not end", self.name);
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = self.child.wait()?;
        // Programs differ in what they do with an interrupt: perf gives it to itself again when its
        // work is done.
        let is_ours = signal.is_some_and(|signal| status.signal() == Some(signal as i32));
        ensure!(is_ours || status.success(), "{}: {status}: {}", self.name, last_lines(&self.said()));
        let cpu = accounts::cpu_of_ended_children()?.saturating_sub(ended).saturating_sub(self.before);
        Ok(Cost { cpu, peak_rss_kib: self.peak_rss_kib })
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        // Children that it has left would keep the instance busy.
        let group = Pid::from_raw(self.pid().cast_signed());
        if killpg(group, Signal::SIGKILL).is_ok() {
            drop(self.child.wait());
        }
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines.get(lines.len().saturating_sub(3)..).unwrap_or_default().join("; ")
}

/// Counts lines that have a word in them, as they are printed.
#[derive(Debug)]
pub(crate) struct Lines {
    count: Arc<AtomicU64>,
    thread: JoinHandle<std::io::Result<Vec<String>>>,
}

impl Lines {
    /// Lines without any of the words are kept.
    pub(crate) fn count(mut output: ChildStdout, words: Vec<String>) -> Self {
        let count = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&count);
        let thread = std::thread::spawn(move || {
            let (mut buffer, mut rest, mut others) = (vec![0; 1 << 18], Vec::new(), Vec::new());
            loop {
                let length = output.read(&mut buffer)?;
                rest.extend_from_slice(&buffer[..length]);
                let end = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                let text = String::from_utf8_lossy(&rest[..end]);
                for line in text.lines() {
                    if words.iter().any(|word| line.contains(word.as_str())) {
                        counted.fetch_add(1, Ordering::Relaxed);
                    } else {
                        others.push(line.to_owned());
                    }
                }
                drop(text);
                rest.drain(..end);
                if length == 0 {
                    return Ok(others);
                }
            }
        });
        Self { count, thread }
    }

    pub(crate) fn so_far(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// How many they were, and the other lines, once the output has ended.
    pub(crate) fn all(self) -> anyhow::Result<(u64, Vec<String>)> {
        let others = self.thread.join().map_err(|_panic| anyhow::anyhow!("the counter has panicked"))??;
        Ok((self.count.load(Ordering::Relaxed), others))
    }
}

/// Waits until a count has reached what is expected, or no longer grows.
pub(crate) fn settle(
    expected: u64,
    mut count: impl FnMut() -> anyhow::Result<u64>,
) -> anyhow::Result<Instant> {
    let (mut last, mut since) = (count()?, Instant::now());
    while last < expected && since.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(5));
        let now = count()?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(since)
}
