//! A tracing instance (`instances/NAME`): ring buffers, clock, and the switches and filters of its
//! events.
//!
//! Owns every file below the directory of the instance. Never changes the definition of an event,
//! which is the host's.
//!
//! Disabling an event does not wait for handlers that run. Kernels up to 6.12 wait when the filter
//! of an event is removed, for handlers of system calls too
//! (kernel/trace/trace_events_filter.c:apply_event_filter, tracepoint_synchronize_unregister).
//! Newer ones free the filter later, without waiting (6.18: 17 us). So the daemon does both: it
//! removes a filter, and asks for a grace period.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::thread::{MembarrierCommand, membarrier};

use super::instance_form::{clock_in_force, size_kib};
use super::{ControlFiles, KernelMessage, Refusal, Tracefs, TracefsError, control_file};
use crate::kernel::threads_of_this_process;
use kprobed_lang::model::ProbeName;

/// A filter that every event takes: all have the field
/// (kernel/trace/trace_events.c:trace_define_common_fields).
const ANY_FILTER: &str = "common_pid == 0";

/// A filter that every event passes.
const ALL_FILTER: &str = "common_pid >= 0";

/// A tracing instance (`instances/NAME`). The definitions of events are the host's; enabling,
/// filters and buffers are its own.
#[derive(Clone, Debug)]
pub struct Instance {
    pub(super) files: Arc<dyn ControlFiles>,
    pub(super) root: PathBuf,
}

impl Instance {
    /// The instance of that name, whether it exists or not.
    pub(super) fn named(tracefs: &Tracefs, name: &str) -> Self {
        Self { files: Arc::clone(&tracefs.files), root: tracefs.root().join("instances").join(name) }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.root.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default()
    }

