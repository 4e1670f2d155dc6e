//! A job: a change of one probe under way, with its steps, what was done, and how it ended.
//!
//! Owns how far the steps got. Never writes to the kernel: [`super::execute`] does.

use std::collections::VecDeque;
use std::sync::Arc;

use super::step::Step;
use super::{Probe, ProbeState, Trouble};
use crate::error::Error;
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::Hits;
use kprobed_trace::pipeline::EventSource;
use kprobed_verdict::checker::CheckOutcome;

/// The change.
#[derive(Debug)]
pub(super) struct Job {
    /// The probe as it is to be. Once it is defined, with its event and schema.
    pub(super) probe: Probe,
    /// The check of its definition, if it is to be defined.
    pub(super) basis: Option<Box<CheckOutcome>>,
    steps: VecDeque<Step>,
    /// The steps that were carried out.
    pub(super) done: Vec<Step>,
    /// The source of its events, if it was defined.
    pub(super) source: Option<Arc<EventSource>>,
    /// How often it had been hit by the time that it was switched.
    pub(super) hits: Option<u64>,
    /// How many of these hits came while it was being switched off.
    pub(super) hits_meanwhile: u64,
    /// What the kernel had counted of an event that is adopted.
    pub(super) until_now: Option<Hits>,
    /// Its event could not be taken back.
    pub(super) left_behind: bool,
    /// Why it ended.
    pub(super) outcome: Result<(), Error>,
}

impl Job {
    /// Changes the event that `probe` has.
    pub(super) fn change(probe: Probe, steps: Vec<Step>) -> Self {
        Self {
            probe,
            basis: None,
            steps: steps.into(),
            done: Vec::new(),
            source: None,
            hits: None,
            hits_meanwhile: 0,
            until_now: None,
            left_behind: false,
            outcome: Ok(()),
        }
    }

    /// Defines `probe`, or begins to record its event of the host. If its module is not loaded, the job holds it back
    /// instead: nothing proves its place, and the kernel would arm it while it loads the module
    /// (kernel/trace/trace_kprobe.c: trace_kprobe_module_callback), before the daemon can look. That goes for the first
    /// instruction of a function too. Ftrace arms it there without harm, but only in functions that it can trace. In
    /// others, such as those of assembly, the first instruction can have an entry in the exception table or be a jump,
    /// code can enter behind it, and the function can be the last one of its module: each rule that objects to
    /// a place in a module objects to some first instructions.
    pub(super) fn define(mut probe: Probe, basis: CheckOutcome, steps: Vec<Step>) -> Self {
        // How the kernel lists it is not known before.
        probe.record.kernel_listing.clear();
        let Some(module) = &basis.report.absent_module else {
            return Self { basis: Some(Box::new(basis)), ..Self::change(probe, steps) };
        };
        let state = ProbeState::HeldBack(Trouble::module_absent(module, &basis.definition.warnings));
        Self::change(Probe { state, own: None, schema: None, ..probe }, Vec::new())
    }

    /// What is still to be done, in order.
    pub(super) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter()
    }

    /// The next step, unless the job has failed.
    pub(super) fn next(&self) -> Option<&Step> {
        self.steps.front().filter(|_| self.outcome.is_ok())
    }

    pub(super) fn is_next(&self, step: &Step) -> bool {
        self.next() == Some(step)
    }

    pub(super) fn defines(&self) -> bool {
        matches!(self.next(), Some(Step::Define { .. }))
    }

    /// Whether it begins to record an event of the host.
    pub(super) fn begins_host_event(&self) -> bool {
        self.basis.is_some() && self.probe.kind == ProbeKind::Event
    }

    /// Whether it leaves an event switched off that existed before and whose hits until then are
    /// not known.
    pub(super) fn is_off_and_not_counted(&self) -> bool {
        !self.probe.is_to_record() && self.basis.is_none() && !self.done.is_empty() && self.hits.is_none()
    }

    /// Whether it takes the event out of the kernel: see [`super::remove`].
    pub(super) fn takes_out(&self) -> bool {
        self.steps.front() == Some(&Step::Delete)
    }

    /// Whether it is about an event that exists.
    pub(super) fn changes_an_event(&self) -> bool {
        !self.defines() && self.next().is_some()
    }

    /// Carries out the next step.
    pub(super) fn take_step(&mut self, act: impl FnOnce(&Probe, &Step) -> Result<(), Error>) {
        let Some(step) = self.steps.pop_front() else { return };
        match act(&self.probe, &step) {
            Ok(()) => self.done.push(step),
            Err(error) => self.outcome = Err(error),
        }
    }

    /// Ends it, if that says so.
    pub(super) fn require(&mut self, found: Result<(), Error>) {
        if let (Ok(()), Err(error)) = (&self.outcome, found) {
            self.outcome = Err(error);
        }
    }
}
