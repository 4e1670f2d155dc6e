//! All facts of one kernel, read together and cached until modules change.
//!
//! They take 11 MiB for a kernel with 160,000 symbols (`cargo bench -p kprobed-host --bench memory`).
//! While modules change, the facts before and after the change exist side by side for as long as a
//! check uses the former. Code is not cached: every check reads it.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::fs::DirEntryExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::btf::KernelTypes;
use super::image::tables;
use super::landings::Landings;
use super::text::overlay;
use super::{
    ArmedProbes, Behaviour, Blacklist, BootSites, BuildIds, CALL_SITE_NOP, ImageError, KernelImage,
    KernelText, Livepatches, Located, Optimisation, PatchSites, ReadError, SymbolTable, TextError,
    TraceableFunctions, read_text,
};

/// Mount points of the file systems that the kernel's facts are read from. Real hosts use the
/// defaults; tests give directories of their own.
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
    /// Functions that ftrace can trace.
    pub traceable: TraceableFunctions,
    /// Ranges that kprobes never enter.
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
    /// Where the kernel's own code is, without that of the initialisation, which is gone
    /// (kernel/extable.c:core_kernel_text).
    pub core_text: Range<u64>,
    /// Code bytes.
    pub text: KernelText,
    /// Types. Read when they are requested: up to 6 MiB.
    pub types: KernelTypes,
    /// Which builds of the kernel and of its modules these are.
    pub build_ids: BuildIds,
    /// Where code leads into functions. Searched when a place first needs it.
    pub(super) landings: Landings,
    /// Which modules were loaded when this was read, to see whether they still are: see
    /// [`read_modules`].
    modules: String,
    /// Where the kernel describes its own events; absent for an image.
    tracefs: Option<PathBuf>,
    /// The events of the host, and when they were listed.
    recent_events: Mutex<Option<(Instant, Arc<[String]>)>>,
}

/// How long a list of events is good enough for advice.
const RECENT: Duration = Duration::from_secs(1);

impl KernelFacts {
    /// The types and names of the arguments of a system call, as its event `syscalls/sys_enter_CALL` has them.
    /// Empty if the kernel has no such event. Read anew for each call.
    pub fn system_call_arguments(&self, call: &str) -> Vec<(String, String)> {
        let event = format!("events/syscalls/sys_enter_{call}/format");
        let format = self.tracefs.as_ref().and_then(|tracefs| read_text(&tracefs.join(event)).ok());
        let format = format.unwrap_or_default();
        // `field:unsigned int fd; offset:16; size:8; signed:0;`, after the number of the call.
        let fields = format.lines().skip_while(|line| !line.contains("__syscall_nr;")).skip(1);
        let declarations =
            fields.filter_map(|line| Some(line.trim().strip_prefix("field:")?.split_once(';')?.0));
        let parts = |declaration: &str| {
            let at = declaration.rfind([' ', '*'])?;
            let (ty, name) = declaration.split_at(at + 1);
            Some((ty.trim().to_owned(), name.to_owned()))
        };
        declarations.filter_map(parts).collect()
    }

    /// The events that the kernel brings, as `GROUP/EVENT`, without those of `ftrace`, which have no switch, and
    /// without those that programs have defined: whoever may not see a probe is not told of its event. Absent for an
    /// image, and if they cannot be listed. Read anew for each call.
    pub fn host_events(&self) -> Option<Vec<String>> {
        let tracefs = self.tracefs.as_ref()?;
        let list = read_text(&tracefs.join("available_events")).ok()?;
        let defined = read_text(&tracefs.join("dynamic_events")).ok()?;
        Some(without_defined(&list, &defined))
    }

