//! Meaning guard: whether a definition records on this build of kernel and module what it was made
//! for, and whether a place in a module that was not loaded before is one that this daemon refuses.
//!
//! Owns when that is compared, and what is decided and said about a difference. What a definition
//! means is for [`kprobed_verdict::meaning`]. Never arms a probe or removes one.

use std::collections::HashMap;
use std::sync::Arc;

use super::probe::{Probe, ProbeState, Trouble};
use crate::error::Error;
use crate::store::{Store, StoreError};
use kprobed_host::kernel::{KernelFacts, RecentFacts};
use kprobed_lang::model::{KernelChange, ProbeUid};
use kprobed_verdict::checker::{CheckOutcome, Checker, MeaningChange};
use kprobed_verdict::meaning::{Build, Difference, DifferenceKind, Meaning, compare};

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

/// The decision on a definition.
#[derive(Debug)]
pub(super) enum Looked {
    /// It can be armed.
    Clear(Guarded),
    /// It must not be in the kernel.
    Held(Box<Held>),
}

/// A definition that must not be in the kernel.
#[derive(Debug)]
pub(super) struct Held {
    trouble: Trouble,
    guarded: Guarded,
}

impl Held {
    /// The probe as it is now.
    pub(super) fn hold(self, probe: Probe) -> Probe {
        tracing::warn!(probe = %probe.name, reason = self.trouble.reason, "holds a probe back");
        let Self { trouble, guarded } = self;
        Probe { state: ProbeState::HeldBack(trouble), guarded, own: None, schema: None, ..probe }
    }

    /// Why it is not armed.
    pub(super) fn error(self, probe: &Probe) -> Error {
        let Trouble { reason, hint, .. } = self.trouble;
        Error::held_back(&probe.name, &reason, &hint)
    }
}

/// The stored meanings of all probes. One that cannot be read counts as not known.
pub(super) async fn read(store: &Store) -> Result<HashMap<ProbeUid, Guarded>, StoreError> {
    let stored = store.meanings().await?.into_iter();
    let one = |(uid, text): (ProbeUid, String)| Some((uid, Guarded::new(Meaning::from_json(&text)?)));
    Ok(stored.filter_map(one).collect())
}

/// Identity of the loaded module of that name: its build id, or empty if it has none. Absent if it
/// is not loaded.
pub(super) fn module_now(name: &str, facts: &KernelFacts) -> Option<String> {
    facts.symbols.has_module(name).then(|| facts.build_ids.module(name).unwrap_or_default())
}

impl Guarded {
    /// The meaning of a definition from now on.
    pub(super) fn new(meaning: Meaning) -> Self {
        let seen = meaning.module.as_ref().filter(|_| meaning.complete).and_then(|module| module.id.clone());
        Self { meaning: Some(Arc::new(meaning)), seen, change: None }
    }

    /// As it is stored.
    pub(super) fn to_json(&self) -> Option<String> {
        self.meaning.as_ref()?.to_json().ok()
    }

    /// Whether another meaning is stored for it than for the other one.
    pub(super) fn is_other_than(&self, other: &Self) -> bool {
        self.meaning != other.meaning
    }

    /// The module that the place is in.
    pub(super) fn module(&self) -> Option<&str> {
        Some(&self.meaning.as_ref()?.module.as_ref()?.name)
    }

