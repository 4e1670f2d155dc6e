//! Form of the daemon's instance: every file of it that decides what is recorded, how the daemon wants
//! it, and what another program has made of it.
//!
//! Owns the list of those files, which is read once for a look. The switches, filters and triggers of
//! single events are not in it. Never decides when a file is repaired.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Instance, TracefsError};
use crate::kernel::{TRACE_CLOCK, threads_of_this_process};

/// A file of the instance that decides what is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceFile {
    /// `tracing_on`.
    Recording,
    /// `trace_clock`.
    Clock,
    /// `tracing_cpumask`: what other CPUs record is dropped, and counted nowhere.
    Cpus,
    /// `set_event_pid`: only these tasks are recorded.
    Tasks,
    /// `set_event_notrace_pid`: these tasks are not. The daemon's threads, and no others.
    TasksLeftOut,
    /// `options/event-fork`: a thread that the daemon starts is left out too.
    EventFork,
    /// `options/overwrite`: a full buffer takes new events.
    Overwrite,
    /// `options/pause-on-trace`: whoever reads `trace` stops recording.
    PauseOnTrace,
    /// `buffer_size_kb`. What is hit while it changes is counted nowhere.
    BufferSize,
    /// `buffer_subbuf_size_kb` (since 6.8). What is hit while it changes is counted nowhere.
    SubBufferSize,
}

impl InstanceFile {
    /// All of them, in the order in which they are restored: recording begins last.
    pub const ALL: [Self; 10] = [
        Self::Clock,
        Self::Cpus,
        Self::Tasks,
        Self::TasksLeftOut,
        Self::EventFork,
        Self::Overwrite,
        Self::PauseOnTrace,
        Self::BufferSize,
        Self::SubBufferSize,
        Self::Recording,
    ];

    /// Its name in the directory of the instance.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recording => "tracing_on",
            Self::Clock => "trace_clock",
            Self::Cpus => "tracing_cpumask",
            Self::Tasks => "set_event_pid",
            Self::TasksLeftOut => "set_event_notrace_pid",
            Self::EventFork => "options/event-fork",
            Self::Overwrite => "options/overwrite",
            Self::PauseOnTrace => "options/pause-on-trace",
            Self::BufferSize => "buffer_size_kb",
            Self::SubBufferSize => "buffer_subbuf_size_kb",
        }
    }

    /// Whether a probe records all that was asked although the file differs: the size of a buffer says
    /// how much it holds. The daemon names such a difference and does not undo it, since the
    /// kernel records nothing while a size changes.
    pub const fn is_size(self) -> bool {
        matches!(self, Self::BufferSize | Self::SubBufferSize)
    }
}

/// Files through which a program changes those of [`InstanceFile`], or swaps or empties the buffers.
const OTHER_WAYS: [&str; 5] = ["trace_options", "set_event", "snapshot", "free_buffer", "trace"];

/// The form that the daemon has given its instance, as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceForm {
    /// Size of each buffer. Absent when it could not be read, or the CPUs differ.
    pub buffer_kib: Option<u64>,
    sub_buffer_kib: Option<u64>,
    /// CPUs that have a buffer.
    cpus: Vec<u32>,
}

/// A file that is not as the daemon wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alteration {
    /// The file.
    pub file: InstanceFile,
    /// What it shows.
    pub found: String,
    /// What the daemon wants there.
    pub wanted: String,
}

/// The kernel rounds a buffer to whole sub-buffers of their data size: a size that is written back can
/// become this much larger.
const ROUNDING_KIB: u64 = 256;

/// How often the list of the daemon's threads is compared with the kernel's if they differ.
const CHURN_TRIES: u32 = 10;

/// Time between two of these: a thread that ends is on one of the lists for longer than on the other.
const CHURN_PAUSE: Duration = Duration::from_micros(500);

impl Instance {
    /// The files that say what is recorded in this instance, and how: every change of these is a
    /// write to one of them. The switches and filters of single events are not among them.
    pub fn switches(&self) -> Vec<PathBuf> {
        let names = InstanceFile::ALL.map(InstanceFile::name);
        let names = names.into_iter().chain(OTHER_WAYS);
        // Kernels differ in what they have.
        names.map(|name| self.root.join(name)).filter(|path| self.files.exists(path)).collect()
    }

