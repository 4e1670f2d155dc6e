//! All facts together, read once and kept until modules change.
//!
//! They take 11 MiB for a kernel with 160,000 symbols, and 7 MiB more once somebody has asked for a symbol that does not exist and an index
//! of names was made (`cargo bench -p kprobed --bench memory`). While modules change, the facts before and after the change are held both, for
//! as long as a check uses the former. Code is not kept: it is read for every check.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;

use super::btf::KernelTypes;
use super::{
    ArmedProbes, Behaviour, Blacklist, BootSites, BuildIds, CALL_SITE_NOP, ImageError, KernelImage,
    KernelText, Optimisation, PatchSites, ReadError, SymbolTable, TextError, TraceableFunctions, read_text,
};

/// Where the kernel shows itself. Real hosts use the defaults; tests give directories of their own.
#[derive(Clone, Debug)]
pub struct KernelPaths {
    /// Usually `/proc`.
    pub procfs: PathBuf,
    /// Usually `/sys`.
    pub sysfs: PathBuf,
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
    /// Code that the kernel rewrites by itself.
    pub patch_sites: PatchSites,
    /// Code that boot may yet rewrite: none for a kernel that runs.
    pub boot_sites: BootSites,
    /// Probes that exist already, and what they have done to the code.
    pub armed: ArmedProbes,
    /// How this kernel goes about its checks.
    pub behaviour: Behaviour,
    /// When it makes jumps of breakpoints.
    pub optimisation: Optimisation,
    /// Where the kernel's own code is, without that of the initialisation, which is gone (kernel/extable.c:core_kernel_text).
    pub core_text: Range<u64>,
    /// Code bytes.
    pub text: KernelText,
    /// Types. Read when they are asked for: up to 6 MiB.
    pub types: KernelTypes,
    /// Which builds of the kernel and of its modules these are.
    pub build_ids: BuildIds,
    /// What `/proc/modules` said when this was read, to see whether it is still true.
    modules: String,
}

impl KernelFacts {
    /// Reads everything: about 0.1 s for a kernel with 160,000 symbols.
    ///
    /// # Errors
    /// See [`FactsError`]. A missing blacklist (debugfs not mounted) is not an error: the kernel still refuses by itself.
    pub fn read(paths: &KernelPaths) -> Result<Self, FactsError> {
        Self::read_with(paths, KernelTypes::new(&paths.sysfs))
    }

    /// The same with types that may have been read before.
    fn read_with(paths: &KernelPaths, types: KernelTypes) -> Result<Self, FactsError> {
        let modules = read_modules(&paths.procfs);
        let symbols = SymbolTable::parse(&read_text(&paths.procfs.join("kallsyms"))?);
        if symbols.is_empty() {
            return Err(FactsError::HiddenAddresses);
        }
        let text = KernelText::open(&paths.procfs.join("kcore"))?;
        let traceable = read_traceable(&paths.tracefs, &symbols, &text)?;
        let listed = read_text(&paths.debugfs.join("kprobes/blacklist")).unwrap_or_default();
        let blacklist = Blacklist::new(&listed, &symbols);
        let patch_sites = PatchSites::read(&text, &symbols, &paths.sysfs.join("module"));
        let readme = read_text(&paths.tracefs.join("README")).unwrap_or_default();
        let behaviour = Behaviour::detect(&symbols, &readme);
        let armed = ArmedProbes::new(&paths.debugfs);
        let optimisation = Optimisation::new(&paths.procfs, &symbols);
        let core_text = core_text(&symbols);
        Ok(Self {
            symbols,
            traceable,
            blacklist,
            patch_sites,
            boot_sites: BootSites::default(),
            armed,
            behaviour,
            optimisation,
            core_text,
            text,
            types,
            build_ids: BuildIds::read(&paths.procfs, &paths.sysfs),
            modules,
        })
    }

    /// What would be read in a kernel that was booted from an image, without modules and probes.
    ///
    /// # Errors
    /// [`ImageError::NoTable`] where the image does not say what the kernel would.
    pub fn of_image(image: KernelImage) -> Result<Self, ImageError> {
        let traceable = image.traceable()?;
        let blacklist = image.blacklist()?;
        let types = KernelTypes::of_image(image.types());
        let build_ids = BuildIds::of_image(&image.release, image.notes().as_deref());
        let KernelImage { readme, symbols, text, .. } = image;
        let patch_sites = PatchSites::of_kernel(&text, &symbols);
        let boot_sites = BootSites::read(&text, &symbols);
        let behaviour = Behaviour::detect(&symbols, &readme);
        let optimisation = Optimisation::predicted(&symbols);
        let core_text = core_text(&symbols);
        Ok(Self {
            symbols,
            traceable,
            blacklist,
            patch_sites,
            boot_sites,
            armed: ArmedProbes::none(),
            behaviour,
            optimisation,
            core_text,
            text,
            types,
            build_ids,
            modules: String::new(),
        })
    }

