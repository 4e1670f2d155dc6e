//! Names of probes: which are free, and what the kernel says if one is taken.
//!
//! Owns the comparison of a definition with the event that has its name, as
//! kernel/trace/trace_kprobe.c does it (register_trace_kprobe, append_trace_kprobe): after the
//! definition is parsed, and before its place is checked. Never writes anything.

use std::collections::HashSet;
use std::sync::Arc;

use super::adopt::without_guards;
use super::{Probe, ProbeState, Registry};
use kprobed_host::kernel::KernelFacts;
use kprobed_host::tracefs::{ListedProbe, Tracefs};
use kprobed_lang::definition::{
    Argument, BaseType, Code, Definition, DeleteDefinition, Diagnostic, Features, Place, ProbeDefinition,
    ProbeKind, Span, parse,
};
use kprobed_lang::model::ProbeName;
use kprobed_verdict::checker::{NamesInUse, Taken};
use kprobed_verdict::validate::typed;

/// Longest name of an event.
const EVENT_MAX_BYTES: usize = 63;

/// The names that the kernel and the daemon use.
#[derive(Clone, Debug)]
pub struct Names {
    tracefs: Tracefs,
    registry: Arc<Registry>,
}

impl Names {
    /// Names of the events of this kernel and of the probes of this daemon.
    pub fn new(tracefs: Tracefs, registry: Arc<Registry>) -> Self {
        Self { tracefs, registry }
    }
}

impl NamesInUse for Names {
    fn free_event(&self, group: &str, wanted: &str, claimed: &HashSet<ProbeName>) -> String {
        let mut event = wanted.to_owned();
        let is_known = |name: ProbeName| claimed.contains(&name) || self.registry.get(&name).is_some();
        for number in 2.. {
            if !ProbeName::new(group, &event).is_ok_and(is_known) && !self.tracefs.has_event(group, &event) {
                break;
            }
            let suffix = format!("_{number}");
            let length = wanted.len().min(EVENT_MAX_BYTES - suffix.len());
            event = format!("{}{suffix}", wanted.get(..length).unwrap_or(wanted));
        }
        event
    }

    fn taken(
        &self,
        definition: &ProbeDefinition,
        (group, event): (&str, &str),
        facts: &KernelFacts,
        features: &Features,
    ) -> Option<Taken> {
        let name = ProbeName::new(group, event).ok()?;
        let ours = self.registry.get(&name);
        if definition.is_of_host_event() {
            let problem = recorded_already(&*ours?, definition.span);
            return Some(Taken { ours: true, problem, name });
        }
        let subject = Subject { definition, name: &name, ours: ours.is_some() };
        let problem = if self.tracefs.has_event(group, event) {
            // A list that cannot be read does not make the name any freer.
            let list = self.tracefs.kprobe_list().unwrap_or_default();
            let lines = list.lines_of(&name);
            let existing: Vec<_> = lines.map(|line| Existing::read(line, facts, features)).collect();
            subject.against(&existing)
        } else if let Some(probe) = ours {
            let what = if matches!(probe.state, ProbeState::Expired(_)) {
                "its lease has ended, and it can be renewed or deleted"
            } else {
                "the kernel does not have it now"
            };
            subject.problem(Code::ProbeExists, what)
        } else {
            return None;
        };
        Some(Taken { ours: subject.ours, problem, name })
    }

    fn unrecordable(&self, (group, event): (&str, &str), span: Span) -> Option<Diagnostic> {
        let name = format!("{group}/{event}");
        if !self.tracefs.has_event(group, event) {
            let message = format!("the host has no event `{name}`");
            return Some(Diagnostic::error(Code::NoSuchEvent, span, message));
        }
        (!self.tracefs.has_switch(group, event)).then(|| {
            let message = format!("`{name}` cannot be recorded by itself: it describes what a tracer writes");
            Diagnostic::error(Code::EventHasNoSwitch, span, message)
        })
    }

