//! The host of the benchmark: CPUs, and a tracefs with an instance and an event of the benchmark.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::mount::{MsFlags, mount};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// The CPU that makes the events.
pub(crate) const PRODUCER_CPU: usize = 0;

/// The CPU of everything that reads them, this program included.
pub(crate) const READER_CPU: usize = 1;

/// Keeps this thread, and all threads and processes that it starts from now on, on one CPU. Where
/// there is only one, nothing is to do.
pub(crate) fn pin(cpu: usize) -> anyhow::Result<()> {
    // Of the host: a process that was started by a pinned one has only the CPU of that one.
    if sysconf(SysconfVar::_NPROCESSORS_ONLN)?.is_none_or(|cpus| cpus <= 1) {
        return Ok(());
    }
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("cannot stay on CPU {cpu}"))
}

/// A mounted tracefs.
#[derive(Clone, Debug)]
pub(crate) struct Tracefs(PathBuf);

impl Tracefs {
    /// Finds it, or mounts it.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let usual = Path::new("/sys/kernel/tracing");
        for root in [usual, Path::new("/sys/kernel/debug/tracing")] {
            if root.join("trace_pipe").exists() {
                return Ok(Self(root.to_owned()));
            }
        }
        mount(Some("nodev"), usual, Some("tracefs"), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("no tracefs, and none can be mounted on {}", usual.display()))?;
        Ok(Self(usual.to_owned()))
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    pub(crate) fn has(&self, file: &str) -> bool {
        self.path(file).exists()
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    // Without truncation: that would delete every event of `kprobe_events`.
    let mut file =
        fs::OpenOptions::new().append(true).open(path).with_context(|| path.display().to_string())?;
    file.write_all(text.as_bytes()).with_context(|| format!("{text:?} to {}", path.display()))
}

/// An event of the benchmark's own; it is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct DynamicEvent {
    file: PathBuf,
    name: String,
}

/// Defines an event. One that an interrupted run has left gives way.
pub(crate) fn define(
    tracefs: &Tracefs,
    file: &str,
    name: &str,
    definition: &str,
) -> anyhow::Result<DynamicEvent> {
    let event = DynamicEvent { file: tracefs.path(file), name: name.to_owned() };
    if tracefs.has(&format!("events/{name}")) {
        event.remove()?;
    }
    write(&event.file, &format!("{definition}\n"))?;
    Ok(event)
}

impl DynamicEvent {
    fn remove(&self) -> anyhow::Result<()> {
        write(&self.file, &format!("-:{}\n", self.name))
    }
}

impl Drop for DynamicEvent {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("the event of the benchmark is left behind: {error:#}");
        }
    }
}

/// A tracing instance for one side; it is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Instance {
    root: PathBuf,
}

impl Instance {
    /// Makes one with so many KiB for each CPU. One that an interrupted run has left gives way.
    pub(crate) fn make(tracefs: &Tracefs, name: &str, buffer_kib: u64) -> anyhow::Result<Self> {
        let root = tracefs.path("instances").join(name);
        if root.exists() {
            fs::remove_dir(&root).with_context(|| format!("{} is in use", root.display()))?;
        }
        fs::create_dir(&root).with_context(|| root.display().to_string())?;
        let instance = Self { root };
        instance.write("buffer_size_kb", &buffer_kib.to_string())?;
        Ok(instance)
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    pub(crate) fn write(&self, file: &str, text: &str) -> anyhow::Result<()> {
        write(&self.path(file), text)
    }

    /// The sum of a number of `per_cpu/cpuN/stats` over all CPUs.
    pub(crate) fn stat(&self, name: &str) -> anyhow::Result<u64> {
        let mut sum = 0;
        for cpu in fs::read_dir(self.path("per_cpu"))? {
            let stats = fs::read_to_string(cpu?.path().join("stats"))?;
            let mut lines = stats.lines().filter_map(|line| line.split_once(": "));
            let value = lines.find(|(key, _)| *key == name).map(|(_, value)| value);
            sum += value.with_context(|| format!("no `{name}` in stats"))?.trim().parse::<u64>()?;
        }
        Ok(sum)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        match fs::remove_dir(&self.root) {
            // trace-cmd removes the instance that it has recorded in.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                eprintln!("{} is left behind: {error}", self.root.display());
            }
            _ => {}
        }
    }
}
