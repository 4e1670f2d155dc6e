//! Checker: judges the text of a definition, without a write to the kernel.
//!
//! Owns the order in which parser, types and rules are applied, and the line that a definition
//! becomes. Never changes anything, and keeps no names: [`NamesInUse`] does.

mod change;
#[cfg(test)]
mod hint_tests;
mod known;
mod outcome;
#[cfg(test)]
mod short_tests;
#[cfg(test)]
mod tests;
mod text;

pub use outcome::{Against, CheckOutcome, Target};
pub use text::DefinitionText;

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use self::known::KnownKernel;
use self::text::Read;
use crate::validate::{self, functions, spelling, typed};
use kprobed_host::kernel::{FactsCache, FactsError, KernelFacts, Livepatches, RecentFacts};
use kprobed_lang::definition::explain::explain;
use kprobed_lang::definition::{
    Code, Definition, DeleteDefinition, Diagnostic, Dialect, Features, Name, Place, ProbeDefinition,
    ProbeKind, Reading, Span, Step, guard, merged, parse_any_knowing,
};
use kprobed_lang::model::ProbeName;
use thiserror::Error;

/// Judges definitions. All callers share it: it changes nothing.
#[derive(Debug)]
pub struct Checker {
    features: Features,
    facts: Arc<FactsCache>,
    kprobe_events: bool,
    names: Option<Arc<dyn NamesInUse>>,
    parsed: AtomicU64,
}

/// The line for the kernel.
#[derive(Clone, Debug)]
pub struct KernelLine {
    /// The line. Empty for an event of the host, which is not defined.
    pub text: String,
    /// The line without the hidden arguments.
    pub canonical: String,
    /// The event group.
    pub group: String,
    /// The event.
    pub event: String,
}

/// A name that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The name.
    pub name: ProbeName,
    /// Whether a probe of this daemon has it.
    pub ours: bool,
    /// What the kernel would say, or why this daemon does not write the line.
    pub problem: Diagnostic,
}

/// The names of events that are in use, as far as a verdict depends on them. The daemon implements it for a running
/// kernel. For an image of a kernel, all names are free.
pub trait NamesInUse: Debug + Send + Sync {
    /// `wanted`, or the first name that begins with it and is neither in use nor in `claimed`.
    fn free_event(&self, group: &str, wanted: &str, claimed: &HashSet<ProbeName>) -> String;

    /// The problem with a definition of this name. `None` if the name is free.
    fn taken(
        &self,
        definition: &ProbeDefinition,
        name: (&str, &str),
        facts: &KernelFacts,
        features: &Features,
    ) -> Option<Taken>;

    /// Why an event cannot be recorded: the host does not have it, or it has no switch of its own. It proposes no other
    /// event: names of probes would be among them.
    fn unrecordable(&self, event: (&str, &str), span: Span) -> Option<Diagnostic>;

    /// The probes of this daemon that a `-` line names. If the line gives no group or no event, the
    /// kernel takes all of them.
    ///
    /// # Errors
    /// What the kernel would say, or why this daemon does not ask it.
    fn deleted_by(&self, delete: &DeleteDefinition) -> Result<Vec<ProbeName>, Diagnostic>;
}

/// Why a text has no verdict. A refused place is a verdict: see [`CheckOutcome`].
#[derive(Debug, Error)]
pub enum CheckError {
    /// The text is not a definition.
    #[error("{}", diagnostics.first().map_or("the definition cannot be read", |first| first.message.as_str()))]
    Definition {
        /// The text.
        text: String,
        /// What is wrong with it; never empty.
        diagnostics: Vec<Diagnostic>,
    },
    /// Facts of the kernel are not known.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The kernel was built without kprobe events.
    #[error(
        "this kernel has no kprobe events (CONFIG_KPROBE_EVENTS): only probes of its own events are possible, such as `sched/sched_switch`"
    )]
    NoKprobeEvents,
}

impl CheckError {
    /// Diagnostics of a text.
    fn of(text: &str, diagnostics: Vec<Diagnostic>) -> Self {
        Self::Definition { text: text.to_owned(), diagnostics }
    }
}

/// The group of probes without one: the kernel's own default (kernel/trace/trace_kprobe.c,
/// `KPROBE_EVENT_SYSTEM`).
const DEFAULT_GROUP: &str = "kprobes";

impl Checker {
    /// A checker for the running kernel.
    pub fn new(features: Features, facts: Arc<FactsCache>) -> Self {
        Self { features, facts, kprobe_events: true, names: None, parsed: AtomicU64::new(0) }
    }

    /// Like `new`, for a kernel that has no kprobe events, and so refuses every probe.
    #[must_use]
    pub fn without_kprobe_events(self) -> Self {
        Self { kprobe_events: false, ..self }
    }

