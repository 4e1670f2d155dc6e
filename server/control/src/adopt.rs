//! Adoption of an event that the kernel has: it becomes a probe of the daemon, and stays as it is.
//!
//! Owns which events can be adopted, and what is recorded from when on. The daemon records an adopted event as it is,
//! and defines it anew if it is lost or the host was booted: so it must be one that the daemon would define itself.
//! Before the adoption the event is not the daemon's to remove: what is taken back after a crash is that it is
//! recorded. Never writes to another instance than the daemon's own: what other programs have switched on stays on.

use std::sync::Arc;
use std::time::SystemTime;

use super::command::Changed;
use super::controller::Controller;
use super::create::refuse;
use super::job::Job;
use super::judge::{Grounds, Judged, Work};
use super::observed::{ObservedEvent, Switch};
use super::source::{event_source, of_stored};
use super::step::{self, Aim, Seen, Step};
use super::{Observed, Probe, Sight, own};
use crate::auth::Caller;
use crate::error::{Error, Reason};
use crate::store::{ProbeSpec, Record, RequestKey};
use kprobed_host::kernel::RecentFacts;
use kprobed_host::tracefs::{OwnEvent, Presence};
use kprobed_lang::definition::{BaseType, Code, Place, guard};
use kprobed_lang::model::{Labels, Metadata, MetadataChange, ProbeName, ProbeUid};
use kprobed_verdict::checker::{CheckOutcome, Checker, DefinitionText, Taken};

/// Make a probe of an event that the kernel has.
#[derive(Clone, Debug)]
pub struct AdoptRequest {
    /// The event.
    pub name: ProbeName,
    /// Record it. Absent: as it is in the daemon's instance.
    pub enabled: Option<bool>,
    /// Kernel filter; empty for none. Absent: as it is in the daemon's instance.
    pub filter: Option<String>,
    /// Its labels.
    pub labels: Labels,
    /// For a file that declares the probe.
    pub declared: Option<Declared>,
    /// Makes the request safe to repeat.
    pub request: Option<RequestKey>,
    /// Check only.
    pub validate_only: bool,
}

/// The declaration of a file whose event the kernel has already. An event is adopted only if it
/// looks as if a daemon had made it whose database was lost, and if it is exactly what is declared.
#[derive(Clone, Debug)]
pub struct Declared {
    /// The definition, in the words of the file.
    pub definition: Arc<DefinitionText>,
    /// What is kept with the probe.
    pub metadata: MetadataChange,
}

impl Controller {
    /// Whether an event can become a probe as requested.
    pub(super) async fn judge_adoption(
        &self,
        caller: &Caller,
        request: AdoptRequest,
        grounds: &mut Grounds<'_>,
    ) -> Result<Judged, Error> {
        let name = &request.name;
        self.require_named(caller, name, &request.labels)?;
        if let Some(key) = &request.request
            && let Some(uid) = self.parts.store.carried_out(key).await?
        {
            return Ok(Judged::Done(Changed::Probe(self.repeated(caller, key, uid)?)));
        }
        let (mut probe, seen) = self.adoption(caller, &request)?;
        let rule = self.require(caller, &probe)?;
        // An adopted event has no lease. What a file declares is not limited.
        self.require_lease(caller, name, None)?;
        self.require_room(caller, name, &mut grounds.made_by)?;
        probe.record = probe.record.by(&caller.principal);
        self.judge_adopted_filter(&probe, &seen)?;
        let steps = steps(&probe, &seen);
        let work = Work::new(None, Job::change(probe, steps));
        Ok(Judged::Work(vec![work.asked("adopt", (caller, rule), request.request)]))
    }