    /// The clock in force, which `trace_clock` shows in brackets.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn clock(&self) -> Result<String, TracefsError> {
        let text = self.files.read(&self.root.join("trace_clock"))?;
        Ok(clock_in_force(&text).to_owned())
    }

    /// Size of the ring buffer of each CPU in KiB. 0 when CPUs differ. A buffer that was never used
    /// is not allocated yet and shows `SMALL (expanded: SIZE)`: what counts is the size that it
    /// will have.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn buffer_kib(&self) -> Result<u64, TracefsError> {
        let text = self.files.read_trimmed(&self.root.join("buffer_size_kb"))?;
        Ok(size_kib(&text))
    }

    /// Layout of a page: the `events/header_page` of this instance, whose sub-buffers can have a
    /// size of their own (since 6.8).
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn header_page(&self, tracefs: &Tracefs) -> Result<String, TracefsError> {
        let own = self.root.join("events/header_page");
        // Instances of older kernels do not have the file.
        if self.files.exists(&own) {
            self.files.read(&own)
        } else {
            self.files.read(&tracefs.root().join("events/header_page"))
        }
    }

    /// Lets events into the buffers, or keeps them out. Hits are counted either way.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn set_recording(&self, on: bool) -> Result<(), TracefsError> {
        self.files.write(&self.root.join("tracing_on"), if on { "1" } else { "0" })
    }

    /// Whether events are let into the buffers.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn is_recording(&self) -> Result<bool, TracefsError> {
        Ok(self.files.read_trimmed(&self.root.join("tracing_on"))? == "1")
    }

    /// Keeps the threads of this process, and every thread that they start from now on, from being
    /// recorded in this instance. Hits are counted all the same. The kernel excludes a thread that is
    /// started meanwhile as the child of an excluded thread. If the parent was not excluded yet, the
    /// next round finds the thread.
    ///
    /// # Errors
    /// [`TracefsError`], also if the threads cannot be listed.
    pub fn exclude_this_process(&self, procfs: &Path) -> Result<(), TracefsError> {
        self.files.write(&self.root.join("options/event-fork"), "1")?;
        let mut excluded = Vec::new();
        loop {
            let threads = threads_of_this_process(procfs)
                .map_err(|error| control_file::failed("read", &error.path, error.source))?;
            if threads.iter().all(|thread| excluded.contains(thread)) {
                return Ok(());
            }
            let list: Vec<_> = threads.iter().map(i32::to_string).collect();
            self.files.replace(&self.root.join("set_event_notrace_pid"), &list.join(" "))?;
            excluded = threads;
        }
    }

    pub(super) fn event(&self, name: &ProbeName) -> PathBuf {
        self.root.join("events").join(name.group()).join(name.event())
    }

    /// Switches an event on or off in this instance.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn set_enabled(&self, name: &ProbeName, on: bool) -> Result<(), TracefsError> {
        self.files.write(&self.event(name).join("enable"), if on { "1" } else { "0" })
    }

    /// Whether an event is on in this instance. (A `*` means that a trigger holds it.)
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn is_enabled(&self, name: &ProbeName) -> Result<bool, TracefsError> {
        Ok(self.files.read_trimmed(&self.event(name).join("enable"))?.starts_with('1'))
    }

    /// Contents of the `enable` file of an event: `0`, `1`, and a `*` after it if a trigger holds
    /// the event.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn switch(&self, name: &ProbeName) -> Result<String, TracefsError> {
        self.files.read_trimmed(&self.event(name).join("enable"))
    }

    /// The filter of an event that is in force; empty for none.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn filter(&self, name: &ProbeName) -> Result<String, TracefsError> {
        let text = self.files.read_trimmed(&self.event(name).join("filter"))?;
        // One that was refused stays in the file and is not in force.
        Ok(if text == "none" || from_filter_file(&text).is_some() { String::new() } else { text })
    }

    /// Sets the filter of an event; empty removes it. **A filter that the kernel refuses leaves
    /// none in force** (kernel/trace/trace_events_filter.c:apply_event_filter), so try it with
    /// [`Tracefs::try_filter`] first.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn set_filter(&self, name: &ProbeName, filter: &str) -> Result<(), TracefsError> {
        self.files.write(&self.event(name).join("filter"), if filter.is_empty() { "0" } else { filter })
    }

    /// Whether the instance still has the directory of an event.
    pub fn has_event(&self, name: &ProbeName) -> bool {
        self.files.is_directory(&self.event(name))
    }

    /// CPUs that have a ring buffer, ascending.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn cpus(&self) -> Result<Vec<u32>, TracefsError> {
        let names = self.files.names(&self.root.join("per_cpu"))?;
        let mut cpus: Vec<_> =
            names.iter().filter_map(|name| name.strip_prefix("cpu")?.parse().ok()).collect();
        cpus.sort_unstable();
        Ok(cpus)
    }

    /// Opens the raw pages of one CPU, without blocking.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn open_raw(&self, cpu: u32) -> Result<File, TracefsError> {
        let path = self.root.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
        OpenOptions::new()
            .read(true)
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
            .open(&path)
            .map_err(|source| control_file::failed("open", &path, source))
    }

    /// Counters of one CPU's ring buffer.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn stats(&self, cpu: u32) -> Result<BufferStats, TracefsError> {
        Ok(BufferStats::parse(&self.files.read(&self.root.join(format!("per_cpu/cpu{cpu}/stats")))?))
    }

    /// Events of all CPUs that were overwritten unread since the buffers were emptied.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn overrun(&self) -> Result<u64, TracefsError> {
        self.cpus()?.into_iter().map(|cpu| Ok(self.stats(cpu)?.overrun)).sum()
    }

    /// Empties the buffers and sets their counters to zero (kernel/trace/trace.c: tracing_open,
    /// with O_TRUNC).
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn clear(&self) -> Result<(), TracefsError> {
        self.files.replace(&self.root.join("trace"), "")
    }

    /// Whether the buffers have counted nothing since they were emptied.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn is_reset(&self) -> Result<bool, TracefsError> {
        for cpu in self.cpus()? {
            if self.stats(cpu)? != BufferStats::default() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The text of `saved_cmdlines`, which all instances share: `TID COMM` of tasks that were
    /// switched away after an event of theirs.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn saved_cmdlines(tracefs: &Tracefs) -> Result<Vec<u8>, TracefsError> {
        tracefs.files.read_bytes(&tracefs.root().join("saved_cmdlines"))
    }

    /// Clears the filter of an event that was switched off, and waits until no CPU is still writing
    /// one.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn clear_filter_and_settle(&self, name: &ProbeName) -> Result<(), TracefsError> {
        self.set_filter(name, ANY_FILTER)?;
        self.set_filter(name, "")?;
        grace_period();
        Ok(())
    }

    /// Waits as [`Instance::clear_filter_and_settle`] does, but by writing the filter of an event
    /// that records: the filter stays the same.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn settle_by(&self, name: &ProbeName, filter: &str) -> Result<(), TracefsError> {
        if filter.is_empty() {
            self.set_filter(name, ALL_FILTER)?;
        }
        self.set_filter(name, filter)?;
        grace_period();
        Ok(())
    }

    /// Waits until every handler of an event of the host that runs has ended, in all instances. It can be preempted
    /// between two of them (system calls since 6.13, all tracepoints since 7.0): then the waiting of
    /// [`Instance::settle_by`] does not see it. The kernel waits for it where it replaces a list of tasks
    /// (kernel/trace/trace_events.c:event_pid_write). This list, which has to be there, stays the same.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn await_tracepoints(&self) -> Result<(), TracefsError> {
        self.files.append(&self.root.join("set_event_notrace_pid"), &std::process::id().to_string())
    }
}