    /// The sizes that it has now, which are those that the daemon has given it.
    pub(super) fn form(&self) -> InstanceForm {
        let sub_buffer = self.root.join(InstanceFile::SubBufferSize.name());
        InstanceForm {
            buffer_kib: self.buffer_kib().ok().filter(|kib| *kib > 0),
            sub_buffer_kib: self.files.read_trimmed(&sub_buffer).ok().and_then(|text| text.parse().ok()),
            cpus: self.cpus().unwrap_or_default(),
        }
    }

    /// The files that are not as the daemon wants them, each read once. `procfs` has the daemon's own
    /// threads.
    ///
    /// # Errors
    /// [`TracefsError`]: the instance is gone. A file that a kernel does not have is as it is wanted.
    pub fn alterations(&self, form: &InstanceForm, procfs: &Path) -> Result<Vec<Alteration>, TracefsError> {
        let mut altered = Vec::new();
        for file in InstanceFile::ALL {
            let text = match self.files.read_trimmed(&self.root.join(file.name())) {
                Ok(text) => text,
                Err(error) if file == InstanceFile::Recording => return Err(error),
                Err(error) if error.errno() == nix::errno::Errno::ENOENT as i32 => continue,
                Err(error) => return Err(error),
            };
            if let Some((found, wanted)) = self.difference(file, &text, form, procfs) {
                altered.push(Alteration { file, found, wanted });
            }
        }
        Ok(altered)
    }

    /// What a file shows and what is wanted there, if these differ.
    fn difference(
        &self,
        file: InstanceFile,
        text: &str,
        form: &InstanceForm,
        procfs: &Path,
    ) -> Option<(String, String)> {
        let differs = |wanted: &str| (text != wanted).then(|| (text.to_owned(), wanted.to_owned()));
        match file {
            InstanceFile::Recording | InstanceFile::EventFork | InstanceFile::Overwrite => differs("1"),
            InstanceFile::PauseOnTrace => differs("0"),
            InstanceFile::Clock => {
                let clock = clock_in_force(text);
                (clock != TRACE_CLOCK).then(|| (clock.to_owned(), TRACE_CLOCK.to_owned()))
            }
            InstanceFile::Cpus => {
                let has_all = form.cpus.iter().all(|cpu| has_cpu(text, *cpu));
                (!has_all).then(|| (text.to_owned(), mask_of(&form.cpus)))
            }
            InstanceFile::Tasks => {
                let tasks = numbers(text);
                (!tasks.is_empty()).then(|| (listed(&tasks), String::new()))
            }
            InstanceFile::TasksLeftOut => self.tasks_left_out(numbers(text), procfs),
            InstanceFile::BufferSize => {
                let (now, made) = (size_kib(text), form.buffer_kib?);
                let is_as_made = (made..=made + ROUNDING_KIB).contains(&now);
                let found = if now == 0 { "several sizes".to_owned() } else { now.to_string() };
                (!is_as_made).then(|| (found, made.to_string()))
            }
            InstanceFile::SubBufferSize => differs(&form.sub_buffer_kib?.to_string()),
        }
    }

    /// The difference between the tasks that are not recorded and the threads of the daemon. Threads
    /// come and go while both are read, and the kernel follows them: what differs is read again. A thread
    /// that has ended stays on the kernel's list for a grace period (kernel/exit.c:
    /// delayed_put_task_struct): a task that does not exist is no difference.
    fn tasks_left_out(&self, mut tasks: Vec<i32>, procfs: &Path) -> Option<(String, String)> {
        let mut threads = threads_of_this_process(procfs).ok()?;
        for _ in 0..CHURN_TRIES {
            tasks.retain(|task| threads.contains(task) || procfs.join(task.to_string()).exists());
            tasks.sort_unstable();
            threads.sort_unstable();
            if tasks == threads {
                return None;
            }
            std::thread::sleep(CHURN_PAUSE);
            let path = self.root.join(InstanceFile::TasksLeftOut.name());
            tasks = numbers(&self.files.read_trimmed(&path).ok()?);
            threads = threads_of_this_process(procfs).ok()?;
        }
        Some((listed(&tasks), listed(&threads)))
    }