    /// Whether another build of its module is loaded than at the last look.
    pub(super) fn has_another_module(&self, facts: &KernelFacts) -> bool {
        let now = self.module().and_then(|module| module_now(module, facts));
        now.is_some() && now != self.seen
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

    fn with(&self, change: Option<MeaningChange>, now: &Meaning, facts: &KernelFacts) -> Self {
        let module = now.module.as_ref().map(|module| module.name.as_str()).or_else(|| self.module());
        let seen = module.and_then(|module| module_now(module, facts));
        Self { meaning: self.meaning.clone(), seen, change: change.map(Arc::new) }
    }
}

/// Whether a probe may be armed on the running kernel, as far as its meaning is concerned, and the
/// objections of this daemon to a place in a module: the kernel arms such a probe by itself when the
/// module is loaded. Checks nothing else.
pub(super) fn look(checker: &Checker, probe: &Probe, facts: &mut RecentFacts<'_>) -> Looked {
    // If facts or definition cannot be read, the probe cannot be armed either, and that check
    // reports it.
    let clear = || Looked::Clear(Guarded { change: None, ..probe.guarded.clone() });
    if probe.guarded.module().is_none() && facts.get().is_ok_and(|facts| probe.guarded.is_at_home(&facts)) {
        return clear();
    }
    match checker.check_text(&probe.spec.definition, facts) {
        Ok(outcome) => look_at(checker, probe, &outcome, facts),
        Err(_) => clear(),
    }
}

/// Like [`look`], for a definition that was checked.
fn look_at(checker: &Checker, probe: &Probe, outcome: &CheckOutcome, recent: &mut RecentFacts<'_>) -> Looked {
    let guarded = &probe.guarded;
    let Ok(facts) = recent.get() else { return Looked::Clear(guarded.clone()) };
    let now = outcome.meaning();
    let is_in_module = now.module.is_some() && outcome.report.absent_module.is_none();
    if let Some(objection) = outcome.report.objection.as_ref().filter(|_| is_in_module) {
        let trouble = Trouble::objection(&objection.clone().or_hint(|| outcome.nearest().hint()));
        return Looked::Held(Box::new(Held { trouble, guarded: guarded.with(None, &now, &facts) }));
    }
    let clear = || Looked::Clear(guarded.with(None, &now, &facts));
    let holds = probe.spec.metadata.on_kernel_change == KernelChange::Hold;
    let Some(before) = guarded.meaning.as_deref() else {
        if !now.is_raw() {
            return Looked::Clear(Guarded::new(now));
        }
        return decide(probe, None, &now, vec![not_written_down()], &facts);
    };
    if before.is_of_same_build(&now) {
        return clear();
    }
    if !before.complete && now.complete && before.kernel.is(&now.kernel) {
        // Its module was not loaded when it was made: this is the first build that it meets.
        return Looked::Clear(Guarded::new(now));
    }
    if !now.complete {
        let module = outcome.report.absent_module.as_deref();
        let is_known = before.kernel.is(&now.kernel) || !before.is_raw();
        return match module {
            Some(module) if !is_known && holds => {
                let trouble = module_is_absent(module, before);
                Looked::Held(Box::new(Held { trouble, guarded: guarded.with(None, &now, &facts) }))
            }
            _ => clear(),
        };
    }
    let differences = compare(before, &now);
    if differences.is_empty() {
        return clear();
    }
    let offered = checker.offered((probe.name.group(), probe.name.event()), before, outcome, recent);
    let looked = decide(probe, Some(before), &now, differences, &facts);
    match (looked, offered) {
        (looked, None) => looked,
        (Looked::Clear(guarded), Some(line)) => Looked::Clear(guarded.offering(line)),
        (Looked::Held(held), Some(line)) => {
            let Held { mut trouble, guarded } = *held;
            trouble.hint = format!("as `{line}` it records here what it was made for; {}", trouble.hint);
            Looked::Held(Box::new(Held { trouble, guarded: guarded.offering(line) }))
        }
    }
}

fn decide(
    probe: &Probe,
    before: Option<&Meaning>,
    now: &Meaning,
    differences: Vec<Difference>,
    facts: &KernelFacts,
) -> Looked {
    let trouble = trouble(probe, before, &differences);
    let change = MeaningChange::new(before, now, differences);
    let guarded = probe.guarded.with(Some(change), now, facts);
    match probe.spec.metadata.on_kernel_change {
        KernelChange::Hold => Looked::Held(Box::new(Held { trouble, guarded })),
        KernelChange::ArmAnyway => {
            tracing::warn!(probe = %probe.name, reason = trouble.reason, "arms a probe all the same");
            Looked::Clear(guarded)
        }
    }
}

impl Guarded {
    fn offering(mut self, line: String) -> Self {
        if let Some(change) = &self.change {
            self.change =
                Some(Arc::new(MeaningChange { offered: Some(line), ..MeaningChange::clone(change) }));
        }
        self
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

fn module_is_absent(module: &str, before: &Meaning) -> Trouble {
    Trouble {
        code: DifferenceKind::Unknown.code(),
        reason: format!(
            "it was made for kernel {}, and module `{module}` must be loaded to compare it",
            before.kernel.name
        ),
        hint: "it is compared and armed when the module is loaded".to_owned(),
    }
}

fn trouble(probe: &Probe, before: Option<&Meaning>, differences: &[Difference]) -> Trouble {
    let first = differences.first();
    let message = first.map_or("", |first| first.message.as_str());
    let more = match differences.len() {
        0 | 1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    let made = before.map_or_else(String::new, |before| format!("made for kernel {}: ", before.kernel.name));
    Trouble {
        code: first.map_or(DifferenceKind::Unknown, |first| first.kind).code(),
        reason: format!("{made}{message}{more}"),
        hint: format!(
            "`kprobectl get {0}` shows both sides, `kprobectl update {0} --accept` arms it as it is",
            probe.name
        ),
    }
}