    /// Whether an event can be adopted as requested, except for its filter: the probe that it becomes, and how it is
    /// now. Writes nothing.
    fn adoption(&self, caller: &Caller, request: &AdoptRequest) -> Result<(Probe, Seen), Error> {
        let AdoptRequest { name, enabled, filter, labels, declared, .. } = request;
        let refused = |obstacle: Obstacle| {
            let message = format!("`{name}` cannot be adopted: {}", obstacle.message);
            Error::new(Reason::NOT_ADOPTABLE, message).with("event", name).with("obstacle", obstacle.code)
        };
        if let Some(probe) = self.parts.registry.get(name) {
            // The caller must not learn of a probe that his role hides.
            if !Sight::new(&self.parts.rights, caller.clone()).shows(&probe) {
                return Err(Error::no_event(name));
            }
            let message = format!("kprobed has a probe of this name: `kprobectl get {name}`");
            return Err(refused(Obstacle::new("NAME_OF_PROBE", message)));
        }
        let lines: Vec<_> = self.tracefs().kprobe_list()?.lines_of(name).map(str::to_owned).collect();
        let Some(listing) = lines.first() else {
            if !self.tracefs().has_event(name.group(), name.event()) {
                return Err(Error::no_event(name));
            }
            let message = format!("it is not a kprobe event: `kprobectl add {name}` records it");
            return Err(refused(Obstacle::new("NOT_A_KPROBE", message)));
        };
        let checker = Arc::clone(&self.parts.checker);
        let found = judge(&checker, &mut checker.recent_facts(), (name.group(), name.event()), &lines);
        let outcome = found.map_err(refused)?;
        let mut metadata = Metadata::default();
        let outcome = match declared {
            None => outcome,
            Some(declared) => {
                let ours = has_guards(listing) || self.parts.instance.is_enabled(name).unwrap_or(false);
                let as_declared = checker.check_text(&declared.definition, &mut checker.recent_facts())?;
                let is_same = |taken: Taken| taken.name == *name && taken.problem.code == Code::SameProbe;
                if !ours || !checker.taken(&as_declared).is_some_and(is_same) {
                    return Err(Error::exists_foreign(name));
                }
                metadata = metadata.changed(declared.metadata.clone(), &self.leases.now());
                as_declared
            }
        };
        let gone = || own::missing(Presence::Absent, name);
        let id = self.tracefs().event_id(name)?.ok_or_else(gone)?;
        let own = OwnEvent::made(name, listing, id);
        let definition = Arc::clone(&outcome.text);
        let spec = ProbeSpec { definition, labels: labels.clone(), metadata, ..ProbeSpec::default() };
        let record = Record::new(name.clone(), spec, own.listing.clone(), SystemTime::now());
        let record = Record { kernel_listing: own.listing.clone(), adopted: true, ..record };
        let mut probe = Probe { own: Some(own), ..Probe::checked(record, &outcome) };
        let Observed { switches, mut events, .. } = self.observer.observe(&[Arc::new(probe.clone())]);
        let Some(ObservedEvent::There { seen, .. }) = events.remove(&probe.uid) else { return Err(gone()) };
        let enabled = enabled.unwrap_or(seen.switch != Switch::Off);
        if enabled {
            switches.require_firing(outcome.definition.kind, outcome.report.arming)?;
        }
        let wanted = &mut probe.record.spec;
        wanted.enabled = enabled;
        wanted.filter = filter.clone().unwrap_or_else(|| seen.filter.clone());
        probe.state = probe.settled();
        Ok((probe, seen))
    }

    /// Has the kernel judge the filter.
    fn judge_adopted_filter(&self, probe: &Probe, seen: &Seen) -> Result<(), Error> {
        let filter = &probe.spec.filter;
        if filter.is_empty() || filter.trim() == seen.filter.trim() {
            return Ok(());
        }
        // Until it is adopted it is another program's, as the events of the host are.
        let found = self.tracefs().host_event(&probe.name)?;
        let event = found.ok_or_else(|| Error::no_event(&probe.name))?;
        self.executor().judge_filter(&event, filter, None)
    }

    /// Has the events of an adopted one read as those of a probe from now on. What it has recorded before is read while
    /// it belongs to no probe, so that the account begins with the hits from now on.
    pub(super) fn begin_to_read(&mut self, job: &mut Job) -> Result<(), Error> {
        let Some(own) = job.probe.own.clone() else {
            return Err(own::missing(Presence::Absent, &job.probe.name));
        };
        let checker = &*self.parts.checker;
        let (definition, notations) =
            of_stored(checker, &job.probe.spec.definition, &mut checker.recent_facts())?;
        let source = event_source(&self.parts, &job.probe.record, (&definition, &notations))?;
        if job.is_next(&Step::Disable) {
            job.take_step(|_probe, _step| Ok(self.parts.instance.set_enabled(&own.name, false)?));
            self.readers.drain();
        }
        let counts = self.tracefs().hit_counts().unwrap_or_default();
        job.until_now = Some(counts.of(&own).unwrap_or_default());
        job.probe.schema = Some(Arc::clone(&source.origin.schema));
        self.sources.insert([(source.origin.type_id, Arc::clone(&source))]);
        job.source = Some(source);
        Ok(())
    }

    /// An adoption that the daemon has not acknowledged before it ended: the event is not recorded, and stays.
    pub(super) fn leave_alone(&mut self, name: &ProbeName, uid: ProbeUid) {
        let instance = &self.parts.instance;
        let off = instance.set_enabled(name, false).and_then(|()| instance.set_filter(name, ""));
        if let Err(error) = off {
            tracing::warn!(event = %name, %error, "cannot switch off an event that was not adopted");
        }
        self.readers.drain();
        self.forget_live(&[uid]);
    }
}

/// The steps that bring the event to what is wanted. If it is on, it is switched off first: see
/// [`Controller::begin_to_read`].
fn steps(probe: &Probe, seen: &Seen) -> Vec<Step> {
    let is_on = seen.switch != Switch::Off;
    let seen = Seen { unarmed: seen.unarmed || is_on, ..seen.clone() };
    step::change(&seen, Aim::of(probe))
}

/// Why an event cannot be adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// For programs: in upper snake case.
    pub(super) code: &'static str,
    /// For people: a sentence without its full stop.
    pub(super) message: String,
}