    fn deleted_by(&self, delete: &DeleteDefinition) -> Result<Vec<ProbeName>, Diagnostic> {
        if let (Some(first), Some(last)) = (delete.location.first(), delete.location.last()) {
            let span = Span::new(first.span.start, last.span.end);
            let message = "an event of kprobed has one place, and is deleted as a whole";
            return Err(Diagnostic::error(Code::DeletesLocation, span, message));
        }
        let fits = |group: &str, event: &str| {
            delete.group.as_ref().is_none_or(|wanted| wanted.text == group)
                && delete.event.as_ref().is_none_or(|wanted| wanted.text == event)
        };
        let probes = self.registry.all().into_iter();
        let names = probes.map(|probe| probe.name.clone());
        let ours: Vec<_> = names.filter(|name| fits(name.group(), name.event())).collect();
        if !ours.is_empty() {
            return Ok(ours);
        }
        let part =
            |name: Option<&kprobed_lang::definition::Name>| name.map_or("*", |name| &name.text).to_owned();
        let name = format!("{}/{}", part(delete.group.as_ref()), part(delete.event.as_ref()));
        let list = self.tracefs.kprobe_list().unwrap_or_default();
        let is_foreign = list
            .probes()
            .iter()
            .filter_map(ListedProbe::group_and_event)
            .any(|(group, event)| fits(group, event));
        Err(if is_foreign {
            let message = format!("kprobed did not define the probe `{name}`, and leaves it alone");
            let hint =
                "the program that defined it can delete it; `kprobectl adopt GROUP/EVENT` takes it over";
            Diagnostic::error(Code::ForeignProbe, delete.span, message).with_hint(hint)
        } else {
            Diagnostic::error(Code::NoSuchProbe, delete.span, format!("there is no probe `{name}`"))
        })
    }
}

/// The problem with an event that is recorded by `probe` already.
fn recorded_already(probe: &Probe, span: Span) -> Diagnostic {
    let name = &probe.name;
    let (message, hint) = if probe.kind == ProbeKind::Event {
        (
            format!("kprobed has a probe of `{name}` already, and an event has one filter in its instance"),
            format!(
                "`kprobectl observe {name}` shows its events, `kprobectl update {name} --filter` changes its filter"
            ),
        )
    } else {
        (
            format!("`{name}` is a probe of kprobed itself"),
            format!("`kprobectl observe {name}` shows its events"),
        )
    };
    Diagnostic::error(Code::ProbeExists, span, message).with_hint(hint)
}

/// A definition whose name is taken.
struct Subject<'a> {
    definition: &'a ProbeDefinition,
    name: &'a ProbeName,
    ours: bool,
}

/// A line of the kernel's list.
struct Existing {
    is_return: bool,
    /// Absent if this daemon cannot parse the line.
    definition: Option<ProbeDefinition>,
}

impl Existing {
    fn read(line: &str, facts: &KernelFacts, features: &Features) -> Self {
        let is_return = line.starts_with('r');
        // Hidden arguments are not part of the request.
        let Ok(Definition::Probe(definition)) = parse(&without_guards(line), features) else {
            return Self { is_return, definition: None };
        };
        // Arguments without a type have the type of the parameter, if the kernel knows it: other kernels list what
        // they read.
        let resolution =
            features.btf_args.then(|| typed::resolve(&definition, facts, features).ok()).flatten();
        let definition = resolution.map_or(definition, |resolution| resolution.definition);
        Self { is_return, definition: Some(definition) }
    }
}

impl Subject<'_> {
    /// The kernel's checks in its order, over all probes of the event.
    fn against(&self, existing: &[Existing]) -> Diagnostic {
        let Some(first) = existing.first() else {
            return self.problem(Code::EventExist, "it is not a kprobe");
        };
        if first.is_return != (self.definition.kind == ProbeKind::Return) {
            let what = if first.is_return { "it is a return probe" } else { "it is an entry probe" };
            return self.problem(Code::DiffProbeType, what);
        }
        let args = first.definition.as_ref().map(|definition| definition.args.as_slice());
        if let Some(index) = first_difference(&self.definition.args, args.unwrap_or_default()) {
            let problem = self.problem(Code::DiffArgType, "it has other arguments");
            let at = self.definition.args.get(index).map(|argument| argument.span);
            let span = at.unwrap_or(Span::point(self.definition.span.end));
            return Diagnostic { span, ..problem };
        }
        let same = existing.iter().filter_map(|one| one.definition.as_ref()).any(|one| self.is_same(one));
        if same {
            return self.problem(Code::SameProbe, "it is exactly this probe");
        }
        self.problem(Code::WouldAppend, "the kernel would add this probe point to it")
    }

    /// What to do about the name that is taken.
    fn hint(&self, code: Code) -> String {
        let name = self.name;
        match (code, self.ours) {
            (Code::SameProbe, true) => format!(
                "`kprobectl observe {name}` shows its events; for a probe of your own, leave the name out: the daemon chooses a free one"
            ),
            (Code::ProbeExists, _) => {
                format!("choose another name, or delete the old probe first: `kprobectl delete {name}`")
            }
            (_, true) => format!(
                "leave the name out: the daemon chooses a free one; or `kprobectl observe {name}` shows the events of that probe"
            ),
            (Code::SameProbe, false) => format!("`kprobectl adopt {name}` takes it over"),
            (Code::EventExist, false) => "choose another name".to_owned(),
            (_, false) => format!(
                "choose another name; or take the event over with `kprobectl adopt {name}`, and delete it then"
            ),
        }
    }

    /// Whether place and expressions are the same as well. The kernel knows no symbol of an
    /// address, and takes all of them for one.
    fn is_same(&self, other: &ProbeDefinition) -> bool {
        let same_place = match (&self.definition.place, &other.place) {
            (Place::Address { .. }, Place::Address { .. }) => true,
            (
                Place::Symbol { module, symbol, offset, .. },
                Place::Symbol { module: other_module, symbol: other_symbol, offset: other_offset, .. },
            ) => (module, symbol, offset) == (other_module, other_symbol, other_offset),
            _ => false,
        };
        let body = |argument: &Argument| Argument { name: None, ..argument.clone() }.to_string();
        same_place && self.definition.args.iter().map(body).eq(other.args.iter().map(body))
    }

    /// The kernel's caret is at the beginning of the line.
    fn problem(&self, code: Code, what: &str) -> Diagnostic {
        let name = self.name;
        let message = if self.ours {
            format!("kprobed has a probe `{name}` already: {what}")
        } else {
            format!("the event `{name}` exists, and kprobed did not define it: {what}")
        };
        let ProbeDefinition { span, event, place, .. } = self.definition;
        let end = event.as_ref().map_or(place.span().start, |event| event.span.end);
        let end = if end > span.start { end } else { span.end };
        Diagnostic::error(code, Span::new(span.start, end), message).with_hint(self.hint(code))
    }
}

