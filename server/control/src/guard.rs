//! Meaning guard: whether a definition records on this build of kernel and module what it was made
//! for, and whether a place in a module that was not loaded before is one that this daemon refuses.
//!
//! Owns when that is compared, and what is decided and said about a difference. What a definition
//! means is for [`kprobed_verdict::meaning`]. Never arms a probe or removes one.

use std::sync::Arc;

use super::footprint::Footprint;
use super::permission;
use super::probe::{Probe, ProbeState, Trouble};
use crate::auth::Rights;
use kprobed_host::kernel::{BuildIds, KernelFacts, RecentFacts};
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::KernelChange;
use kprobed_proto::v1::MeaningChange;
use kprobed_verdict::checker::{CheckOutcome, Checker};
use kprobed_verdict::meaning::{Build, Difference, DifferenceKind, Meaning, compare, meaning_change};

/// What the definition of a probe meant on the build that it was made for, and how that has
/// changed.
#[derive(Clone, Debug, Default)]
pub struct Guarded {
    /// On the build that it was made for, or accepted on. Absent if that is not known.
    meaning: Option<Arc<Meaning>>,
    /// The module as the last look found it: see [`module_now`].
    seen: Option<String>,
    /// What differs on the running kernel. Absent if nothing does.
    pub change: Option<Arc<MeaningChange>>,
}

/// A probe as it is now, or why it must not be in the kernel.
pub(super) type Compared = Result<Probe, Box<Held>>;

/// A definition that must not be in the kernel.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) trouble: Trouble,
    pub(super) guarded: Guarded,
    /// Where the place lies now: rules are compared with that.
    footprint: Footprint,
}

impl Held {
    /// The probe as it is now.
    pub(super) fn hold(self, probe: Probe) -> Probe {
        if self.trouble.waits_for_module() {
            tracing::info!(probe = %probe.name, reason = self.trouble.reason, "holds a probe back");
        } else {
            tracing::warn!(probe = %probe.name, reason = self.trouble.reason, "holds a probe back");
        }
        let Self { trouble, guarded, footprint } = self;
        Probe {
            state: ProbeState::HeldBack(trouble),
            footprint,
            own: None,
            schema: None,
            ..probe.guarded(guarded)
        }
    }

    /// A probe that is in the kernel, without its module, or with one that it was not compared with.
    /// `is_loaded`: whether that module is loaded.
    pub(super) fn without_module(probe: &Probe, module: &str, is_loaded: bool) -> Self {
        let guarded = Guarded { seen: None, ..probe.guarded.clone() };
        let trouble = if is_loaded {
            Trouble {
                code: DifferenceKind::Unknown.code(),
                reason: format!(
                    "module `{module}` was loaded as another build, with which it is compared first"
                ),
                hint: "the daemon compares them automatically".to_owned(),
            }
        } else {
            Trouble::module_absent(module, &probe.warnings)
        };
        Self { trouble, guarded, footprint: probe.footprint.clone() }
    }
}

/// Identity of the loaded module of that name: its build id, or empty if it has none. Absent if it
/// is not loaded.
pub(super) fn module_now(name: &str, facts: &KernelFacts) -> Option<String> {
    facts.symbols.has_module(name).then(|| facts.build_ids.module(name).unwrap_or_default())
}

impl Guarded {
    /// The meaning of a definition from now on.
    pub(super) fn new(meaning: Meaning) -> Self {
        Self::of_stored(Some(Arc::new(meaning)))
    }

    /// A meaning that was stored, before it is compared.
    pub(super) fn of_stored(meaning: Option<Arc<Meaning>>) -> Self {
        let complete = meaning.as_ref().filter(|meaning| meaning.complete);
        let seen = complete.and_then(|meaning| meaning.module.as_ref()?.id.clone());
        Self { meaning, seen, change: None }
    }

    /// As it is stored.
    pub(super) fn meaning(&self) -> Option<Arc<Meaning>> {
        self.meaning.clone()
    }

    /// The module that the place is in.
    pub(super) fn module(&self) -> Option<&str> {
        Some(&self.meaning.as_ref()?.module.as_ref()?.name)
    }

