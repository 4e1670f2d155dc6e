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

/// How often `saved_cmdlines` is read at most.
const REFRESH: Duration = Duration::from_millis(100);

/// Names of tasks: from the kernel's `saved_cmdlines`, which also knows tasks that have exited, and from procfs for those that it does
/// not know.
#[derive(Debug)]
pub struct TaskNames {
    tracefs: Tracefs,
    procfs: PathBuf,
    names: HashMap<i32, Arc<[u8]>>,
    refreshed: Option<Instant>,
}

impl TaskNames {
    /// Knows no names yet.
    pub fn new(tracefs: Tracefs, procfs: PathBuf) -> Self {
        Self { tracefs, procfs, names: HashMap::new(), refreshed: None }
    }

    /// Reads what has changed, unless that was done a moment ago.
    pub fn refresh(&mut self) {
        if self.refreshed.is_some_and(|at| at.elapsed() < REFRESH) {
            return;
        }
        self.refreshed = Some(Instant::now());
        if self.names.len() > MAX_NAMES {
            self.names.clear();
        }
        let text = Instance::saved_cmdlines(&self.tracefs).unwrap_or_default();
        for (tid, name) in saved(&text) {
            if self.names.get(&tid).is_none_or(|known| **known != *name.as_bytes()) {
                self.names.insert(tid, name.as_bytes().into());
            }
        }
    }

    /// The name of a task, if anybody knows it.
    pub fn name(&mut self, tid: i32) -> Option<Arc<[u8]>> {
        if tid == 0 {
            return Some(Arc::from(&b"<idle>"[..]));
        }
        if let Some(name) = self.names.get(&tid) {
            return Some(Arc::clone(name));
        }
        let comm = std::fs::read(self.procfs.join(tid.to_string()).join("comm")).ok()?;
        let name: Arc<[u8]> = comm.strip_suffix(b"\n").unwrap_or(&comm).into();
        self.names.insert(tid, Arc::clone(&name));
        Some(name)
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
