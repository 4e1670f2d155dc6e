//! Meaning checks when modules are loaded: probes in a module that comes back as another build are
//! compared again, and probes in a module that was not loaded when they were checked are checked.
//!
//! Owns which probes are compared then, what is armed and removed, and that a probe that waited gets its
//! place. The kernel itself arms a
//! probe when its module is loaded (kernel/trace/trace_kprobe.c:trace_kprobe_module_callback),
//! before any program can compare builds. So on the kernel that a probe was made for, it waits in
//! the kernel and loses nothing of the module's start. Another build of the module is noticed with
//! the look that its loading causes (see [`super::triggers`]), and the probe is removed then: the
//! daemon keeps what it has recorded until then. On another kernel the probe is never in the kernel
//! before its module is loaded and was compared.

use std::sync::Arc;

use super::controller::{Controller, in_kernel};
use super::guard::{Looked, look, placed};
use super::judge::{Before, Grounds, Work, each};
use super::{Probe, ProbeState};
use crate::error::Error;

impl Controller {
    /// Whether a probe depends on a module, so that it must be compared at every look.
    pub(super) fn has_modules_to_watch(&self) -> bool {
        self.parts.registry.has_of_modules()
    }

    /// Compares probes again whose module is loaded as another build than before: arms those that
    /// were held back for it, and removes those that record something else now, or whose place this
    /// daemon refuses.
    pub(super) async fn watch_modules(&mut self) {
        let mut probes = self.parts.registry.of_modules();
        if probes.is_empty() {
            return;
        }
        let facts = match self.parts.facts.current() {
            Ok(facts) => facts,
            Err(error) => return tracing::warn!(%error, "cannot compare the builds of modules"),
        };
        probes.retain(|probe| probe.guarded.has_another_module(&facts));
        let checker = Arc::clone(&self.parts.checker);
        let mut recent = checker.recent_facts();
        let (mut held, mut cleared, mut unsaved) = (Vec::new(), Vec::new(), Vec::new());
        for probe in probes {
            match look(&checker, &self.parts.rights, &probe, &mut recent) {
                Looked::Held(found) => held.push((probe, found)),
                Looked::Clear(guarded) => {
                    let is_other = guarded.is_other_than(&probe.guarded);
                    let now = Probe::clone(&probe).guarded(guarded);
                    if is_other {
                        unsaved.push(now.record.clone());
                    }
                    match placed(&checker, now, &mut recent) {
                        Ok(now) => cleared.push((probe, now)),
                        Err(found) => held.push((probe, found)),
                    }
                }
            }
        }
        if !unsaved.is_empty()
            && let Err(error) = self.parts.store.note(&unsaved.iter().collect::<Vec<_>>()).await
        {
            tracing::warn!(%error, "cannot write down what probes mean in a module that was loaded");
        }
        // What was written to until here was written to by others.
        self.triggers.set_apart();
        let (there, absent): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|(probe, _)| in_kernel(&probe.state));
        for (probe, found) in absent {
            self.parts.registry.put(found.hold(Probe::clone(&probe)));
        }
        let names: Vec<_> = there.iter().map(|(probe, _)| probe.name.clone()).collect();
        let out = there.into_iter().map(|(probe, found)| {
            let held = found.hold(Probe::clone(&probe));
            Work::taking_out(&probe, Some(held), None)
        });
        for (name, outcome) in names.into_iter().zip(self.change(each(out.collect())).await) {
            // The next look tries again.
            if let Err(error) = outcome {
                tracing::warn!(probe = %name, %error, "cannot take out a probe that is held back");
            }
        }
        self.bring_back_cleared(cleared).await;
        self.triggers.forget_own();
    }

    /// Arms the probes that were held back, and notes those that need no arming.
    async fn bring_back_cleared(&mut self, cleared: Vec<(Arc<Probe>, Probe)>) {
        let (back, rest): (Vec<_>, Vec<_>) =
            cleared.into_iter().partition(|(before, _)| matches!(before.state, ProbeState::HeldBack(_)));
        for (_, probe) in rest {
            self.parts.registry.put(probe);
        }
        if back.is_empty() {
            return;
        }
        let checker = Arc::clone(&self.parts.checker);
        let probes: Vec<_> = back.iter().map(|(before, _)| Arc::clone(before)).collect();
        let mut grounds = Grounds::new(checker.recent_facts(), self.observer.observe(&probes));
        let mut work = Vec::new();
        for (before, probe) in back {
            let is_to_record = probe.is_to_record();
            match self.define_anew(probe.clone(), &mut grounds) {
                Ok(job) => {
                    work.push(Work::new(Some(Before { probe: before, drifted: false, is_to_record }), job));
                }
                Err(error) => self.cannot_arm(probe, &error),
            }
        }
        let probes: Vec<_> = work.iter().map(|one| one.probe().clone()).collect();
        for (probe, outcome) in probes.into_iter().zip(self.change(each(work)).await) {
            if let Err(error) = outcome {
                self.cannot_arm(Probe { own: None, schema: None, ..probe }, &error);
            }
        }
    }

    fn cannot_arm(&self, probe: Probe, error: &Error) {
        tracing::warn!(probe = %probe.name, %error, "cannot arm a probe that was held back");
        self.parts.registry.put(Probe { state: ProbeState::kept_out(error), ..probe });
    }
}