    /// With the names that are in use: without them, all names are free.
    #[must_use]
    pub fn with_names(self, names: Arc<dyn NamesInUse>) -> Self {
        Self { names: Some(names), ..self }
    }

    /// The features of the kernel's probe language.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Parses one definition of a probe, in any dialect.
    ///
    /// # Errors
    /// [`CheckError::Definition`], also for a line that deletes.
    pub fn parse_probe(&self, text: &str) -> Result<ProbeDefinition, CheckError> {
        self.probe(&DefinitionText::new(text))
    }

    /// The definition in a text. Parses the text if that was not done before.
    ///
    /// # Errors
    /// [`CheckError::Definition`].
    pub fn definition(&self, text: &DefinitionText) -> Result<Definition, CheckError> {
        let reading = self.reading(text);
        reading.result.clone().map_err(|diagnostics| CheckError::of(text.as_str(), diagnostics))
    }

    /// The probe that a text defines, with a name for every argument. Parses the text if that was
    /// not done before.
    ///
    /// # Errors
    /// [`CheckError::Definition`], also for a line that deletes.
    pub fn probe(&self, text: &DefinitionText) -> Result<ProbeDefinition, CheckError> {
        let written = as_probe(&self.reading(text)).map_err(|found| CheckError::of(text.as_str(), found))?;
        Ok(written.with_explicit_names())
    }

    /// The result of parsing a text, even if the facts of the kernel have changed since. Parses the
    /// text if that was not done before.
    pub fn reading(&self, text: &DefinitionText) -> Arc<Reading> {
        match text.last() {
            Some(read) => read.reading,
            None => self.read_and_keep(text),
        }
    }

    /// How many texts of definitions were parsed. For tests: each text must be parsed only once.
    pub fn texts_parsed(&self) -> u64 {
        self.parsed.load(Ordering::Relaxed)
    }

    /// Explains in words what a definition does. Does not check its place.
    ///
    /// # Errors
    /// [`CheckError::Definition`], also for a line that deletes.
    pub fn explain(&self, definition: &DefinitionText) -> Result<String, CheckError> {
        let (reading, text) = (self.reading(definition), definition.as_str());
        let dialect = reading.dialect;
        let written = as_probe(&reading).map_err(|found| CheckError::of(text, found))?;
        if let Some(problem) = written.registration_problem() {
            return Err(CheckError::of(text, vec![problem]));
        }
        let (definition, notes, place) = match self.facts.current() {
            Ok(facts) if !written.is_of_host_event() => {
                let resolution = typed::resolve(&written, &facts, &self.features)
                    .map_err(|diagnostics| CheckError::of(text, diagnostics))?;
                let typed::Resolution { mut definition, notes, .. } = resolution;
                let report = validate::check(&written, &facts);
                definition.warnings.extend(typed::doubts(&written, &report, &facts));
                definition.warnings = merged(definition.warnings, text);
                let place = functions::in_function(&written.place, &facts);
                (definition, notes, place)
            }
            // The types of the names are not known: they are explained by name.
            _ => (written.clone(), Vec::new(), written.place),
        };
        let definition = definition.with_explicit_names();
        let placed = ProbeDefinition { place, ..definition.clone() };
        let line = self.new_line(&definition, &HashSet::new()).canonical;
        let origin = |index: usize| {
            let note = notes.iter().find(|note| note.index == index)?;
            Some(format!("{}, which is `{}`", note.path, note.declaration))
        };
        Ok(explain(&placed, (dialect, &line), &self.features, &origin))
    }

    /// The present livepatches of the running kernel.
    pub fn livepatches(&self) -> Livepatches {
        self.facts.livepatches()
    }

