//! Meaning checks when modules come and go: what is defined when a module is loaded, and taken out of the kernel when
//! it is unloaded.
//!
//! Owns which probes are compared then, and that a probe that waited gets its place. The kernel keeps the event
//! of a probe whose module has gone, and arms it while it loads a module of that name
//! (kernel/trace/trace_kprobe.c: trace_kprobe_module_callback), before any program can compare builds. So the
//! daemon takes it out as soon as the kernel reports that the module has gone, and defines it again after the
//! module has begun to run. What the module does until then is not recorded, and not counted. If another build
//! follows the first one sooner than the daemon notices, the kernel arms the probe, and the next look takes it
//! out.

use std::sync::Arc;

use super::controller::Controller;
use super::guard::{Compared, Held, look, placed};
use super::judge::{Grounds, Work, each};
use super::{Probe, ProbeState};
use crate::error::Error;
use kprobed_host::kernel::BuildIds;

impl Controller {
    /// Whether a probe depends on a module, so that it must be compared at every look.
    pub(super) fn has_modules_to_watch(&self) -> bool {
        !self.parts.registry.of_modules().is_empty()
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
        let (mut held, mut cleared) = (Vec::new(), Vec::new());
        for (probe, compared) in self.compared(probes).await {
            match compared.and_then(|now| placed(&checker, now, &mut recent)) {
                Ok(now) => cleared.push((probe, now)),
                Err(found) => held.push((probe, found)),
            }
        }
        self.hold_all(held).await;
        self.bring_back_cleared(cleared).await;
        self.triggers.forget_own();
    }

    /// Compares what probes mean on this kernel with what they were made for, and stores what is new of that. Returns
    /// each as it is now, or why it is held back.
    pub(super) async fn compared(&self, probes: Vec<Arc<Probe>>) -> Vec<(Arc<Probe>, Compared)> {
        let checker = Arc::clone(&self.parts.checker);
        let mut facts = checker.recent_facts();
        let mut compared = Vec::with_capacity(probes.len());
        for probe in probes {
            let guarded = look(&checker, &self.parts.rights, &probe, &mut facts);
            let now = guarded.map(|guarded| Probe::clone(&probe).guarded(guarded));
            compared.push((probe, now));
        }
        let unsaved = compared.iter().filter_map(|(probe, now)| {
            let now = now.as_ref().ok()?;
            (now.meaning != probe.meaning).then_some(&now.record)
        });
        if let Err(error) = self.parts.store.note(&unsaved.collect::<Vec<_>>()).await {
            // The next start compares again.
            tracing::warn!(%error, "cannot write down what probes mean on this kernel");
        }
        compared
    }

    /// Takes the probes out of the kernel whose module has gone, or was loaded as another build. Reads nothing but the
    /// list of modules and their build ids: the next module of that name can come at once. Of a place that was
    /// written as an address the kernel remembers no module.
    pub(super) async fn leave_absent_modules(&mut self) {
        let mut probes = self.parts.registry.of_modules();
        probes.retain(|probe| probe.state.is_in_kernel() && !probe.guarded.is_by_address());
        if probes.is_empty() {
            return;
        }
        let Some(modules) = self.observer.modules() else { return };
        let builds = BuildIds::read(&self.parts.procfs, &self.parts.sysfs);
        let held = probes.into_iter().filter_map(|probe| {
            let module = probe.guarded.module()?.to_owned();
            let is_loaded = modules.contains(&module);
            if is_loaded && !probe.guarded.is_of_other_build(&builds) {
                return None;
            }
            let held = Held::without_module(&probe, &module, is_loaded);
            Some((probe, Box::new(held)))
        });
        let held: Vec<_> = held.collect();
        if !held.is_empty() {
            self.hold_all(held).await;
            self.triggers.forget_own();
        }
    }

    /// Takes probes out of the kernel that must not be there, with the aggregations that count them.
    async fn hold_all(&mut self, held: Vec<(Arc<Probe>, Box<Held>)>) {
        // What was written to until here was written to by others.
        self.triggers.set_apart();
        let (there, absent): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|(probe, _)| probe.state.is_in_kernel());
        for (probe, found) in absent {
            self.parts.registry.put(found.hold(Probe::clone(&probe)));
        }
        let probes: Vec<_> = there.iter().map(|(probe, _)| Arc::clone(probe)).collect();
        let mut works = self.taking_out_of_use(&probes).await;
        for (work, (probe, found)) in works.iter_mut().zip(there) {
            work.job.probe = found.hold(Probe::clone(&probe));
        }
        for (probe, outcome) in probes.iter().zip(self.change(each(works)).await) {
            // The next look tries again.
            if let Err(error) = outcome {
                tracing::warn!(probe = %probe.name, %error, "cannot take out a probe that is held back");
            }
        }
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
                Ok(job) => work.push(Work { is_to_record, ..Work::new(Some(before), job) }),
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
