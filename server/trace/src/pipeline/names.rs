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
            self.names = saved(&text).map(|(tid, name)| (tid, name.into())).collect();
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

/// Lines of `TID COMM`; a comm may hold blanks, and bytes that are not UTF-8.
fn saved(text: &[u8]) -> impl Iterator<Item = (i32, &[u8])> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let (tid, name) = line.split_at(line.iter().position(|byte| *byte == b' ')?);
        let tid = std::str::from_utf8(tid).ok()?.parse().ok()?;
        Some((tid, name.get(1..)?)).filter(|(_, name)| *name != b"<...>")
    })
}

/// How long the names of addresses outside of the kernel's own code are used before it is looked at
/// whether modules are the same. No module is unloaded, and another one loaded in its place, in this time.
const FRESH_MODULES: Duration = Duration::from_millis(20);

/// Names of kernel addresses. Those of a module are of the moment at which they are given: an address
/// that was not named before may be in a module that has just come.
#[derive(Debug)]
pub struct AddressNames {
    cache: Arc<FactsCache>,
    facts: Option<Arc<KernelFacts>>,
    names: HashMap<u64, Option<Arc<str>>>,
    /// When modules were looked at last, and whether for this batch.
    looked: Option<Instant>,
    is_looked: bool,
}

impl AddressNames {
    /// Knows no names yet.
    pub fn new(cache: Arc<FactsCache>) -> Self {
        Self { cache, facts: None, names: HashMap::new(), looked: None, is_looked: false }
    }

    /// A batch begins: takes the latest symbol table, and forgets all cached names if it has changed.
    pub(crate) fn refresh(&mut self) {
        self.is_looked = false;
        self.take(self.cache.last());
    }

    fn take(&mut self, facts: Option<Arc<KernelFacts>>) {
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
        if self.is_of_module(address) {
            self.look_at_modules(!self.names.contains_key(&address));
        }
        let facts = self.facts.as_ref();
        self.names
            .entry(address)
            .or_insert_with(|| facts?.name_of(address).map(|located| located.to_string().into()))
            .clone()
    }

    /// Whether a module may be there.
    fn is_of_module(&self, address: u64) -> bool {
        let is_own = |facts: &Arc<KernelFacts>| facts.symbols.core().contains(&address);
        address >= KERNEL_CODE && !self.facts.as_ref().is_some_and(is_own)
    }

    /// Takes facts as they are now, if those at hand are too old for an address.
    fn look_at_modules(&mut self, is_new: bool) {
        let is_due = self.looked.is_none_or(|looked| looked.elapsed() >= FRESH_MODULES);
        if !is_due && (!is_new || self.is_looked) {
            return;
        }
        (self.looked, self.is_looked) = (Some(Instant::now()), true);
        // Without facts an address has no name.
        let facts =
            self.cache.current().inspect_err(|error| tracing::debug!(%error, "cannot name addresses"));
        self.take(facts.ok());
    }
}

/// Code and data of the kernel and its modules are from here on (Documentation/arch/x86/x86_64/mm.rst).
const KERNEL_CODE: u64 = 0xffff_ffff_8000_0000;

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
    use std::fmt::Write as _;

    use super::*;
    use kprobed_host::kernel::KernelPaths;

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

    /// A module is loaded, and another one in its place; between two looks of the daemon at the modules.
    #[test]
    fn a_name_is_of_the_module_that_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let root = || directory.path().to_owned();
        let write = |name: &str, text: &str| std::fs::write(root().join(name), text).unwrap();
        let load = |modules: &[(&str, u64, &str)]| {
            let mut symbols =
                "ffffffff81000000 T _stext\nffffffff81000040 T vfs_read\nffffffff81001000 B _end\n"
                    .to_owned();
            let mut list = String::new();
            for (module, start, functions) in modules {
                for (function, at) in functions.split(' ').zip(0_u64..) {
                    writeln!(symbols, "{:016x} t {function}\t[{module}]", start + 0x40 * at).unwrap();
                }
                writeln!(symbols, "{:016x} d orc_header\t[{module}]", start + 0x1000).unwrap();
                writeln!(list, "{module} 8192 0 - Live {start:#x}").unwrap();
            }
            write("kallsyms", &symbols);
            write("modules", &list);
        };
        write("available_filter_functions_addrs", "");
        std::fs::write(root().join("kcore"), kprobed_host::samples::core(&[])).unwrap();
        let paths = KernelPaths { procfs: root(), sysfs: root(), debugfs: root(), tracefs: root() };
        let cache = Arc::new(FactsCache::new(paths));
        let mut names = AddressNames::new(Arc::clone(&cache));
        let mut name = |address| {
            names.refresh();
            names.name(address).map(|name| name.to_string())
        };
        let (blk, rng) = (0xffff_ffff_c000_0000, 0xffff_ffff_c000_a000);
        load(&[("virtio_blk", blk, "virtblk_probe virtblk_remove")]);
        cache.current().unwrap();
        assert_eq!(name(blk + 4).as_deref(), Some("virtblk_probe+0x4/0x40 [virtio_blk]"));
        assert_eq!(name(0xffff_ffff_8100_0044).as_deref(), Some("vfs_read+0x4/0xfc0"));
        assert_eq!(name(rng + 4), None, "nothing is there, and the data before it does not reach so far");
        // The next event is of a module that has come.
        load(&[
            ("virtio_blk", blk, "virtblk_probe virtblk_remove"),
            ("virtio_rng", rng, "virtio_read virtio_end"),
        ]);
        assert_eq!(name(rng + 0x44).as_deref(), Some("virtio_end+0x4/0xfc0 [virtio_rng]"));
        // It goes, and another one comes.
        load(&[("virtio_blk", blk, "virtblk_probe virtblk_remove"), ("veth", rng, "veth_open veth_stop")]);
        std::thread::sleep(FRESH_MODULES);
        assert_eq!(name(rng + 0x44).as_deref(), Some("veth_stop+0x4/0xfc0 [veth]"));
        load(&[]);
        std::thread::sleep(FRESH_MODULES);
        assert_eq!(name(rng + 0x44), None);
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
        let names: Vec<_> = saved(b"12 tokio-runtime w\n13 <...>\nx y\n-1 odd\n7 q\xff\n").collect();
        assert_eq!(names, [(12, &b"tokio-runtime w"[..]), (-1, &b"odd"[..]), (7, &b"q\xff"[..])]);
    }
}
