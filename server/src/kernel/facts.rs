//! All facts together, read once and kept until modules change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;

use super::{Blacklist, KernelText, ReadError, SymbolTable, TextError, TraceableFunctions, read_text};

/// Where the kernel shows itself. Real hosts use the defaults; tests give directories of their own.
#[derive(Clone, Debug)]
pub struct KernelPaths {
    /// Usually `/proc`.
    pub procfs: PathBuf,
    /// Usually `/sys/kernel/debug`.
    pub debugfs: PathBuf,
    /// Where tracefs is mounted.
    pub tracefs: PathBuf,
}

/// Why the facts are not known.
#[derive(Debug, Error)]
pub enum FactsError {
    /// A file could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Kernel memory could not be read.
    #[error(transparent)]
    Text(#[from] TextError),
    /// Every address in kallsyms is 0.
    #[error("the kernel hides its symbol addresses (`kernel.kptr_restrict` is 2, or CAP_SYSLOG is missing)")]
    HiddenAddresses,
}

/// One consistent reading of the facts.
#[derive(Debug)]
pub struct KernelFacts {
    /// Names and addresses.
    pub symbols: SymbolTable,
    /// Where ftrace can trace.
    pub traceable: TraceableFunctions,
    /// Where kprobes never go.
    pub blacklist: Blacklist,
    /// Code bytes.
    pub text: KernelText,
    /// What `/proc/modules` said when this was read, to see whether it is still true.
    modules: String,
}

impl KernelFacts {
    /// Reads everything: about 0.1 s and 5 MiB for a kernel with 160,000 symbols.
    ///
    /// # Errors
    /// See [`FactsError`]. A missing blacklist (debugfs not mounted) is not an error: the kernel still refuses by itself.
    pub fn read(paths: &KernelPaths) -> Result<Self, FactsError> {
        let modules = read_modules(&paths.procfs);
        let symbols = SymbolTable::parse(&read_text(&paths.procfs.join("kallsyms"))?);
        if symbols.is_empty() {
            return Err(FactsError::HiddenAddresses);
        }
        let traceable = match read_text(&paths.tracefs.join("available_filter_functions_addrs")) {
            Ok(text) => TraceableFunctions::from_call_sites(&text),
            Err(_) => TraceableFunctions::from_names(
                &read_text(&paths.tracefs.join("available_filter_functions"))?,
                &symbols,
            ),
        };
        let blacklist = read_text(&paths.debugfs.join("kprobes/blacklist"))
            .map(|text| Blacklist::parse(&text))
            .unwrap_or_default();
        let text = KernelText::open(&paths.procfs.join("kcore"))?;
        Ok(Self { symbols, traceable, blacklist, text, modules })
    }
}

fn read_modules(procfs: &Path) -> String {
    // A kernel without module support has no such file, and then nothing changes.
    let text = read_text(&procfs.join("modules")).unwrap_or_default();
    // Only name, size and address count: the reference count changes all the time.
    let identity = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        [words.first(), words.get(1), words.get(5)]
            .into_iter()
            .flatten()
            .copied()
            .collect::<Vec<_>>()
            .join(" ")
    };
    text.lines().map(identity).collect::<Vec<_>>().join("\n")
}

/// Holds the last reading, and makes a new one when modules have come or gone.
#[derive(Debug)]
pub struct FactsCache {
    paths: KernelPaths,
    last: Mutex<Option<Arc<KernelFacts>>>,
}

impl FactsCache {
    /// Reads nothing yet.
    pub fn new(paths: KernelPaths) -> Self {
        Self { paths, last: Mutex::new(None) }
    }

    /// The facts as they are now. Costs a look at `/proc/modules` when nothing has changed.
    ///
    /// # Errors
    /// As [`KernelFacts::read`].
    pub fn current(&self) -> Result<Arc<KernelFacts>, FactsError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(facts) = last.as_ref().filter(|facts| facts.modules == read_modules(&self.paths.procfs)) {
            return Ok(Arc::clone(facts));
        }
        let facts = Arc::new(KernelFacts::read(&self.paths)?);
        *last = Some(Arc::clone(&facts));
        Ok(facts)
    }

    /// The facts of the last reading, if there was one: good enough to name an address.
    pub fn last(&self) -> Option<Arc<KernelFacts>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