    /// The same as they were at most a second ago, for advice.
    pub fn recent_host_events(&self) -> Arc<[String]> {
        let mut kept = self.recent_events.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, events)) = &*kept
            && since.elapsed() < RECENT
        {
            return Arc::clone(events);
        }
        let events: Arc<[String]> = self.host_events().unwrap_or_default().into();
        *kept = Some((Instant::now(), Arc::clone(&events)));
        events
    }

    /// Reads everything: about 0.1 s for a kernel with 160,000 symbols.
    ///
    /// # Errors
    /// See [`FactsError`]. A missing blacklist (debugfs not mounted) is not an error: the kernel
    /// still refuses by itself.
    pub fn read(paths: &KernelPaths) -> Result<Self, FactsError> {
        let read = || {
            let modules = read_modules(paths);
            let symbols = SymbolTable::parse(&read_text(&paths.procfs.join("kallsyms"))?)
                .within(|module| extent(&modules, module));
            if symbols.is_empty() {
                return Err(FactsError::HiddenAddresses);
            }
            let text = KernelText::open(&paths.procfs.join("kcore"))?;
            let traceable = read_traceable(&paths.tracefs, &symbols, &text)?;
            let listed = read_text(&paths.debugfs.join("kprobes/blacklist")).unwrap_or_default();
            let blacklist = Blacklist::new(&listed, &symbols);
            let readme = read_text(&paths.tracefs.join("README")).unwrap_or_default();
            let types = KernelTypes::new(&paths.sysfs);
            let modules = paths.sysfs.join("module");
            Ok(Self {
                armed: ArmedProbes::new(&paths.debugfs),
                optimisation: Optimisation::new(&paths.procfs, &symbols),
                build_ids: BuildIds::read(&paths.procfs, &paths.sysfs),
                tracefs: Some(paths.tracefs.clone()),
                ..Self::without_probes(symbols, text, traceable, blacklist, types, &readme, &modules)
            })
        };
        let (modules, facts) = of_one_moment(|| read_modules(paths), read)?;
        Ok(Self { modules, ..facts })
    }

    /// The facts of a kernel that was booted from an image, without modules and probes.
    ///
    /// # Errors
    /// [`ImageError::NoTable`] if the image lacks a table.
    pub fn of_image(image: KernelImage) -> Result<Self, ImageError> {
        let KernelImage { release, readme, symbols, text, .. } = image;
        let traceable = tables::traceable(&text, &symbols)?;
        let blacklist = tables::blacklist(&text, &symbols)?;
        let bytes = |start, end| tables::between(&text, &symbols, start, end).map(|(_, bytes)| bytes);
        let types = KernelTypes::of_image(bytes("__start_BTF", "__stop_BTF"));
        let notes = bytes("__start_notes", "__stop_notes");
        Ok(Self {
            boot_sites: BootSites::read(&text, &symbols),
            build_ids: BuildIds::of_image(&release, notes.as_deref()),
            // An image has no modules.
            ..Self::without_probes(symbols, text, traceable, blacklist, types, &readme, Path::new(""))
        })
    }

    /// What follows from these, for a kernel without probes, and of an unknown build. `modules` is usually
    /// `/sys/module`.
    fn without_probes(
        symbols: SymbolTable,
        text: KernelText,
        traceable: TraceableFunctions,
        blacklist: Blacklist,
        types: KernelTypes,
        readme: &str,
        modules: &Path,
    ) -> Self {
        Self {
            traceable,
            blacklist,
            patch_sites: PatchSites::read(&text, &symbols, modules),
            boot_sites: BootSites::default(),
            armed: ArmedProbes::none(),
            behaviour: Behaviour::detect(&symbols, readme),
            optimisation: Optimisation::predicted(&symbols),
            core_text: core_text(&symbols),
            symbols,
            text,
            types,
            build_ids: BuildIds::default(),
            landings: Landings::default(),
            modules: String::new(),
            tracefs: None,
            recent_events: Mutex::default(),
        }
    }

    /// The symbol that an address lies in, unless that is only the last one before it: behind the symbols of
    /// a module may be memory of another one that is gone, and that has no symbols any more.
    pub fn name_of(&self, address: u64) -> Option<Located<'_>> {
        let located = self.symbols.locate(address)?;
        let Some(module) = located.symbol.module.filter(|module| self.symbols.has_module(module)) else {
            return Some(located);
        };
        let behind = located.symbol.address.saturating_add(located.size);
        let goes_on = self
            .symbols
            .locate(behind)
            .is_some_and(|next| next.offset == 0 && next.symbol.module == Some(module));
        let is_its_code = || located.symbol.is_code() && extent(&self.modules, module).contains(&address);
        (goes_on || is_its_code()).then_some(located)
    }

    /// Code from `start` on, `length` bytes or as many as can be read, as the kernel's own checks
    /// see it: with the NOP at ftrace call sites, and without what kprobes have put into it
    /// (arch/x86/kernel/kprobes/core.c:__recover_probed_insn). In the code of an image,
    /// [`KernelFacts::boot_sites`] hold what is likeliest to be there after boot, and code of the
    /// initialisation is gone (arch/x86/mm/init.c:free_initmem).
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
            overlay(&mut code, start, site, &CALL_SITE_NOP);
        }
        code
    }
}