    /// Whether another build of its module is loaded than at the last look, or none any more.
    pub(super) fn has_another_module(&self, facts: &KernelFacts) -> bool {
        self.module().and_then(|module| module_now(module, facts)) != self.seen
    }

    /// Whether its module is loaded as another build than at the last look, as far as its build id shows.
    pub(super) fn is_of_other_build(&self, builds: &BuildIds) -> bool {
        let (Some(module), Some(seen)) = (self.module(), &self.seen) else { return false };
        builds.module(module).is_some_and(|now| now != *seen)
    }

    /// Whether its place was written as an address.
    pub(super) fn is_by_address(&self) -> bool {
        self.meaning.as_ref().is_some_and(|meaning| meaning.by_address)
    }

    /// Whether kernel and module are the builds that it was made for.
    fn is_at_home(&self, facts: &KernelFacts) -> bool {
        let Some(meaning) = self.meaning.as_ref().filter(|meaning| meaning.complete) else { return false };
        let ids = &facts.build_ids;
        let same_module = |module: &Build| module.id.is_some() && module.id == ids.module(&module.name);
        meaning.kernel.id.as_deref() == ids.kernel()
            && meaning.kernel.id.is_some()
            && meaning.module.as_ref().is_none_or(same_module)
    }

    fn with(&self, change: Option<MeaningChange>, facts: &KernelFacts) -> Self {
        // Of its own module, also if the place lies in another one now: that is what the next look is compared with.
        let seen = self.module().and_then(|module| module_now(module, facts));
        Self { meaning: self.meaning.clone(), seen, change: change.map(Arc::new) }
    }
}

/// Whether a probe may be armed on the running kernel, as far as its meaning is concerned, and the objections
/// of this daemon to a place in a module. While the module is not loaded, it must not be in the kernel. A place
/// that is resolved for the first time, or anew, is judged by the roles of who made the probe. Checks nothing
/// else.
pub(super) fn look(
    checker: &Checker,
    rights: &Rights,
    probe: &Probe,
    facts: &mut RecentFacts<'_>,
) -> Result<Guarded, Box<Held>> {
    // If facts or definition cannot be read, the probe cannot be armed either, and that check
    // reports it.
    let clear = || Ok(Guarded { change: None, ..probe.guarded.clone() });
    if probe.kind == ProbeKind::Event {
        // It records the event of its name, whatever the kernel is.
        return clear();
    }
    // The kernel is at another address after each boot.
    let is_named = probe.guarded.module().is_none() && !probe.guarded.is_by_address();
    if is_named && facts.get().is_ok_and(|facts| probe.guarded.is_at_home(&facts)) {
        return clear();
    }
    let Ok(outcome) = checker.check_text(&probe.spec.definition, facts) else { return clear() };
    let guarded = look_at((checker, rights), probe, &outcome, facts)?;
    let Some(module) = absent_module(probe, &outcome, facts) else { return Ok(guarded) };
    let trouble = Trouble::module_absent(&module, &outcome.definition.warnings);
    Err(Box::new(Held { trouble, guarded, footprint: Footprint::of(&outcome) }))
}

/// The module that a probe waits for. A place that was written without its module is refused while that is not loaded.
fn absent_module(probe: &Probe, outcome: &CheckOutcome, facts: &mut RecentFacts<'_>) -> Option<String> {
    let report = &outcome.report;
    let unnamed = || {
        let module = probe.guarded.module().filter(|_| report.refusal.is_some())?;
        module_now(module, &*facts.get().ok()?).is_none().then(|| module.to_owned())
    };
    report.absent_module.clone().or_else(unnamed)
}

/// A probe with the place that it has now, in a module that may just have been loaded; or why the kernel
/// would not arm it with this build of the module.
pub(super) fn placed(checker: &Checker, probe: Probe, facts: &mut RecentFacts<'_>) -> Compared {
    let Ok(outcome) = checker.check_text(&probe.spec.definition, facts) else { return Ok(probe) };
    if let Some(refusal) = &outcome.report.refusal {
        let trouble = Trouble::found(refusal.clone().or_hint(|| outcome.nearest().hint()));
        let footprint = Footprint::of(&outcome);
        return Err(Box::new(Held { trouble, guarded: probe.guarded, footprint }));
    }
    Ok(probe.resolved(&outcome))
}

