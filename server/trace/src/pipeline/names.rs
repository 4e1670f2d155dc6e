//! Names of tasks and kernel addresses that occur in events.
//!
//! Owns their caches. Names are best effort and never delay an event: a task that has exited and
//! that `saved_cmdlines` does not list has no name.

use std::collections::{BTreeSet, HashMap};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::decode::Packed;
use crate::wire::Task;
use kprobed_host::kernel::{FactsCache, KernelFacts};
use kprobed_host::tracefs::{Instance, Tracefs};

/// The most names that are kept: a bound for hosts with very many short-lived tasks.
const MAX_NAMES: usize = 16_384;

/// How long a new name is used. Shorter than a reader's rest, since a task that was just started
/// changes its name with its first `exec`; long enough that a busy reader does not ask for each of
/// its batches.
const FRESH: Duration = Duration::from_millis(5);

/// How long a name is used at most. One that was found again is used for as long as the task has had
/// it, up to this: to ask for it costs as much as to read a page of events.
const FRESH_MAX: Duration = Duration::from_millis(100);

/// How long the cached process of a thread is used. It never changes, but the kernel uses thread
/// ids again.
const FRESH_PROCESS: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct TaskName {
    task: Task,
    at: Instant,
    /// When it was first found.
    since: Instant,
    process_at: Instant,
}

impl TaskName {
    fn is_fresh(&self, now: Instant) -> bool {
        let had = self.at.saturating_duration_since(self.since);
        now.saturating_duration_since(self.at) < had.clamp(FRESH, FRESH_MAX)
    }
}

/// Names of tasks: from procfs while they live, and otherwise from the kernel's `saved_cmdlines`,
/// which remembers the names that tasks had when they were last switched away.
#[derive(Debug)]
pub struct TaskNames {
    tracefs: Tracefs,
    procfs: PathBuf,
    names: HashMap<i32, TaskName>,
    saved: SavedNames,
}

impl TaskNames {
    /// Knows no names yet.
    pub fn new(tracefs: Tracefs, procfs: PathBuf) -> Self {
        Self { tracefs, procfs, names: HashMap::new(), saved: SavedNames::default() }
    }

    /// The name and process of a task, if they are known.
    pub fn task(&mut self, tid: i32) -> Option<Task> {
        if tid == 0 {
            return Some(Task { tid, comm: Arc::from(&b"<idle>"[..]), tgid: 0 });
        }
        if let Some(known) = self.names.get(&tid).filter(|known| known.is_fresh(Instant::now())) {
            return Some(known.task.clone());
        }
        let directory = self.procfs.join(tid.to_string());
        match std::fs::read(directory.join("comm")) {
            Ok(comm) => {
                let known = self.names.get(&tid);
                let fresh = known.filter(|known| known.process_at.elapsed() < FRESH_PROCESS);
                let process = fresh.map(|known| (known.task.tgid, known.process_at));
                let process = process.unwrap_or_else(|| (process_of(&directory), Instant::now()));
                self.learn(tid, comm.strip_suffix(b"\n").unwrap_or(&comm), process);
            }
            Err(_) => {
                if let Some(comm) = self.saved.of_exited(tid, &self.tracefs) {
                    let known = self.names.get(&tid);
                    let process = known.map(|known| (known.task.tgid, known.process_at));
                    self.learn(tid, &comm, process.unwrap_or_else(|| (0, Instant::now())));
                }
            }
        }
        self.names.get(&tid).map(|known| known.task.clone())
    }

    fn learn(&mut self, tid: i32, comm: &[u8], (tgid, process_at): (i32, Instant)) {
        if self.names.len() > MAX_NAMES {
            self.names.clear();
        }
        let at = Instant::now();
        let same = self.names.get(&tid).filter(|known| *known.task.comm == *comm);
        let since = same.map_or(at, |known| known.since);
        let task = Task { tid, comm: comm.into(), tgid };
        self.names.insert(tid, TaskName { task, at, since, process_at });
    }
}