/// The events of `available_events` that `dynamic_events` does not define.
fn without_defined(available: &str, dynamic: &str) -> Vec<String> {
    let name = |line: &str| {
        let (_, name) = line.split_ascii_whitespace().next()?.split_once(':')?;
        // A synthetic event is listed without its group (kernel/trace/trace_events_synth.c: __synth_event_show).
        Some(if name.contains('/') { name.to_owned() } else { format!("synthetic/{name}") })
    };
    let defined: HashSet<String> = dynamic.lines().filter_map(name).collect();
    let events = available.lines().filter(|line| !line.starts_with("ftrace:"));
    events.map(|line| line.replacen(':', "/", 1)).filter(|event| !defined.contains(event)).collect()
}

/// From the first byte of code to the end of what stays after boot.
fn core_text(symbols: &SymbolTable) -> Range<u64> {
    symbols.address("_stext").unwrap_or(0)..symbols.address("_etext").unwrap_or(u64::MAX)
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

/// Most readings of facts while modules come and go, and the pause before another one.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// Repeats a reading until the modules are the same before and after it: symbols of a module whose
/// functions were not yet listed as traceable would make a refusal of what works. Returns the modules
/// as they were. If they never stay the same, these are of no moment, and the next look reads again.
fn of_one_moment<T>(
    modules: impl Fn() -> String,
    mut read: impl FnMut() -> Result<T, FactsError>,
) -> Result<(String, T), FactsError> {
    for _ in 1..TRIES {
        let before = modules();
        // The kernel lists a module before it has prepared it.
        if is_changing(&before) {
            std::thread::sleep(PAUSE);
        }
        let found = read()?;
        if modules() == before {
            return Ok((before, found));
        }
    }
    Ok((String::new(), read()?))
}

/// Whether a module is being loaded or unloaded.
fn is_changing(modules: &str) -> bool {
    modules.lines().any(|line| line.split(' ').nth(STATE).is_some_and(|state| state != LIVE))
}

/// Where the identity of a module has its state, and that of one that is loaded
/// (kernel/module/procfs.c: m_show).
const STATE: usize = 3;
const LIVE: &str = "Live";

/// The addresses of a module's code: they begin where the kernel says, and are not more than all of the
/// module has. Empty if it is not known.
fn extent(modules: &str, module: &str) -> Range<u64> {
    let of_module = |line: &&str| line.split_once(' ').is_some_and(|(name, _)| name == module);
    let read = || {
        let mut words = modules.lines().find(of_module)?.split(' ').skip(1);
        let bytes: u64 = words.next()?.parse().ok()?;
        let start = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        Some(start..start.saturating_add(bytes))
    };
    read().unwrap_or_default()
}

/// Identity of the loaded modules: name, size, address, state, and the number of their directory in sysfs.
/// Another build that is loaded at once often has the size and the address of the one before; its
/// directory is a new one, and gets another number (fs/kernfs/dir.c: __kernfs_new_node counts them
/// up).
fn read_modules(paths: &KernelPaths) -> String {
    // A kernel without module support has no such file, and then nothing changes.
    let text = read_text(&paths.procfs.join("modules")).unwrap_or_default();
    let entries = std::fs::read_dir(paths.sysfs.join("module")).into_iter().flatten().filter_map(Result::ok);
    let numbers: HashMap<_, _> = entries.map(|entry| (entry.file_name(), entry.ino())).collect();
    // The reference count changes all the time.
    let identity = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let number =
            words.first().and_then(|name| numbers.get(OsStr::new(name))).copied().unwrap_or_default();
        let [name, bytes, address, state] = [0, 1, 5, 4].map(|at| words.get(at).copied().unwrap_or_default());
        format!("{name} {bytes} {address} {state} {number}")
    };
    text.lines().map(identity).collect::<Vec<_>>().join("\n")
}