/// Like [`look`], for a definition that was checked.
fn look_at(
    (checker, rights): (&Checker, &Rights),
    probe: &Probe,
    outcome: &CheckOutcome,
    recent: &mut RecentFacts<'_>,
) -> Result<Guarded, Box<Held>> {
    let guarded = &probe.guarded;
    let Ok(facts) = recent.get() else { return Ok(guarded.clone()) };
    let now = outcome.meaning();
    let is_in_module = now.module.is_some() && outcome.report.absent_module.is_none();
    let footprint = Footprint::of(outcome);
    let held = |trouble| {
        let (guarded, footprint) = (guarded.with(None, &facts), footprint.clone());
        Box::new(Held { trouble, guarded, footprint })
    };
    let allowed = || {
        let denied = permission::denied_to_maker(rights, probe, &footprint);
        denied.map_or(Ok(()), |trouble| Err(held(trouble)))
    };
    if let Some(objection) = outcome.report.objection.as_ref().filter(|_| is_in_module) {
        let trouble = Trouble::found(objection.clone().or_hint(|| outcome.nearest().hint()));
        return Err(held(trouble));
    }
    let clear = || Ok(guarded.with(None, &facts));
    let holds = probe.spec.metadata.on_kernel_change == KernelChange::Hold;
    let Some(before) = guarded.meaning.as_deref() else {
        allowed()?;
        if !now.is_raw() {
            return Ok(Guarded::new(now));
        }
        return decide(probe, None, &now, (vec![not_written_down()], None), (&facts, &footprint));
    };
    if before.is_of_same_build(&now) {
        return clear();
    }
    if is_in_module {
        allowed()?;
    }
    if !before.complete && now.complete && before.kernel.is(&now.kernel) {
        // Its module was not loaded when it was made: this is the first build that it meets.
        return Ok(Guarded::new(now));
    }
    if let Some(trouble) = gone(before, &now).filter(|_| holds) {
        return Err(held(trouble));
    }
    if !now.complete {
        return clear();
    }
    let differences = compare(before, &now);
    if differences.is_empty() {
        return clear();
    }
    allowed()?;
    let offered = checker.offered((probe.name.group(), probe.name.event()), before, outcome, recent);
    decide(probe, Some(before), &now, (differences, offered), (&facts, &footprint))
}

/// `offered`: the line as which it records here what it was made for.
fn decide(
    probe: &Probe,
    before: Option<&Meaning>,
    now: &Meaning,
    (differences, offered): (Vec<Difference>, Option<String>),
    (facts, footprint): (&KernelFacts, &Footprint),
) -> Result<Guarded, Box<Held>> {
    let mut trouble = trouble(probe, before, &differences);
    if let Some(line) = &offered {
        trouble.hint = format!("as `{line}` it records here what it was made for; {}", trouble.hint);
    }
    let change = meaning_change(before, now, differences, offered);
    let guarded = probe.guarded.with(Some(change), facts);
    match probe.spec.metadata.on_kernel_change {
        KernelChange::Hold => {
            let footprint = footprint.clone();
            Err(Box::new(Held { trouble, guarded, footprint }))
        }
        KernelChange::ArmAnyway => {
            tracing::warn!(probe = %probe.name, reason = trouble.reason, "arms a probe all the same");
            Ok(guarded)
        }
    }
}

fn not_written_down() -> Difference {
    Difference {
        kind: DifferenceKind::Unknown,
        argument: String::new(),
        message: "what it recorded when it was made was not written down".to_owned(),
        before: String::new(),
        after: String::new(),
    }
}

/// Why nothing can be armed at an address, which was that of a function.
fn gone(before: &Meaning, now: &Meaning) -> Option<Trouble> {
    (before.by_address && before.complete && !now.complete).then(|| Trouble {
        code: DifferenceKind::Place.code(),
        reason: format!(
            "its address was `{}`, and is not in a function now: the kernel is at another address after each boot, \
             and a module each time that it is loaded",
            before.location
        ),
        hint: name_instead(before),
    })
}