    /// Facts for [`Checker::check_with`].
    pub fn recent_facts(&self) -> RecentFacts<'_> {
        RecentFacts::new(&self.facts)
    }

    /// Judges a definition.
    ///
    /// # Errors
    /// [`CheckError::Definition`] when the text is no definition, [`CheckError::Facts`] when the
    /// kernel hides too much, [`CheckError::NoKprobeEvents`] when it cannot have probes.
    pub fn check(&self, text: &str) -> Result<CheckOutcome, CheckError> {
        self.check_with(text, &mut self.recent_facts())
    }

    /// Judges one of many definitions.
    ///
    /// # Errors
    /// As [`Checker::check`].
    pub fn check_with(&self, text: &str, facts: &mut RecentFacts<'_>) -> Result<CheckOutcome, CheckError> {
        self.check_text(&Arc::new(DefinitionText::new(text)), facts)
    }

    /// Judges a definition that may have been parsed before.
    ///
    /// # Errors
    /// As [`Checker::check`].
    pub fn check_text(
        &self,
        text: &Arc<DefinitionText>,
        facts: &mut RecentFacts<'_>,
    ) -> Result<CheckOutcome, CheckError> {
        let reading = text.read_with(|| facts.get().ok()).unwrap_or_else(|| self.read_and_keep(text));
        let is_of_host_event =
            matches!(&reading.result, Ok(Definition::Probe(written)) if written.is_of_host_event());
        if !self.kprobe_events && !is_of_host_event {
            return Err(CheckError::NoKprobeEvents);
        }
        let (dialect, kept) = (reading.dialect, text.pinned(&reading));
        let draft = || reading.draft.clone().filter(|_| dialect != Dialect::Prototype);
        match as_probe(&reading) {
            Ok(written) => self.judge(written, Vec::new(), (dialect, text.as_str(), kept), facts.get()?),
            // If the facts cannot be read, the text stays refused.
            Err(diagnostics) => match (draft(), facts.get()) {
                (Some(draft), Ok(facts)) => {
                    self.judge(draft, diagnostics, (dialect, text.as_str(), Arc::clone(text)), facts)
                }
                _ => Err(CheckError::of(text.as_str(), diagnostics)),
            },
        }
    }

    /// Judges a parsed text: `unread` are the problems of the text itself, and `kept` is what is stored of it. The
    /// verdict is the problem that the kernel finds first.
    fn judge(
        &self,
        written: ProbeDefinition,
        mut unread: Vec<Diagnostic>,
        (dialect, text, kept): (Dialect, &str, Arc<DefinitionText>),
        facts: Arc<KernelFacts>,
    ) -> Result<CheckOutcome, CheckError> {
        typed::advise(&mut unread, &written, text, &facts);
        let mut report = validate::check(&written, &facts);
        // What a return probe requires of its place is a rule of the place.
        let requirement = written.entry_requirement(&self.features);
        let requirement = requirement.filter(|_| !report.is_entry && written.kind == ProbeKind::Entry);
        let requirement = requirement.map(|found| match &report.absent_module {
            Some(module) => found.with_hint(without_module(&written.place, module, &facts)),
            None => found,
        });
        let names = typed::resolve_names(&written, &facts, &self.features);
        let limits =
            if names.findings.is_empty() { names.exceeded_limits(&self.features) } else { Vec::new() };
        let is_resolved = names.findings.is_empty() && limits.is_empty();
        // If the kernel finds several at the same step, the names say more than the text.
        let found = requirement.into_iter().chain(names.findings).chain(unread.iter().cloned()).chain(limits);
        let found = found.chain(self.unrecordable(&written, &facts));
        let first = found.min_by_key(|finding| finding.step);
        let place = report.refusal.as_ref().map(|refusal| refusal.step);
        let misplaced = first.filter(|first| place.is_none_or(|place| first.step < place));
        if let Some(first) = misplaced.clone().filter(|_| !unread.is_empty()) {
            let is_of_names = !unread.contains(&first);
            let first = is_of_names.then_some(first);
            return Err(CheckError::of(text, first.into_iter().chain(unread).collect()));
        }
        if misplaced.is_some() {
            report.refusal = None;
        }
        // If the text has mistakes that the kernel does not reach, only the place counts.
        let written = if unread.is_empty() { written } else { written.place_alone() };
        let (definition, notes) = if is_resolved && unread.is_empty() {
            (names.definition, names.notes)
        } else {
            (written.clone(), Vec::new())
        };
        let mut definition = definition.with_explicit_names();
        if unread.is_empty() {
            definition.warnings.extend(typed::doubts(&written, &report, &facts));
        }
        definition.warnings.extend(guard::warnings(&definition, &self.features));
        let mut outcome = CheckOutcome {
            definition,
            written,
            notes,
            dialect,
            text: kept,
            report,
            misplaced,
            unread,
            facts,
        };
        if outcome.waits_in_vain() {
            let waiting = outcome.waiting();
            outcome.definition.warnings.extend(waiting);
        }
        let warnings = std::mem::take(&mut outcome.definition.warnings);
        outcome.definition.warnings = merged(warnings, text);
        Ok(outcome)
    }

    /// Why the event of the host that a definition names cannot be recorded.
    fn unrecordable(&self, definition: &ProbeDefinition, facts: &KernelFacts) -> Option<Diagnostic> {
        let event = definition.event.as_ref().filter(|_| definition.is_of_host_event())?;
        let of_image = || {
            let message = "an image of a kernel does not show which events a host has";
            Diagnostic::error(Code::UnsupportedFeature, definition.span, message)
                .with_hint("check it on a host: `kprobectl check`")
        };
        let problem = self.names.as_ref().map_or_else(
            || Some(of_image()),
            |names| names.unrecordable((group_of(definition), &event.text), definition.span),
        )?;
        let similar = || spelling::similar_full_event(group_of(definition), &event.text, facts);
        let problem = match (problem.code == Code::NoSuchEvent).then(similar).flatten() {
            Some(similar) => problem.with_hint(format!("did you mean `{similar}`?")),
            None => problem,
        };
        // A probe of it may be there and wait for it.
        Some(problem.at(Step::OwnPlace))
    }

    fn read_and_keep(&self, text: &DefinitionText) -> Arc<Reading> {
        self.parsed.fetch_add(1, Ordering::Relaxed);
        let known = KnownKernel::new(&self.facts, &self.features);
        let reading = Arc::new(parse_any_knowing(text.as_str(), &self.features, &known));
        text.keep(Read { reading: Arc::clone(&reading), asked: known.into_asked() });
        reading
    }

    /// The line for the kernel, with the hidden arguments that distinguish faults from values.
    pub fn kernel_line(&self, definition: &ProbeDefinition, (group, event): (&str, &str)) -> KernelLine {
        let canonical = definition.render(group, event);
        let text = if definition.is_of_host_event() {
            String::new()
        } else {
            guard::guarded(definition, &self.features).definition.render(group, event)
        };
        KernelLine { text, canonical, group: group.to_owned(), event: event.to_owned() }
    }

    /// The line for the kernel with the name as it is written. Without a written name: the one that
    /// the kernel would choose, or the first that begins with it and is neither in use nor claimed.
    pub fn new_line(&self, definition: &ProbeDefinition, claimed: &HashSet<ProbeName>) -> KernelLine {
        let event = match (&definition.event, &self.names) {
            (Some(event), _) => event.text.clone(),
            (None, Some(names)) => {
                names.free_event(group_of(definition), &definition.default_event_name(), claimed)
            }
            (None, None) => definition.default_event_name(),
        };
        self.kernel_line(definition, (group_of(definition), &event))
    }

    /// The problem with the name of a definition that was checked. None if the name is still to be
    /// chosen.
    pub fn taken(&self, outcome: &CheckOutcome) -> Option<Taken> {
        let definition = &outcome.definition;
        let event = definition.event.as_ref()?;
        let name = (group_of(definition), event.text.as_str());
        self.names.as_ref()?.taken(definition, name, &outcome.facts, &self.features)
    }

    /// The probes of this daemon that a deleting line names.
    ///
    /// # Errors
    /// [`CheckError::Definition`] with what the kernel would say, or why this daemon does not ask
    /// it.
    pub fn deleted_by(&self, text: &str, delete: &DeleteDefinition) -> Result<Vec<ProbeName>, CheckError> {
        let named = self.names.as_ref().map_or(Ok(Vec::new()), |names| names.deleted_by(delete));
        named.map_err(|problem| CheckError::of(text, vec![problem]))
    }
}