/// Holds the last reading, and makes a new one when modules have come or gone.
#[derive(Debug)]
pub struct FactsCache {
    source: Source,
    last: Mutex<Option<Arc<KernelFacts>>>,
}

/// The kernel that the facts are of.
#[derive(Debug)]
enum Source {
    Running(KernelPaths),
    /// An image, whose facts never change.
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

    /// The facts as they are now. Costs a look at `/proc/modules` and `/sys/module` when nothing
    /// has changed.
    ///
    /// # Errors
    /// As [`KernelFacts::read`]; none for an image.
    pub fn current(&self) -> Result<Arc<KernelFacts>, FactsError> {
        let paths = match &self.source {
            Source::Running(paths) => paths,
            Source::Image(facts) => return Ok(Arc::clone(facts)),
        };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(facts) = last.as_ref().filter(|facts| facts.modules == read_modules(paths)) {
            return Ok(Arc::clone(facts));
        }
        // The kernel's own types and landings stay what they are.
        let mut facts = KernelFacts::read(paths)?;
        if let Some(before) = last.as_ref() {
            (facts.types, facts.landings) =
                (before.types.without_modules(), before.landings.without_modules());
        }
        let facts = Arc::new(facts);
        *last = Some(Arc::clone(&facts));
        Ok(facts)
    }

    /// The livepatches of the running kernel as they are now: none for an image.
    pub fn livepatches(&self) -> Livepatches {
        match &self.source {
            Source::Running(paths) => Livepatches::read(&paths.sysfs),
            Source::Image(_) => Livepatches::default(),
        }
    }

    /// The facts of the last reading, if there was one: good enough to name an address.
    pub fn last(&self) -> Option<Arc<KernelFacts>> {
        if let Source::Image(facts) = &self.source {
            return Some(Arc::clone(facts));
        }
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How old facts may be: modules come and go, and others place probes, at any time; a thousand
/// checks in a row shall not look a thousand times.
pub(super) const FRESH_FOR: Duration = Duration::from_millis(100);

/// The facts of the running kernel as they were at most 100 ms ago. A check that needs them as they are now uses
/// [`FactsCache`].
#[derive(Debug)]
pub struct RecentFacts<'a> {
    cache: &'a FactsCache,
    last: Option<(Instant, Arc<KernelFacts>)>,
}

impl<'a> RecentFacts<'a> {
    /// Looks at nothing yet.
    pub fn new(cache: &'a FactsCache) -> Self {
        Self { cache, last: None }
    }