/// What to write instead of an address.
fn name_instead(before: &Meaning) -> String {
    format!("write `{}` instead of the address, and `kprobectl apply` the definition", before.location)
}

fn trouble(probe: &Probe, before: Option<&Meaning>, differences: &[Difference]) -> Trouble {
    let first = differences.first();
    let message = first.map_or("", |first| first.message.as_str());
    let more = match differences.len() {
        0 | 1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    let made = before.map_or_else(String::new, |before| format!("made for kernel {}: ", before.kernel.name));
    let both = format!(
        "`kprobectl get {0}` shows both sides, `kprobectl update {0} --accept` arms it as it is",
        probe.name
    );
    let moved = before.filter(|before| before.by_address);
    let hint = moved.map_or_else(|| both.clone(), |before| format!("{}; {both}", name_instead(before)));
    Trouble {
        code: first.map_or(DifferenceKind::Unknown, |first| first.kind).code(),
        reason: format!("{made}{message}{more}"),
        hint,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs;

    use super::*;
    use crate::CreateRequest;
    use crate::auth::AuditQueue;
    use crate::samples::made_by;
    use crate::samples::probe;
    use kprobed_host::kernel::{FactsCache, KernelPaths};
    use kprobed_host::samples::core;
    use kprobed_lang::definition::Features;
    use kprobed_rights::Roles;
    use kprobed_verdict::checker::DefinitionText;

    const MODULES: u64 = 0xffff_ffff_c000_0000;

    /// The note with a build id, which is that name.
    fn build_id(name: &str) -> String {
        let id = format!("{name:-<20.20}");
        format!("\u{4}\0\0\0\u{14}\0\0\0\u{3}\0\0\0GNU\0{id}")
    }

    /// A kernel in a directory, and what is loaded there.
    struct Host {
        directory: tempfile::TempDir,
        checker: Checker,
    }

    impl Host {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let root = || directory.path().to_owned();
            let paths = KernelPaths { procfs: root(), sysfs: root(), debugfs: root(), tracefs: root() };
            fs::write(root().join("README"), "char, string, ustring kernel return probes support").unwrap();
            let function = [0x0f, 0x1f, 0x44, 0, 0, 0xc3, 0xcc, 0xcc];
            fs::write(root().join("kcore"), core(&[(MODULES, function.repeat(32))])).unwrap();
            let features = Features::from_readme("char, string, ustring kernel return probes support");
            let checker = Checker::new(features, Arc::new(FactsCache::new(paths)));
            let host = Self { directory, checker };
            host.write("sys/kernel/osrelease", "6.12.0\n");
            host.write("kernel/notes", &build_id("vmlinux"));
            host
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Has these modules loaded, each with functions at distances from where modules are.
        fn load(&self, modules: &[(&str, &[(&str, u64)])]) {
            let mut symbols =
                "ffffffff81000000 T _stext\nffffffff81001000 T _etext\nffffffff81002000 B _end\n".to_owned();
            let (mut sites, mut list) = (String::new(), String::new());
            for (module, functions) in modules {
                self.write(&format!("module/{module}/notes/.note.gnu.build-id"), &build_id(module));
                writeln!(list, "{module} 4096 0 - Live {MODULES:#x}").unwrap();
                for (function, distance) in *functions {
                    let address = MODULES + distance;
                    writeln!(symbols, "{address:016x} t {function}\t[{module}]").unwrap();
                    writeln!(sites, "{address:016x} {function}").unwrap();
                }
            }
            self.write("kallsyms", &symbols);
            self.write("available_filter_functions_addrs", &sites);
            self.write("modules", &list);
        }

        /// A probe that was made now.
        fn make(&self, place: &str) -> Probe {
            let line = format!("p:kprobes/fork {place}");
            let outcome = self.checker.check(&line).unwrap();
            assert!(outcome.is_taken(), "{:?}", outcome.report);
            let probe = probe(1, "kprobes/fork").with(|record| {
                record.spec.definition = Arc::new(DefinitionText::new(line.clone()));
            });
            let known = Probe { guarded: Guarded::new(outcome.meaning()), ..probe };
            known.resolved(&outcome)
        }

        fn look(&self, probe: &Probe) -> Result<Guarded, Box<Held>> {
            let rights = Rights::new(Roles::default(), AuditQueue::new().0);
            look(&self.checker, &rights, probe, &mut self.checker.recent_facts())
        }

        /// Why a probe is held back.
        fn held(&self, probe: &Probe) -> Trouble {
            match self.look(probe) {
                Err(held) => held.trouble,
                Ok(_) => panic!("it is armed"),
            }
        }
    }

    #[test]
    fn an_address_is_the_function_that_it_was() {
        let host = Host::new();
        host.load(&[("dummy", &[("dummy_open", 0), ("dummy_stop", 16)])]);
        let probe = host.make(&format!("{MODULES:#x}"));
        assert_eq!(probe.location, "dummy:dummy_open+0x0");
        let facts = host.checker.recent_facts().get().unwrap();
        assert!(host.look(&probe).is_ok() && !probe.guarded.has_another_module(&facts));
        // Another module is in its place, and has the entry of a function there too.
        host.load(&[("veth", &[("veth_open", 0), ("veth_stop", 16)])]);
        let moved = host.held(&probe);
        assert_eq!(moved.code, "PLACE_CHANGED");
        assert!(moved.reason.contains("`dummy:dummy_open+0x0` and is `veth:veth_open+0x0`"), "{moved:?}");
        assert!(moved.hint.starts_with("write `dummy:dummy_open+0x0` instead of the address"), "{moved:?}");
        // A function of the same name in another module is another one.
        host.load(&[("veth", &[("dummy_open", 0), ("veth_stop", 16)])]);
        assert_eq!(host.held(&probe).code, "PLACE_CHANGED");
        // Nothing is there, as after a boot at another address.
        host.load(&[]);
        let gone = host.held(&probe);
        assert!(
            gone.code == "PLACE_CHANGED" && gone.reason.contains("was `dummy:dummy_open+0x0`"),
            "{gone:?}"
        );
        assert!(!gone.reason.contains("0xffff"), "not everybody may see addresses: {gone:?}");
        let facts = host.checker.recent_facts().get().unwrap();
        assert!(probe.guarded.has_another_module(&facts), "the kernel does not wait for it");
        // It is back.
        host.load(&[("dummy", &[("dummy_open", 0), ("dummy_stop", 16)])]);
        assert!(host.look(&probe).is_ok());
    }

    #[test]
    fn a_module_is_noticed_when_it_comes_back_after_another_one() {
        let host = Host::new();
        host.load(&[("dummy", &[("dummy_open", 0), ("dummy_stop", 16)])]);
        let probe = host.make(&format!("{MODULES:#x}"));
        host.load(&[("veth", &[("veth_open", 0), ("veth_stop", 16)])]);
        // Modules need not differ in their build ids: many have none.
        host.write("module/veth/notes/.note.gnu.build-id", &build_id("dummy"));
        let Err(held) = host.look(&probe) else { panic!("it is armed") };
        let probe = held.hold(probe);
        let facts = host.checker.recent_facts().get().unwrap();
        assert!(!probe.guarded.has_another_module(&facts), "nothing has changed since");
        host.load(&[("dummy", &[("dummy_open", 0), ("dummy_stop", 16)])]);
        let facts = host.checker.recent_facts().get().unwrap();
        assert!(probe.guarded.has_another_module(&facts), "it is not looked at again");
        assert!(host.look(&probe).is_ok());
    }

    /// The kernel would arm it while it loads the module, before the daemon could judge the place.
    #[test]
    fn nothing_is_put_into_the_kernel_whose_module_is_not_loaded() {
        let host = Host::new();
        host.load(&[]);
        for line in [
            "p:a/inside veth:veth_open+5",
            "p:a/entry veth:veth_open",
            "r:a/back veth:veth_open",
            "p:a/none veth:none",
        ] {
            let definition = Arc::new(DefinitionText::new(line));
            let request = CreateRequest { definition, enabled: true, ..CreateRequest::default() };
            let (probe, steps) = made_by(&host.checker, request);
            assert!(probe.waits_for_module() && probe.spec.enabled && steps.is_empty(), "{line}: {steps:?}");
            let trouble = probe.state.trouble().unwrap();
            assert!(trouble.reason.contains("its module `veth` is not loaded"), "{trouble:?}");
            assert!(trouble.hint.contains("modprobe veth"), "{trouble:?}");
        }
        host.load(&[("veth", &[("veth_open", 0), ("veth_stop", 16)])]);
        let definition = Arc::new(DefinitionText::new("p:a/inside veth:veth_open+5"));
        let (probe, steps) = made_by(&host.checker, CreateRequest { definition, ..CreateRequest::default() });
        assert_eq!((probe.state, steps.len()), (ProbeState::Disabled, 1));
    }

    #[test]
    fn a_module_that_has_gone_is_noticed_however_its_place_was_written() {
        let host = Host::new();
        let loaded: &[(&str, &[(&str, u64)])] = &[("veth", &[("veth_open", 0), ("veth_stop", 16)])];
        for (place, code) in [
            ("veth:veth_open+5", "MODULE_ABSENT"),
            ("veth_open+5", "MODULE_ABSENT"),
            ("veth_open", "MODULE_ABSENT"),
        ] {
            host.load(loaded);
            let probe = host.make(place);
            host.load(&[]);
            let facts = host.checker.recent_facts().get().unwrap();
            assert!(probe.guarded.has_another_module(&facts), "{place}");
            let Err(held) = host.look(&probe) else { panic!("{place} stays in the kernel") };
            assert_eq!(held.trouble.code, code, "{place}: {:?}", held.trouble);
            let probe = held.hold(probe);
            assert!(!probe.guarded.has_another_module(&facts), "{place}: nothing has changed since");
            host.load(loaded);
            let facts = host.checker.recent_facts().get().unwrap();
            assert!(probe.guarded.has_another_module(&facts), "{place}");
            assert!(host.look(&probe).is_ok(), "{place}");
            // Taken out before the facts showed it.
            let held = Held::without_module(&probe, "veth", false).hold(probe.clone());
            assert!(held.guarded.has_another_module(&facts) && held.waits_for_module(), "{place}");
            // Another build has come before the daemon looked.
            let Ok(guarded) = host.look(&probe) else { panic!("{place} is held back") };
            assert!(!guarded.is_of_other_build(&facts.build_ids), "{place}");
            host.write("module/veth/notes/.note.gnu.build-id", &build_id("other"));
            assert!(guarded.is_of_other_build(&facts.build_ids), "{place}");
            let held = Held::without_module(&probe, "veth", true).hold(probe);
            assert!(held.guarded.has_another_module(&facts) && !held.waits_for_module(), "{place}");
        }
    }

    #[test]
    fn a_probe_that_waited_gets_its_place() {
        let host = Host::new();
        host.load(&[]);
        let inside = host.make("veth:veth_open+5");
        let missing = host.make("veth:no_such_function");
        assert!(inside.location.is_empty() && inside.footprint.target.functions.is_empty());
        for probe in [&inside, &missing, &host.make("veth:veth_open")] {
            assert_eq!(host.held(probe).code, "MODULE_ABSENT");
        }
        let place = |probe: &Probe| {
            let Ok(guarded) = host.look(probe) else { panic!("{} is held back", probe.name) };
            let probe = Probe { guarded, ..probe.clone() };
            placed(&host.checker, probe, &mut host.checker.recent_facts())
        };
        host.load(&[("veth", &[("veth_open", 0), ("veth_stop", 16)])]);
        let now = place(&inside).unwrap();
        assert_eq!(now.location, "veth:veth_open+0x5");
        // Rules are asked about the function that it is in.
        assert_eq!(now.footprint.target.functions, ["veth_open"]);
        let held = place(&missing).unwrap_err();
        assert_eq!(held.trouble.code, "BAD_PROBE_ADDR");
        assert!(held.trouble.reason.contains("no_such_function"), "{:?}", held.trouble);
    }
}