/// The first argument in which two events differ
/// (kernel/trace/trace_probe.c:trace_probe_compare_arg_type): if they have different numbers of
/// arguments, the first that only one of them has.
fn first_difference(args: &[Argument], others: &[Argument]) -> Option<usize> {
    if args.len() != others.len() {
        return Some(args.len().min(others.len()));
    }
    args.iter().zip(others).position(|(argument, other)| record(argument) != record(other))
}

/// What the kernel compares of an argument: name, type as the kernel distinguishes types, and
/// length of the array.
fn record(argument: &Argument) -> (Option<&str>, BaseType, Option<u8>) {
    let base = match argument.base_type() {
        BaseType::BitField { container, .. } => BaseType::Unsigned(container),
        BaseType::DentryName | BaseType::FileName | BaseType::Path => BaseType::String,
        base => base,
    };
    let name = argument.name.as_ref().map(|name| name.text.as_str());
    (name, base, argument.ty.and_then(|ty| ty.count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprobed_lang::definition::RefusedBy;

    fn definition(line: &str) -> ProbeDefinition {
        let features = Features::from_readme("char, string, ustring kernel return probes support");
        match parse(line, &features) {
            Ok(Definition::Probe(definition)) => definition.with_explicit_names(),
            other => panic!("{line}: {other:?}"),
        }
    }

    fn existing(line: &str) -> Existing {
        Existing { is_return: line.starts_with('r'), definition: Some(definition(line)) }
    }

    /// The code and column of the problem with `line`, if an event of its name consists of `lines`.
    fn against(line: &str, lines: &[&str]) -> (Code, usize) {
        let definition = definition(line);
        let name = ProbeName::new("g", "e").unwrap();
        let subject = Subject { definition: &definition, name: &name, ours: false };
        let existing: Vec<_> = lines.iter().map(|line| existing(line)).collect();
        let problem = subject.against(&existing);
        assert_eq!(problem.errno, 17, "EEXIST: {problem:?}");
        (problem.code, problem.span.start)
    }

    #[test]
    fn the_kernel_compares_kind_then_arguments_then_everything() {
        assert_eq!(against("p:g/e f", &[]), (Code::EventExist, 0));
        assert_eq!(against("r:g/e f", &["p:g/e f"]), (Code::DiffProbeType, 0));
        assert_eq!(against("p:g/e f", &["r4:g/e f"]), (Code::DiffProbeType, 0));
        assert_eq!(against("p:g/e f a=%di b=%si", &["p:g/e f a=%di"]), (Code::DiffArgType, 14));
        assert_eq!(against("p:g/e f a=%di", &["p:g/e f a=%di b=%si"]), (Code::DiffArgType, 13));
        assert_eq!(against("p:g/e f a=%di b=%si", &["p:g/e f a=%di c=%si"]), (Code::DiffArgType, 14));
        assert_eq!(against("p:g/e f a=%di:u32", &["p:g/e f a=%di"]), (Code::DiffArgType, 8));
        assert_eq!(against("p:g/e f a=%di:x64", &["p:g/e f a=%si"]), (Code::WouldAppend, 0));
        assert_eq!(against("p:g/e f a=%di", &["p:g/e f a=%di"]), (Code::SameProbe, 0));
        assert_eq!(against("p:g/e f+4 a=%di", &["p:g/e f a=%di"]), (Code::WouldAppend, 0));
        assert_eq!(against("p:g/e f+4 a=%di", &["p:g/e f a=%di", "p:g/e f+4 a=%di"]), (Code::SameProbe, 0));
        assert_eq!(against("p:g/e 0x10", &["p:g/e 0x20"]), (Code::SameProbe, 0));
    }

    /// A name that is taken is not the end: the hint names what can be done about it.
    #[test]
    fn a_taken_name_has_a_remedy() {
        let definition = definition("p:g/e f a=%di");
        let name = ProbeName::new("g", "e").unwrap();
        let hint = |ours, lines: &[&str]| {
            let subject = Subject { definition: &definition, name: &name, ours };
            let existing: Vec<_> = lines.iter().map(|line| existing(line)).collect();
            subject.against(&existing).hint.unwrap()
        };
        assert_eq!(hint(false, &["p:g/e f a=%di"]), "`kprobectl adopt g/e` takes it over");
        for other in ["p:g/e f+4 a=%di", "p:g/e f", "r:g/e f a=%di"] {
            assert!(hint(false, &[other]).contains("choose another name; or take the event over with"));
        }
        assert_eq!(hint(false, &[]), "choose another name", "it is no kprobe, which cannot be adopted");
        assert!(hint(true, &["p:g/e f a=%di"]).starts_with("`kprobectl observe g/e` shows its events"));
        assert!(hint(true, &["p:g/e f"]).contains("leave the name out"));
    }

    #[test]
    fn a_generated_name_is_the_first_that_is_free() {
        let root = tempfile::tempdir().unwrap();
        let names = Names::new(Tracefs::new(root.path(), root.path()), Arc::<Registry>::default());
        assert_eq!(names.free_event("kprobes", "p_f_0", &HashSet::new()), "p_f_0");
        let longest = "p".repeat(EVENT_MAX_BYTES);
        for taken in ["p_f_0", "p_f_0_2", longest.as_str()] {
            std::fs::create_dir_all(root.path().join("events/kprobes").join(taken)).unwrap();
        }
        assert_eq!(names.free_event("kprobes", "p_f_0", &HashSet::new()), "p_f_0_3");
        let cut = names.free_event("kprobes", &longest, &HashSet::new());
        assert!(cut.len() == EVENT_MAX_BYTES && cut.ends_with("pp_2"), "{cut}");
    }

    #[test]
    fn an_event_of_the_host_is_there_and_has_one_probe() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("events/sched/sched_switch")).unwrap();
        std::fs::write(root.path().join("events/sched/sched_switch/enable"), "0\n").unwrap();
        std::fs::create_dir_all(root.path().join("events/ftrace/print")).unwrap();
        let registry = Arc::<Registry>::default();
        let names = Names::new(Tracefs::new(root.path(), root.path()), Arc::clone(&registry));
        let problem = |group, event| names.unrecordable((group, event), Span::default());
        assert_eq!(problem("sched", "sched_switch"), None);
        let missing = problem("shed", "sched_switch").unwrap();
        assert_eq!((missing.code, missing.errno), (Code::NoSuchEvent, 2));
        assert!(missing.hint.unwrap().contains("functions --events"));
        assert_eq!(problem("ftrace", "print").unwrap().code, Code::EventHasNoSwitch);
        let recorded = |kind| {
            let probe = Probe { kind, ..crate::samples::probe(1, "sched/sched_switch") };
            recorded_already(&probe, Span::default())
        };
        let again = recorded(ProbeKind::Event);
        assert!(again.code == Code::ProbeExists && again.message.contains("one filter"), "{again:?}");
        assert!(recorded(ProbeKind::Entry).message.contains("a probe of kprobed itself"));
    }

    #[test]
    fn a_deletion_names_ours_or_says_why_not() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("kprobe_events"), "p:theirs/one f\n").unwrap();
        let names = Names::new(Tracefs::new(root.path(), root.path()), Arc::<Registry>::default());
        let features = Features::from_readme("");
        let refused = |line: &str| match parse(line, &features) {
            Ok(Definition::Delete(delete)) => {
                let problem = names.deleted_by(&delete).unwrap_err();
                (problem.code, problem.by, problem.errno)
            }
            other => panic!("{line}: {other:?}"),
        };
        for line in ["-:keep/nosuch", "-:nosuch", "-:theirs/two", "-:other/"] {
            assert_eq!(refused(line), (Code::NoSuchProbe, RefusedBy::Kernel, 2), "{line}");
        }
        for line in ["-:one", "-:theirs/", "-:theirs/one"] {
            assert_eq!(refused(line), (Code::ForeignProbe, RefusedBy::Kprobed, 2), "{line}");
        }
        assert_eq!(refused("-:theirs/one f"), (Code::DeletesLocation, RefusedBy::Kprobed, 22));
    }
}