    /// The facts: the same as last time, or looked at anew when that was too long ago.
    ///
    /// # Errors
    /// As [`KernelFacts::read`].
    pub fn get(&mut self) -> Result<Arc<KernelFacts>, FactsError> {
        let now = Instant::now();
        if let Some((looked, facts)) = &self.last
            && now.duration_since(*looked) < FRESH_FOR
        {
            return Ok(Arc::clone(facts));
        }
        let facts = self.cache.current()?;
        self.last = Some((now, Arc::clone(&facts)));
        Ok(facts)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn paths(root: &Path) -> KernelPaths {
        let at = |name: &str| root.join(name);
        KernelPaths { procfs: at("proc"), sysfs: at("sys"), debugfs: at("debug"), tracefs: at("tracing") }
    }

    #[test]
    fn events_that_programs_define_are_not_listed() {
        let available =
            "sched:sched_switch\nftrace:function\nkprobes:secret\nmine:out\nsynthetic:lat\nprobe:x\n";
        let dynamic =
            "p:kprobes/secret vfs_read a=%di\nr16:mine/out vfs_read\ns:lat u64 d\ne:other/x a.b c=$d:u8\n";
        assert_eq!(without_defined(available, dynamic), ["sched/sched_switch", "probe/x"]);
    }

    #[test]
    fn a_module_that_comes_back_is_another_one() {
        let root = tempfile::tempdir().unwrap();
        let paths = paths(root.path());
        fs::create_dir_all(&paths.procfs).unwrap();
        fs::create_dir_all(paths.sysfs.join("module/twin")).unwrap();
        let list = |count| {
            fs::write(paths.procfs.join("modules"), format!("twin 16384 {count} - Live 0xffffffffc0000000\n"))
        };
        list(0).unwrap();
        let before = read_modules(&paths);
        list(3).unwrap();
        assert_eq!(read_modules(&paths), before, "it is only used more");
        // The same name, size and address. The old directory stays until the new one is there: its
        // number is not given away.
        fs::rename(paths.sysfs.join("module/twin"), paths.sysfs.join("gone")).unwrap();
        fs::create_dir(paths.sysfs.join("module/twin")).unwrap();
        assert_ne!(read_modules(&paths), before);
    }

    #[test]
    fn a_module_that_is_loading_is_another_one_later() {
        let root = tempfile::tempdir().unwrap();
        let paths = paths(root.path());
        fs::create_dir_all(&paths.procfs).unwrap();
        let list = |state| {
            fs::write(paths.procfs.join("modules"), format!("veth 16384 0 - {state} 0xffffffffc0000000\n"))
        };
        list("Loading").unwrap();
        let loading = read_modules(&paths);
        assert!(is_changing(&loading));
        list("Live").unwrap();
        let live = read_modules(&paths);
        assert!(!is_changing(&live) && live != loading);
        assert_eq!(extent(&live, "veth"), 0xffff_ffff_c000_0000..0xffff_ffff_c000_4000);
        assert!(extent(&live, "vet").is_empty() && extent("", "veth").is_empty());
    }

    #[test]
    fn facts_are_of_one_moment() {
        // A module comes while the first reading is made.
        let loaded = std::cell::Cell::new(0);
        let modules = || format!("{}\n", "a 1 0x1 Live 7 ".repeat(loaded.get()));
        let mut readings = 0;
        let read = || {
            readings += 1;
            loaded.set(1);
            Ok(readings)
        };
        assert_eq!(of_one_moment(modules, read).unwrap(), ("a 1 0x1 Live 7 \n".to_owned(), 2));
        // They come and go all the time: what was read is used, and is not kept for another check.
        let (modules, ()) = of_one_moment(
            || format!("{}", loaded.get()),
            || {
                loaded.set(loaded.get() + 1);
                Ok(())
            },
        )
        .unwrap();
        assert_eq!((modules.as_str(), loaded.get()), ("", 6));
    }

    proptest! {
        #[test]
        fn any_list_is_survived(text: String) {
            let root = tempfile::tempdir().unwrap();
            let paths = paths(root.path());
            fs::create_dir_all(&paths.procfs).unwrap();
            fs::write(paths.procfs.join("modules"), &text).unwrap();
            prop_assert_eq!(read_modules(&paths).lines().count(), text.lines().count());
        }
    }
}