/// The kernel's `saved_cmdlines`. Of a task that still runs it may have an older name, from before
/// its last `exec`: it is asked for exited tasks only.
#[derive(Debug, Default)]
struct SavedNames {
    names: HashMap<i32, Box<[u8]>>,
    read: Option<Instant>,
}

impl SavedNames {
    /// The last name of a task that has exited. The file is read once within [`FRESH`].
    fn of_exited(&mut self, tid: i32, tracefs: &Tracefs) -> Option<Box<[u8]>> {
        if self.read.is_none_or(|at| at.elapsed() >= FRESH) {
            let text = Instance::saved_cmdlines(tracefs).unwrap_or_default();
            self.names = saved(&text).map(|(tid, name)| (tid, name.as_bytes().into())).collect();
            self.read = Some(Instant::now());
        }
        self.names.get(&tid).cloned()
    }
}

/// The process that a thread belongs to (fs/proc/array.c:proc_pid_status); 0 if the thread has
/// exited.
fn process_of(directory: &Path) -> i32 {
    let status = std::fs::read(directory.join("status")).unwrap_or_default();
    let tgid = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:\t"));
    tgid.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()).unwrap_or(0)
}

/// Lines of `TID COMM`; a comm may hold blanks.
fn saved(text: &str) -> impl Iterator<Item = (i32, &str)> {
    text.lines().filter_map(|line| {
        let (tid, name) = line.split_once(' ')?;
        Some((tid.parse().ok()?, name)).filter(|(_, name)| *name != "<...>")
    })
}

/// Names of kernel addresses.
#[derive(Debug)]
pub struct AddressNames {
    cache: Arc<FactsCache>,
    facts: Option<Arc<KernelFacts>>,
    names: HashMap<u64, Option<Arc<str>>>,
}

impl AddressNames {
    /// Knows no names yet.
    pub fn new(cache: Arc<FactsCache>) -> Self {
        Self { cache, facts: None, names: HashMap::new() }
    }

    /// Takes the latest symbol table, and forgets all cached names if it has changed.
    pub(crate) fn refresh(&mut self) {
        let facts = self.cache.last();
        let same = match (&self.facts, &facts) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if !same || self.names.len() > MAX_NAMES {
            self.names.clear();
            self.facts = facts;
        }
    }

    /// Appends the name of an address as the kernel's `sprint_symbol` writes it
    /// (kernel/kallsyms.c): the address itself if it has none.
    pub(crate) fn append_name(&mut self, address: u64, text: &mut Vec<u8>) {
        match self.name(address) {
            Some(name) => text.extend_from_slice(name.as_bytes()),
            None => write!(text, "{address:#x}").unwrap_or_default(),
        }
    }

    /// `SYMBOL+0xOFFSET/0xSIZE`, if the address is in the kernel.
    pub fn name(&mut self, address: u64) -> Option<Arc<str>> {
        let facts = self.facts.as_ref();
        self.names
            .entry(address)
            .or_insert_with(|| facts?.symbols.locate(address).map(|located| located.to_string().into()))
            .clone()
    }
}

const SLOTS: usize = 256;

/// Number of values that are compared at once.
const STRETCH: usize = 64;

/// Collects distinct values. Most values of a column are equal to a recent one, and never reach the
/// set.
#[derive(Debug)]
pub(super) struct Distinct<T> {
    recent: [Option<T>; SLOTS],
    values: BTreeSet<T>,
}

impl<T: Ord + Copy> Distinct<T> {
    pub(super) const fn new() -> Self {
        Self { recent: [None; SLOTS], values: BTreeSet::new() }
    }

    /// Takes a value; `slot` is some function of it.
    pub(super) fn add(&mut self, value: T, slot: usize) {
        if let Some(recent) = self.recent.get_mut(slot % SLOTS)
            && *recent != Some(value)
        {
            *recent = Some(value);
            self.values.insert(value);
        }
    }