    /// Brings a file back into the form that the daemon wants. Setting the clock empties the buffers.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn restore(&self, alteration: &Alteration, procfs: &Path) -> Result<(), TracefsError> {
        let Alteration { file, wanted, .. } = alteration;
        let path = self.root.join(file.name());
        match file {
            // Opened with truncation, the kernel empties it.
            InstanceFile::Tasks => self.files.replace(&path, ""),
            InstanceFile::TasksLeftOut => self.exclude_this_process(procfs),
            _ => self.files.write(&path, wanted),
        }
    }

    /// Has all CPUs and tasks recorded, and full buffers overwritten, whatever another program has left
    /// in an instance that is taken over, or in the one at the top that a new instance is like.
    pub(super) fn reset_selection(&self) -> Result<(), TracefsError> {
        let form = self.form();
        // The daemon's threads are in none of these.
        let nowhere = Path::new("/nonexistent");
        for file in
            [InstanceFile::Cpus, InstanceFile::Tasks, InstanceFile::Overwrite, InstanceFile::PauseOnTrace]
        {
            let Ok(text) = self.files.read_trimmed(&self.root.join(file.name())) else { continue };
            if let Some((found, wanted)) = self.difference(file, &text, &form, nowhere) {
                tracing::info!(file = file.name(), found, wanted, "restored a file of the trace instance");
                self.restore(&Alteration { file, found, wanted }, nowhere)?;
            }
        }
        Ok(())
    }
}

/// The clock that `trace_clock` shows in brackets.
pub(super) fn clock_in_force(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(clock, _)| clock)
}