    /// Code from `start` on, `length` bytes or as many as can be read, as the kernel's own checks see it: with the NOP at ftrace call
    /// sites, and without what kprobes have put into it (arch/x86/kernel/kprobes/core.c:__recover_probed_insn). In the code of an image,
    /// [`KernelFacts::boot_sites`] hold what is likeliest to be there after boot, and code of the initialisation is gone
    /// (arch/x86/mm/init.c:free_initmem).
    pub fn code(&self, start: u64, length: usize) -> Vec<u8> {
        if self.text.is_image() && !self.core_text.contains(&start) {
            return Vec::new();
        }
        let read = || {
            let mut code = self.text.read_up_to(start, length).unwrap_or_default();
            self.boot_sites.foresee(start, &mut code, &self.text, &self.symbols);
            code
        };
        let mut code = self.armed.without_patches(start, read, (&self.text, &self.core_text), &self.symbols);
        for site in self.traceable.overlapping(start, code.len() as u64) {
            for (address, byte) in (site..).zip(CALL_SITE_NOP) {
                let at = address.checked_sub(start).and_then(|offset| usize::try_from(offset).ok());
                if let Some(patched) = at.and_then(|offset| code.get_mut(offset)) {
                    *patched = byte;
                }
            }
        }
        code
    }
}

/// From the first byte of code to behind the last that stays after boot.
fn core_text(symbols: &SymbolTable) -> Range<u64> {
    let end = |name, otherwise| symbols.lookup(name, None).map_or(otherwise, |symbol| symbol.address);
    end("_stext", 0)..end("_etext", u64::MAX)
}

fn read_traceable(
    tracefs: &Path,
    symbols: &SymbolTable,
    text: &KernelText,
) -> Result<TraceableFunctions, FactsError> {
    if let Ok(list) = read_text(&tracefs.join("available_filter_functions_addrs")) {
        return Ok(TraceableFunctions::from_call_sites(&list));
    }
    let list = read_text(&tracefs.join("available_filter_functions"))?;
    let mut reader = text.in_order();
    Ok(TraceableFunctions::from_names(&list, symbols, &mut |address| reader.array_at(address)))
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
    source: Source,
    last: Mutex<Option<Arc<KernelFacts>>>,
}

/// Whose facts they are.
#[derive(Debug)]
enum Source {
    Running(KernelPaths),
    /// They never change.
    Image(Arc<KernelFacts>),
}

impl FactsCache {
    /// Of the running kernel. Reads nothing yet.
    pub fn new(paths: KernelPaths) -> Self {
        Self { source: Source::Running(paths), last: Mutex::new(None) }
    }

    /// Of a kernel that was not booted.
    pub fn of_image(facts: KernelFacts) -> Self {
        Self { source: Source::Image(Arc::new(facts)), last: Mutex::new(None) }
    }

    /// The facts as they are now. Costs a look at `/proc/modules` when nothing has changed.
    ///
    /// # Errors
    /// As [`KernelFacts::read`]; none for an image.
    pub fn current(&self) -> Result<Arc<KernelFacts>, FactsError> {
        let paths = match &self.source {
            Source::Running(paths) => paths,
            Source::Image(facts) => return Ok(Arc::clone(facts)),
        };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(facts) = last.as_ref().filter(|facts| facts.modules == read_modules(&paths.procfs)) {
            return Ok(Arc::clone(facts));
        }
        // The kernel's own types stay what they are.
        let types = last
            .as_ref()
            .map_or_else(|| KernelTypes::new(&paths.sysfs), |facts| facts.types.without_modules());
        let facts = Arc::new(KernelFacts::read_with(paths, types)?);
        *last = Some(Arc::clone(&facts));
        Ok(facts)
    }

    /// The facts of the last reading, if there was one: good enough to name an address.
    pub fn last(&self) -> Option<Arc<KernelFacts>> {
        if let Source::Image(facts) = &self.source {
            return Some(Arc::clone(facts));
        }
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