    /// Takes the values of a column, which has one in each row. Stretches of one value, which most
    /// columns consist of, are taken at once.
    pub(super) fn add_all<const N: usize>(
        &mut self,
        column: &Packed,
        of: impl Fn([u8; N]) -> T,
        slot: impl Fn(T) -> usize,
    ) {
        for values in column.held().as_chunks::<N>().0.chunks(STRETCH) {
            let Some(first) = values.first() else { continue };
            self.add(of(*first), slot(of(*first)));
            // The loop counts and has no exit: it compares several at a time.
            if values.iter().filter(|value| *value != first).count() > 0 {
                for value in values.iter().map(|value| of(*value)) {
                    self.add(value, slot(value));
                }
            }
        }
    }

    /// All values, ascending, none twice.
    pub(super) fn into_values(self) -> BTreeSet<T> {
        self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_taken_whole() {
        let mut column = vec![7_u64; 100];
        let taken = |column: &[u64]| {
            let bytes = column.iter().flat_map(|value| value.to_le_bytes()).collect();
            let column = Packed::from_bytes(8, column.len(), bytes).unwrap();
            let mut distinct = Distinct::new();
            distinct.add_all(&column, u64::from_le_bytes, |value| usize::try_from(value).unwrap());
            distinct.into_values().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(taken(&column), [7]);
        column.extend([8, 7, 9]);
        column.extend([9; 200]);
        column.push(10);
        assert_eq!(taken(&column), [7, 8, 9, 10]);
    }

    #[test]
    fn values_that_share_a_slot_are_both_kept() {
        let mut distinct = Distinct::new();
        for value in [1_u32, 257, 1, 257, 2, 2] {
            distinct.add(value, value as usize);
        }
        assert_eq!(distinct.into_values().into_iter().collect::<Vec<_>>(), [1, 2, 257]);
    }

    #[test]
    fn a_name_is_used_longer_the_longer_a_task_has_it() {
        let found = Instant::now();
        // Whether it still is just before that time, and then no longer.
        let until = |had: Duration, after: Duration| {
            let task = Task { tid: 7, comm: Arc::from(&b"sh"[..]), tgid: 7 };
            let at = found + had;
            let name = TaskName { task, at, since: found, process_at: found };
            name.is_fresh(at + after.mul_f64(0.99)) && !name.is_fresh(at + after)
        };
        assert!(until(Duration::ZERO, FRESH), "a new one");
        assert!(until(4 * FRESH, 4 * FRESH));
        assert!(until(9 * FRESH_MAX, FRESH_MAX), "a limit");
    }

    #[test]
    fn another_name_is_a_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let mut names = TaskNames::new(Tracefs::new(root, root), root.to_owned());
        let mut learnt = |comm: &[u8]| {
            names.learn(7, comm, (7, Instant::now()));
            let known = &names.names[&7];
            (known.since, known.since == known.at)
        };
        let (first, _) = learnt(b"sh");
        assert_eq!(learnt(b"sh").0, first);
        assert!(learnt(b"cat").1);
    }

    #[test]
    fn a_saved_name_is_that_of_an_exited_task() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::write(root.join("saved_cmdlines"), "7 sh\n8 sh\n").unwrap();
        std::fs::create_dir(root.join("8")).unwrap();
        std::fs::write(root.join("8/comm"), "after exec\n").unwrap();
        let mut names = TaskNames::new(Tracefs::new(root, root), root.to_owned());
        let mut comm = |tid| names.task(tid).map(|task| String::from_utf8_lossy(&task.comm).into_owned());
        // That 7 is looked up there must not give 8 the name that it had before its `exec`.
        assert_eq!(comm(7).as_deref(), Some("sh"));
        assert_eq!(comm(8).as_deref(), Some("after exec"));
        assert_eq!(comm(9), None);
    }

    #[test]
    fn saved_names_may_hold_blanks() {
        let names: Vec<_> = saved("12 tokio-runtime w\n13 <...>\nx y\n-1 odd\n").collect();
        assert_eq!(names, [(12, "tokio-runtime w"), (-1, "odd")]);
    }
}