impl Obstacle {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Whether a line has arguments that only this daemon adds.
pub(super) fn has_guards(listing: &str) -> bool {
    listing.split(' ').any(|word| word.starts_with(guard::PREFIX))
}

/// A line of the kernel as its writer may have written it: without the arguments that this daemon
/// adds. Values contain no blanks: the kernel cuts a definition at each of them.
pub(super) fn without_guards(listing: &str) -> String {
    let words: Vec<_> = listing.split(' ').filter(|word| !word.starts_with(guard::PREFIX)).collect();
    words.join(" ")
}

/// Judges an event by its lines. Returns the outcome of the check of its definition.
pub(super) fn judge(
    checker: &Checker,
    facts: &mut RecentFacts<'_>,
    (group, event): (&str, &str),
    lines: &[String],
) -> Result<CheckOutcome, Obstacle> {
    ProbeName::new(group, event).map_err(|error| Obstacle::new("NAME", error.to_string()))?;
    let [listing] = lines else {
        let message =
            format!("it has {} probe points under one name, and a probe of kprobed has one", lines.len());
        return Err(Obstacle::new("SEVERAL_PLACES", message));
    };
    let text = Arc::new(DefinitionText::new(without_guards(listing)));
    let written = checker.probe(&text).map_err(|error| {
        Obstacle::new("UNREADABLE", format!("its definition is in words that kprobed does not know: {error}"))
    })?;
    if let Place::Address { .. } = written.place {
        // The kernel hashes it (kernel/trace/trace_kprobe.c: trace_kprobe_show prints it with %p).
        let message =
            "it is placed by its address, and the kernel does not say which: kprobed cannot define it again";
        return Err(Obstacle::new("ADDRESS", message));
    }
    if written.args.iter().any(|argument| argument.base_type() == BaseType::SymbolString) {
        let message = "it has an argument of type `symstr`, which kprobed defines in another way";
        return Err(Obstacle::new("SYMBOL_NAMES", message));
    }
    let outcome =
        checker.check_text(&text, facts).map_err(|error| Obstacle::new("UNREADABLE", error.to_string()))?;
    if let Some(module) = &outcome.report.absent_module {
        let message = format!(
            "its module `{module}` is not loaded, so that nothing proves its address: load the module first"
        );
        return Err(Obstacle::new(Code::ModuleAbsent.name(), message));
    }
    refuse(text.as_str(), &outcome, None)
        .map_err(|error| Obstacle::new("REFUSED", format!("kprobed would not define it again: {error}")))?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use kprobed_host::kernel::{FactsCache, KernelPaths};
    use kprobed_lang::definition::Features;

    /// The code of the obstacle to these lines, on a kernel of which nothing is known.
    fn obstacle(lines: &[&str]) -> &'static str {
        let nowhere = || "/nonexistent".into();
        let paths =
            KernelPaths { procfs: nowhere(), sysfs: nowhere(), tracefs: nowhere(), debugfs: nowhere() };
        let facts = Arc::new(FactsCache::new(paths));
        let checker = Checker::new(Features::from_readme("char, string, symstr, ustring"), facts);
        let lines: Vec<_> = lines.iter().map(|line| (*line).to_owned()).collect();
        judge(&checker, &mut checker.recent_facts(), ("g", "e"), &lines).unwrap_err().code
    }

    #[test]
    fn what_kprobed_could_not_define_itself_is_not_adopted() {
        assert_eq!(obstacle(&["p:g/e f", "p:g/e h"]), "SEVERAL_PLACES");
        assert_eq!(obstacle(&["p:g/e f a=%nosuch"]), "UNREADABLE");
        assert_eq!(obstacle(&["-:g/e"]), "UNREADABLE");
        assert_eq!(obstacle(&["p:g/e 0x00000000a1b2c3d4 a=%di:x64"]), "ADDRESS");
        assert_eq!(obstacle(&["p:g/e f a=%di:symstr"]), "SYMBOL_NAMES");
        // The only question left is one to the kernel, of which nothing is known here.
        assert_eq!(obstacle(&["p:g/e f a=%di:u64 __kpd_end=$comm:string"]), "UNREADABLE");
    }

    #[test]
    fn a_line_of_ours_is_read_without_what_we_added() {
        let line = "p:g/e f a=+0(%di):u64 __kpd_g0=-2147483647(+0(%di)):ustring __kpd_end=$comm:string";
        assert!(has_guards(line) && !has_guards("p:g/e f a__kpd_=%di"));
        assert_eq!(without_guards(line), "p:g/e f a=+0(%di):u64");
    }

    proptest! {
        /// Whatever is listed, nothing panics, and there is an obstacle: nothing is known of this
        /// kernel.
        #[test]
        fn any_line_is_judged(lines in prop::collection::vec("[pr-][0-9]{0,2}:g/e [ -~]{0,40}", 0..3)) {
            let lines: Vec<_> = lines.iter().map(String::as_str).collect();
            prop_assert!(!obstacle(&lines).is_empty());
        }
    }
}
