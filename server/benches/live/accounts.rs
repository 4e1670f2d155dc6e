//! Processor time and context switches of processes and threads, from procfs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// What a thread has used so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// Processor time, user and system. To the nanosecond (`schedstat`).
    pub(crate) cpu: Duration,
    /// Times that it was taken from a CPU, because it slept or was made to.
    pub(crate) switches: u64,
}

/// What the threads of a process have used, by kind of thread: their names without numbers.
pub(crate) type Threads = BTreeMap<String, Used>;

/// All threads of a process that live.
pub(crate) fn threads(pid: u32) -> anyhow::Result<Threads> {
    let mut all = Threads::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        // A thread may have ended since.
        let (Ok(comm), Ok(cpu)) = (fs::read_to_string(task.join("comm")), cpu_of(&task)) else { continue };
        let status = fs::read_to_string(task.join("status")).unwrap_or_default();
        let kind = comm.trim_end().trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').to_owned();
        let used = all.entry(kind).or_default();
        used.cpu += cpu;
        used.switches += ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"]
            .iter()
            .filter_map(|name| number(&status, name))
            .sum::<u64>();
    }
    Ok(all)
}

/// What was used between two moments.
pub(crate) fn since(before: &Threads, after: &Threads) -> Threads {
    let difference = |(kind, after): (&String, &Used)| {
        let before = before.get(kind).cloned().unwrap_or_default();
        let cpu = after.cpu.saturating_sub(before.cpu);
        (kind.clone(), Used { cpu, switches: after.switches.saturating_sub(before.switches) })
    };
    after.iter().map(difference).collect()
}

/// Processor time of the thread that asks.
pub(crate) fn own_cpu() -> anyhow::Result<Duration> {
    cpu_of(Path::new("/proc/thread-self"))
}

fn cpu_of(task: &Path) -> anyhow::Result<Duration> {
    let schedstat = fs::read_to_string(task.join("schedstat"))?;
    let nanos = schedstat.split(' ').next().context("schedstat")?.parse()?;
    Ok(Duration::from_nanos(nanos))
}

/// A number of a `status` file.
fn number(status: &str, name: &str) -> Option<u64> {
    let (_, value) = status.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| *key == name)?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

/// The most memory that a process had at any time, in KiB.
pub(crate) fn peak_rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    number(&status, "VmHWM").unwrap_or_default()
}

/// A process and all its descendants.
pub(crate) fn family(pid: u32) -> Vec<u32> {
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before it can hold anything, parentheses too.
        stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let all: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(all.iter().filter(|(_, its)| *its == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    family
}

/// Processor time of some processes.
pub(crate) fn cpu_of_all(pids: &[u32]) -> Duration {
    let threads = pids.iter().filter_map(|pid| threads(*pid).ok());
    threads.flat_map(Threads::into_values).map(|used| used.cpu).sum()
}

/// Processor time of all children that have ended and were waited for, and of theirs.
pub(crate) fn cpu_of_ended_children() -> anyhow::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = [usage.user_time(), usage.system_time()].map(|time| time.num_microseconds());
    Ok(Duration::from_micros(micros.iter().sum::<i64>().unsigned_abs()))
}