/// Waits until every handler of a kprobe that runs has ended: they cannot be preempted while they record, so
/// that this is a grace period of RCU (kernel/sched/membarrier.c: `MEMBARRIER_CMD_GLOBAL`, since
/// 4.3). With one CPU it takes no time: none can run while it is requested.
pub fn grace_period() {
    if let Err(error) = membarrier(MembarrierCommand::Global) {
        // With CPUs that have no tick (`nohz_full`). On kernels up to 6.12 the filter is enough.
        tracing::debug!(%error, "cannot wait for a grace period");
    }
}

/// Counters of one CPU's ring buffer (kernel/trace/trace.c:tracing_stats_read). They start from
/// zero when the buffer is reset, which also happens when an event that was ever enabled in the
/// instance is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferStats {
    /// Events in the buffer that were not read yet.
    pub entries: u64,
    /// Events overwritten before they were read.
    pub overrun: u64,
    /// Events that the kernel gave up because too many writers were nested.
    pub commit_overrun: u64,
    /// Events that the kernel refused because the buffer was full and overwriting is off.
    pub dropped: u64,
    /// Events read.
    pub read: u64,
}

impl BufferStats {
    /// Parses `NAME: VALUE` lines. Missing lines count as 0: kernels differ in what they print.
    fn parse(text: &str) -> Self {
        let value = |name: &str| {
            text.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| *key == name)
                .and_then(|(_, value)| value.trim().parse().ok())
                .unwrap_or(0)
        };
        Self {
            entries: value("entries"),
            overrun: value("overrun"),
            commit_overrun: value("commit overrun"),
            dropped: value("dropped events"),
            read: value("read events"),
        }
    }
}

impl Tracefs {
    /// Tries a filter for an event of the daemon, on the event's top-level `filter` file, where the
    /// event is off. No recording changes, whatever the verdict.
    ///
    /// # Errors
    /// The kernel's errno and, if it has one, its message. The errno says little:
    /// kernel/trace/trace_events_filter.c returns the most surprising ones.
    pub fn try_filter(&self, name: &ProbeName, filter: &str) -> Result<(), Refusal> {
        let path = self.root().join("events").join(name.group()).join(name.event()).join("filter");
        // Another program may have set one there.
        let theirs = self.files.read_trimmed(&path).ok();
        let theirs = theirs.filter(|text| text != "none" && from_filter_file(text).is_none());
        let verdict = self.write_filter(&path, filter);
        // Always: a refused text stays in the file.
        if let Err(error) = self.files.write(&path, theirs.as_deref().unwrap_or("0")) {
            tracing::warn!(%error, "cannot remove a tried filter");
        }
        verdict
    }

    /// Writes a filter, with what the kernel says if it refuses it.
    pub(super) fn write_filter(&self, path: &Path, filter: &str) -> Result<(), Refusal> {
        self.with_message(|| self.files.write(path, filter)).map_err(|(error, message)| {
            // Kernels that do not log filter errors still leave the text and a caret in the file.
            let of_file = || self.files.read(path).ok().and_then(|text| from_filter_file(&text));
            (error, message.or_else(of_file))
        })
    }
}

/// Reads what a filter file shows after a refusal: the text, a caret line, and `parse_error: TEXT`.
fn from_filter_file(text: &str) -> Option<KernelMessage> {
    let [command, caret, message] = text.lines().collect::<Vec<_>>().try_into().ok()?;
    let reason = message.strip_prefix("parse_error: ")?;
    let rebuilt =
        format!("[0] event filter parse error: error: {reason}\n  Command: {command}\n{:11}{caret}\n", "");
    KernelMessage::parse_log(&rebuilt).pop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_filters_say_why() {
        let message = from_filter_file("foo == 1\n^\nparse_error: Field not found\n").unwrap();
        assert_eq!((message.text.as_str(), message.position), ("Field not found", 0));
        assert_eq!(from_filter_file("none\n"), None);
    }

    #[test]
    fn values_are_found() {
        let text = "entries: 11\noverrun: 7\ncommit overrun: 1\nbytes: 868\noldest event ts:     1.590898\ndropped events: 2\nread events: 42\n";
        assert_eq!(
            BufferStats::parse(text),
            BufferStats { entries: 11, overrun: 7, commit_overrun: 1, dropped: 2, read: 42 }
        );
    }
}