/// The size that a buffer has, or will have once it is used: `SMALL (expanded: SIZE)` holds `SMALL`
/// until then. 0 if CPUs differ.
pub(super) fn size_kib(text: &str) -> u64 {
    text.split_ascii_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Numbers of 32 bits as the kernel writes a mask: groups of eight hexadecimal digits, the lowest
/// last.
const GROUP_BITS: usize = 32;

fn has_cpu(mask: &str, cpu: u32) -> bool {
    let group = mask.rsplit(',').nth(cpu as usize / GROUP_BITS);
    let bits = group.and_then(|group| u32::from_str_radix(group.trim(), 16).ok()).unwrap_or(0);
    bits & (1 << (cpu as usize % GROUP_BITS)) != 0
}

fn mask_of(cpus: &[u32]) -> String {
    let most = cpus.iter().max().map_or(0, |cpu| *cpu as usize / GROUP_BITS);
    let mut groups = vec![0_u32; most + 1];
    for cpu in cpus {
        if let Some(group) = groups.get_mut(*cpu as usize / GROUP_BITS) {
            *group |= 1 << (*cpu as usize % GROUP_BITS);
        }
    }
    let groups: Vec<_> = groups.iter().rev().map(|group| format!("{group:08x}")).collect();
    groups.join(",")
}

fn numbers(text: &str) -> Vec<i32> {
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn listed(tasks: &[i32]) -> String {
    let tasks: Vec<_> = tasks.iter().map(i32::to_string).collect();
    tasks.join(" ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::tracefs::MountedFiles;

    struct Host {
        directory: tempfile::TempDir,
        instance: Instance,
        form: InstanceForm,
    }

    impl Host {
        /// An instance as the daemon has made it, on a host with three CPUs.
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let write = |path: &str, text: &str| {
                let path = directory.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            for cpu in 0..3 {
                write(&format!("i/per_cpu/cpu{cpu}/stats"), "");
            }
            for (file, text) in [
                ("tracing_on", "1\n"),
                ("trace_clock", "local global [boot] tai\n"),
                ("tracing_cpumask", "7\n"),
                ("set_event_pid", ""),
                ("set_event_notrace_pid", "17\n18\n"),
                ("options/event-fork", "1\n"),
                ("options/overwrite", "1\n"),
                ("options/pause-on-trace", "0\n"),
                ("buffer_size_kb", "1088\n"),
                ("buffer_subbuf_size_kb", "64\n"),
            ] {
                write(&format!("i/{file}"), text);
            }
            for thread in [17, 18] {
                write(&format!("proc/self/task/{thread}/comm"), "kprobed");
            }
            // Of others.
            for task in [1, 4711] {
                write(&format!("proc/{task}/comm"), "other");
            }
            let files = std::sync::Arc::new(MountedFiles);
            let instance = Instance { files, root: directory.path().join("i") };
            let form = instance.form();
            Self { directory, instance, form }
        }

        fn altered(&self) -> Vec<Alteration> {
            self.instance.alterations(&self.form, &self.directory.path().join("proc")).unwrap()
        }
    }

    /// Each file that decides what is recorded is read, told, and restored.
    #[test]
    fn every_file_is_observed_and_restored() {
        let host = Host::new();
        assert_eq!(host.altered(), []);
        for file in InstanceFile::ALL {
            let path = host.instance.root.join(file.name());
            let before = fs::read_to_string(&path).unwrap();
            let other = match file {
                InstanceFile::Clock => "local [global] boot\n",
                InstanceFile::PauseOnTrace => "1\n",
                InstanceFile::TasksLeftOut => "17\n18\n4711\n",
                InstanceFile::Tasks | InstanceFile::Cpus => "5\n",
                InstanceFile::BufferSize => "X\n",
                _ => "0\n",
            };
            fs::write(&path, other).unwrap();
            let altered = host.altered();
            assert_eq!(altered.iter().map(|one| one.file).collect::<Vec<_>>(), [file], "{altered:?}");
            if file == InstanceFile::Clock {
                // The kernel shows it among all that there are.
                fs::write(&path, before).unwrap();
            } else {
                host.instance.restore(&altered[0], &host.directory.path().join("proc")).unwrap();
            }
            assert_eq!(host.altered(), [], "{file:?}");
        }
        // A kernel that does not have a file has it as it is wanted, but for the switch.
        for file in InstanceFile::ALL {
            fs::remove_file(host.instance.root.join(file.name())).unwrap();
            let read = host.instance.alterations(&host.form, Path::new("/nonexistent"));
            assert_eq!(read.is_err(), file == InstanceFile::Recording);
        }
    }

    #[test]
    fn threads_of_the_daemon_are_left_out_and_no_others() {
        let host = Host::new();
        let file = host.instance.root.join("set_event_notrace_pid");
        for (tasks, is_as_wanted) in
            // One that has ended is on the kernel's list for a while.
            [
                ("18 17", true),
                ("17", false),
                ("", false),
                ("17 18 1", false),
                ("17 18 16", true),
                ("17 16", false),
            ]
        {
            fs::write(&file, tasks).unwrap();
            assert_eq!(host.altered().is_empty(), is_as_wanted, "{tasks}");
        }
    }

    #[test]
    fn a_taken_over_instance_records_what_the_daemon_wants() {
        let host = Host::new();
        for (file, text) in [("tracing_cpumask", "0"), ("set_event_pid", "1"), ("options/overwrite", "0")] {
            fs::write(host.instance.root.join(file), text).unwrap();
        }
        assert_eq!(host.altered().len(), 3);
        host.instance.reset_selection().unwrap();
        assert_eq!(host.altered(), []);
    }

    #[test]
    fn a_size_that_is_written_back_may_be_rounded() {
        let host = Host::new();
        let file = host.instance.root.join("buffer_size_kb");
        for (size, is_as_wanted) in
            [("1088", true), ("1152", true), ("1087", false), ("4", false), ("4096", false)]
        {
            fs::write(&file, size).unwrap();
            assert_eq!(host.altered().is_empty(), is_as_wanted, "{size}");
        }
    }

    proptest! {
        #[test]
        fn a_mask_has_the_cpus_that_it_is_made_of(cpus in prop::collection::btree_set(0_u32..200, 1..20)) {
            let mask = mask_of(&cpus.iter().copied().collect::<Vec<_>>());
            for cpu in 0..256 {
                prop_assert_eq!(has_cpu(&mask, cpu), cpus.contains(&cpu), "{} {}", mask, cpu);
            }
        }

        #[test]
        fn any_text_is_survived(text in ".{0,40}") {
            let host = Host::new();
            for file in InstanceFile::ALL {
                fs::write(host.instance.root.join(file.name()), &text).unwrap();
            }
            let altered = host.instance.alterations(&host.form, Path::new("/nonexistent"));
            prop_assert!(altered.is_ok_and(|altered| altered.len() <= InstanceFile::ALL.len()));
            has_cpu(&text, 33);
        }
    }
}
