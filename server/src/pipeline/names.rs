//! Names for the numbers in events: tasks and kernel addresses.
//!
//! Both are best effort and never hold up an event: a task that has gone without a trace has no name.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::kernel::{FactsCache, KernelFacts};
use crate::tracefs::{Instance, Tracefs};

/// The most names that are kept: a bound for hosts with very many short-lived tasks.
const MAX_NAMES: usize = 16_384;

/// How long a name is taken for granted. Shorter than a reader's rest, since a task that was just started changes its name with its
/// first `exec`; long enough that a busy reader does not ask for each of its batches.
const FRESH: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct TaskName {
    name: Arc<[u8]>,
    at: Instant,
}

/// Names of tasks: from procfs while they live, and otherwise from the kernel's `saved_cmdlines`, which remembers the names that tasks
/// had when they were last switched away.
#[derive(Debug)]
pub struct TaskNames {
    tracefs: Tracefs,
    procfs: PathBuf,
    names: HashMap<i32, TaskName>,
    saved_read: Option<Instant>,
}

impl TaskNames {
    /// Knows no names yet.
    pub fn new(tracefs: Tracefs, procfs: PathBuf) -> Self {
        Self { tracefs, procfs, names: HashMap::new(), saved_read: None }
    }

    /// The name of a task, if anybody knows it.
    pub fn name(&mut self, tid: i32) -> Option<Arc<[u8]>> {
        if tid == 0 {
            return Some(Arc::from(&b"<idle>"[..]));
        }
        if let Some(known) = self.names.get(&tid).filter(|known| known.at.elapsed() < FRESH) {
            return Some(Arc::clone(&known.name));
        }
        match std::fs::read(self.procfs.join(tid.to_string()).join("comm")) {
            Ok(comm) => self.learn(tid, comm.strip_suffix(b"\n").unwrap_or(&comm)),
            Err(_) => self.read_saved(),
        }
        self.names.get(&tid).map(|known| Arc::clone(&known.name))
    }

    fn learn(&mut self, tid: i32, name: &[u8]) {
        if self.names.len() > MAX_NAMES {
            self.names.clear();
        }
        self.names.insert(tid, TaskName { name: name.into(), at: Instant::now() });
    }

    /// Learns the names of tasks that have gone, unless that was done a moment ago.
    fn read_saved(&mut self) {
        if self.saved_read.is_some_and(|at| at.elapsed() < FRESH) {
            return;
        }
        let text = Instance::saved_cmdlines(&self.tracefs).unwrap_or_default();
        for (tid, name) in saved(&text) {
            self.learn(tid, name.as_bytes());
        }
        self.saved_read = Some(Instant::now());
    }
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

    /// Takes the latest symbol table. Names are found anew when it is another one.
    pub fn refresh(&mut self) {
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

    /// `SYMBOL+0xOFFSET/0xSIZE`, if the address is in the kernel.
    pub fn name(&mut self, address: u64) -> Option<Arc<str>> {
        let facts = self.facts.as_ref();
        self.names
            .entry(address)
            .or_insert_with(|| facts?.symbols.locate(address).map(|located| located.to_string().into()))
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_names_may_hold_blanks() {
        let names: Vec<_> = saved("12 tokio-runtime w\n13 <...>\nx y\n-1 odd\n").collect();
        assert_eq!(names, [(12, "tokio-runtime w"), (-1, "odd")]);
    }
}