/// The event group of a definition: its own, or the kernel's default.
pub fn group_of(definition: &ProbeDefinition) -> &str {
    definition.group.as_ref().map_or(DEFAULT_GROUP, |group| &group.text)
}

/// A definition as that of the probe `name`, whose group and event it can leave out. A prototype never has them.
///
/// # Errors
/// The name of another probe, if the definition is of that.
pub fn named(
    mut definition: ProbeDefinition,
    dialect: Dialect,
    name: &ProbeName,
) -> Result<ProbeDefinition, String> {
    let own = |part: &Option<Name>| {
        part.as_ref().filter(|_| dialect != Dialect::Prototype).map(|part| part.text.clone())
    };
    let group = own(&definition.group).unwrap_or_else(|| name.group().to_owned());
    let event = own(&definition.event).unwrap_or_else(|| name.event().to_owned());
    if (group.as_str(), event.as_str()) != (name.group(), name.event()) {
        return Err(format!("{group}/{event}"));
    }
    let span = definition.place.span();
    let part = |part: Option<Name>, text| Name { text, span: part.map_or(span, |part| part.span) };
    definition.group = Some(part(definition.group, group));
    definition.event = Some(part(definition.event, event));
    Ok(definition)
}

/// What to do about an argument in a module that is not loaded: no place in it counts as an entry.
fn without_module(place: &Place, module: &str, facts: &KernelFacts) -> String {
    let built_in = match place {
        Place::Symbol { symbol, .. } => spelling::built_in(symbol, module, facts),
        _ => None,
    };
    built_in.unwrap_or_else(|| {
        format!(
            "load module `{module}` first, so that the entries of its functions are known; or read registers"
        )
    })
}

/// The parsed probe.
fn as_probe(reading: &Reading) -> Result<ProbeDefinition, Vec<Diagnostic>> {
    match reading.result.clone()? {
        Definition::Probe(definition) => Ok(definition),
        Definition::Delete(delete) => {
            let message = "this line deletes and does not define";
            let problem = Diagnostic::error(Code::UnknownCommand, delete.span, message);
            Err(vec![problem.with_hint("delete with `kprobectl delete`, or apply the line as a whole")])
        }
    }
}
