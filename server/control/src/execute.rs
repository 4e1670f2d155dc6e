//! Execution of steps: writing the changes of many probes to the kernel.
//!
//! Owns how the steps of many probes are taken together, in the [order](Step::order) of these. Reads each
//! list of the host once for all of them, and each event's id right before each write. If a step of
//! one probe fails, takes back the steps of that probe only. Never decides what is done, and never
//! touches the database or the readers.

use std::collections::HashMap;
use std::sync::Arc;

use super::budget::temporary_instance;
use super::controller::ControllerParts;
use super::job::Job;
use super::own;
use super::source::event_source;
use super::step::Step;
use crate::error::Error;
use kprobed_host::tracefs::{
    HitCounts, KernelMessage, KprobeList, OwnEvent, Presence, RegisteredProbe, Tracefs, TracefsError,
};
use kprobed_lang::definition::ProbeKind;
use kprobed_trace::decode::Schema;
use kprobed_trace::filter::{Filter, FilterError, Functions};
use kprobed_trace::pipeline::SourceTable;
use kprobed_verdict::validate::Report;

/// Probes that are switched between two readings of the hit counts. Hits of a probe between its
/// reading and its switching are put to the wrong term, if another program keeps the probe armed. A
/// reading costs as much as some switches.
const SWITCHED_AT_ONCE: usize = 256;

/// What is written to, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Executor<'a> {
    pub(super) parts: &'a ControllerParts,
    pub(super) sources: &'a SourceTable,
}

impl Executor<'_> {
    const fn tracefs(&self) -> &Tracefs {
        &self.parts.mounted.tracefs
    }

    /// Carries out the steps of these jobs. Those of a job that fails are taken back; how each
    /// ended is in its `outcome`.
    pub(super) fn carry_out(&self, jobs: &mut [&mut Job]) {
        self.begin_host_events(jobs);
        let mut existing = those(jobs, Job::changes_an_event);
        if !existing.is_empty() {
            self.require_listed(&mut existing);
        }
        self.disable(jobs);
        self.define(jobs);
        self.filter(jobs);
        self.enable(jobs);
        let mut off = those(jobs, Job::is_off_and_not_counted);
        if !off.is_empty() {
            self.count(&mut off);
        }
        for job in jobs.iter_mut().filter(|job| job.outcome.is_err()) {
            self.take_back(job);
        }
    }

    /// Finds the events of the host that are to be recorded. What an earlier run has left of them in the daemon's
    /// instance ends.
    fn begin_host_events(&self, jobs: &mut [&mut Job]) {
        for job in jobs.iter_mut().filter(|job| job.begins_host_event()) {
            let begun = self.begin_host_event(job);
            job.require(begun);
        }
    }

    fn begin_host_event(&self, job: &mut Job) -> Result<(), Error> {
        let Job { probe, source, basis: Some(basis), .. } = job else { return Ok(()) };
        let own = self.tracefs().host_event(&probe.name)?.ok_or_else(|| Error::no_event(&probe.name))?;
        if self.parts.instance.switch(&own.name)? != "0" {
            own::set_enabled(&self.parts.instance, probe, false)?;
        }
        if !self.parts.instance.filter(&own.name)?.is_empty() {
            self.parts.instance.set_filter(&own.name, "")?;
        }
        let made = event_source(self.parts, &probe.record, (&basis.definition, &basis.notations()))?;
        self.sources.insert([(made.origin.type_id, Arc::clone(&made))]);
        probe.schema = Some(Arc::clone(&made.origin.schema));
        (probe.own, *source) = (Some(own), Some(made));
        Ok(())
    }

    fn disable(&self, jobs: &mut [&mut Job]) {
        let mut jobs = those(jobs, |job| job.is_next(&Step::Disable));
        for jobs in jobs.chunks_mut(SWITCHED_AT_ONCE) {
            self.count(jobs);
            let before: Vec<_> = jobs.iter().map(|job| job.hits).collect();
            for job in &mut *jobs {
                job.take_step(|probe, _step| self.set_enabled(probe, false));
            }
            self.count(jobs);
            for (job, before) in jobs.iter_mut().zip(before) {
                job.hits_meanwhile =
                    job.hits.zip(before).map_or(0, |(after, before)| after.saturating_sub(before));
            }
        }
    }

    fn define(&self, jobs: &mut [&mut Job]) {
        let mut jobs = those(jobs, Job::defines);
        if jobs.is_empty() {
            return;
        }
        let before = self.tracefs().registered().ok();
        let lines: Vec<_> = jobs.iter().map(|job| job.probe.kernel_definition.as_str()).collect();
        let outcomes = self.tracefs().define_kprobes(&lines);
        for (job, outcome) in jobs.iter_mut().zip(outcomes) {
            job.take_step(|_probe, _step| outcome.map_err(Error::from));
        }
        jobs.retain(|job| job.outcome.is_ok());
        let after = self.tracefs().registered().ok();
        let list = self.tracefs().kprobe_list();
        for job in &mut jobs {
            let list = list.as_ref().map_err(|error| Error::from(error.again()));
            let found = list.and_then(|list| self.find(list, job));
            job.require(found);
        }
        jobs.retain(|job| job.outcome.is_ok());
        if let (Some(before), Some(after)) = (before, after) {
            prove(&mut jobs, &before, &after);
        }
        let known = jobs.iter().filter(|job| job.outcome.is_ok());
        let known =
            known.filter_map(|job| Some((job.probe.own.as_ref()?.id, Arc::clone(job.source.as_ref()?))));
        self.sources.insert(known.collect::<Vec<_>>());
    }

    /// Finds what the kernel has made of a definition.
    fn find(&self, list: &KprobeList, job: &mut Job) -> Result<(), Error> {
        let probe = &mut job.probe;
        let Some(own) = self.tracefs().find_own(list, &probe.name, &probe.kernel_definition)? else {
            // It has gone again, or cannot be distinguished from an event that another program has defined
            // at the same time.
            let is_taken = self.tracefs().has_event(probe.name.group(), probe.name.event());
            own::require(if is_taken { Presence::Foreign } else { Presence::Absent }, &probe.name)?;
            return Err(Error::unregistered(&probe.name));
        };
        probe.record.kernel_listing.clone_from(&own.listing);
        probe.own = Some(own);
        let Some(basis) = &job.basis else { return Ok(()) };
        let source = event_source(self.parts, &probe.record, (&basis.definition, &basis.notations()))?;
        probe.schema = Some(Arc::clone(&source.origin.schema));
        job.source = Some(source);
        Ok(())
    }

    fn filter(&self, jobs: &mut [&mut Job]) {
        for job in jobs.iter_mut().filter(|job| matches!(job.next(), Some(Step::Filter { .. }))) {
            // That of an event of the host exists, and its filter was judged before anything was stored.
            let is_new = job.basis.is_some() && !job.begins_host_event();
            job.take_step(|probe, step| {
                let Step::Filter { after, .. } = step else { return Ok(()) };
                let own = self.now(probe)?;
                // The filter of an existing event was judged before anything was stored.
                if is_new && !after.is_empty() {
                    self.judge_filter(own, after, probe.schema.as_ref())?;
                }
                let filter = own::kernel_filter(self.tracefs(), &own.name, after, probe.schema.as_ref())?;
                Ok(self.parts.instance.set_filter(&own.name, &filter)?)
            });
        }
    }

    fn enable(&self, jobs: &mut [&mut Job]) {
        let mut jobs = those(jobs, |job| job.is_next(&Step::Enable));
        for jobs in jobs.chunks_mut(SWITCHED_AT_ONCE) {
            if jobs.iter().any(|job| job.basis.is_none()) {
                self.count(jobs);
            }
            for job in jobs {
                job.take_step(|probe, _step| self.set_enabled(probe, true));
            }
        }
        jobs.retain(|job| job.outcome.is_ok());
        if jobs.is_empty() {
            return;
        }
        // Their ids were compared right before: an event that has taken a name since is listed
        // differently, or does the same.
        self.require_listed(&mut jobs);
    }

    /// Ends the jobs whose event is not listed any more.
    fn require_listed(&self, jobs: &mut [&mut Job]) {
        let list = self.tracefs().kprobe_list();
        for job in jobs {
            let found = match (&list, &job.probe.own) {
                (Ok(list), Some(own)) => own::require(list.presence(own), &job.probe.name),
                (Err(error), _) => Err(error.again().into()),
                (Ok(_), None) => own::require(Presence::Absent, &job.probe.name),
            };
            job.require(found);
        }
    }

    /// Notes how often the probes were hit until now.
    fn count(&self, jobs: &mut [&mut Job]) {
        let counts = self.tracefs().hit_counts().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the hits of probes that are switched");
            HitCounts::default()
        });
        for job in jobs {
            job.hits = job.probe.own.as_ref().and_then(|own| Some(counts.of(own)?.hits));
        }
    }

    fn set_enabled(&self, probe: &super::Probe, on: bool) -> Result<(), Error> {
        self.now(probe)?;
        Ok(own::set_enabled(&self.parts.instance, probe, on)?)
    }

    /// The event of a probe, if it exists at this moment.
    fn now<'a>(&self, probe: &'a super::Probe) -> Result<&'a OwnEvent, Error> {
        let Some(own) = &probe.own else { return Err(own::missing(Presence::Absent, &probe.name)) };
        if self.tracefs().is_still(own)? {
            return Ok(own);
        }
        own::require(self.tracefs().presence(own)?, &probe.name)?;
        Ok(own)
    }

    /// Takes back the steps of a job that failed, the last one first.
    pub(super) fn take_back(&self, job: &mut Job) {
        let name = job.probe.name.clone();
        for step in std::mem::take(&mut job.done).into_iter().rev() {
            let undone = self.undo(job, &step);
            if let Err(error) = undone {
                tracing::warn!(probe = %name, ?step, %error, "cannot take back a step of a change that failed");
                job.left_behind |= matches!(step, Step::Define { .. });
            }
        }
        if job.begins_host_event() {
            self.sources.remove(&[job.probe.uid]);
            (job.probe.own, job.source) = (None, None);
        }
    }

    fn undo(&self, job: &mut Job, step: &Step) -> Result<(), Error> {
        let Some(own) = &job.probe.own else {
            // It was defined and not found in the list: it may exist all the same.
            job.left_behind |= matches!(step, Step::Define { .. });
            return Ok(());
        };
        let is_ours = self.tracefs().is_still(own)?;
        match step {
            Step::Disable if is_ours => own::set_enabled(&self.parts.instance, &job.probe, true)?,
            // The event that has the name now is another program's, which did not ask the daemon to
            // record it.
            Step::Enable if self.parts.instance.has_event(&own.name) => {
                own::set_enabled(&self.parts.instance, &job.probe, false)?;
            }
            Step::Filter { before, .. } if is_ours => {
                let filter =
                    own::kernel_filter(self.tracefs(), &own.name, before, job.probe.schema.as_ref())?;
                self.parts.instance.set_filter(&own.name, &filter)?;
            }
            Step::Define { .. } => {
                self.tracefs().delete_own(&*self.tracefs().kprobe_list()?, own)?;
                self.sources.remove(&[job.probe.uid]);
                (job.probe.own, job.source) = (None, None);
            }
            _ => {}
        }
        Ok(())
    }

    /// Has the kernel judge a filter in an instance in which that does no harm. If it refuses, the
    /// daemon checks the filter too, so that the error has a position and advice even if the kernel
    /// gives none.
    pub(super) fn judge_filter(
        &self,
        event: &OwnEvent,
        filter: &str,
        schema: Option<&Arc<Schema>>,
    ) -> Result<(), Error> {
        own::require(self.tracefs().presence(event)?, &event.name)?;
        let recorded = self.judge_written(event, ("filter", filter), schema)?;
        // The proofs that its fields were read can make it too long for the kernel.
        let whole = own::kernel_filter(self.tracefs(), &event.name, filter, schema)?;
        if whole == recorded {
            return Ok(());
        }
        let judged = self.try_filter(event, &whole);
        judged.map_err(|refused| Error::kernel_filter(("filter", &whole), &refused, None))
    }

    /// The same of what is written in this field of a request alone. Returns it over what the kernel records.
    pub(super) fn judge_written(
        &self,
        event: &OwnEvent,
        (field, filter): (&'static str, &str),
        schema: Option<&Arc<Schema>>,
    ) -> Result<String, Error> {
        own::refuse_harm(self.tracefs(), &event.name, filter)?;
        let recorded = own::recorded_filter(filter, schema);
        let recorded = recorded.map_err(|found| Error::refused_filter(field, filter, &found))?;
        self.try_filter(event, &recorded).map_err(|refused| {
            let found = schema.and_then(|schema| self.what_is_wrong(filter, schema));
            Error::kernel_filter((field, filter), &refused, found.as_ref())
        })?;
        own::refuse_misread(field, filter, schema)?;
        Ok(recorded)
    }

    /// Has the kernel judge a filter as it is. The switch of an event of the host at the top level may be in use.
    fn try_filter(
        &self,
        event: &OwnEvent,
        filter: &str,
    ) -> Result<(), (TracefsError, Option<KernelMessage>)> {
        if event.is_of_host() {
            let apart = temporary_instance(&self.parts.instance_options.name);
            self.tracefs().try_filter_apart(&apart, &event.name, filter)
        } else {
            self.tracefs().try_filter(&event.name, filter)
        }
    }

    /// The daemon's own finding in a filter that the kernel refused.
    fn what_is_wrong(&self, filter: &str, schema: &Schema) -> Option<FilterError> {
        let facts = self.parts.facts.current().ok();
        let functions = facts.as_ref().map(|facts| &facts.symbols as &dyn Functions);
        Filter::parse(filter).and_then(|filter| filter.check_for_kernel(schema, functions)).err()
    }
}

/// The jobs of which that is so.
fn those<'j>(jobs: &'j mut [&mut Job], is_so: impl Fn(&Job) -> bool) -> Vec<&'j mut Job> {
    jobs.iter_mut().map(|job| &mut **job).filter(|job| is_so(job)).collect()
}

/// Ends the jobs whose probe the kernel has not registered, though it took the definition. Each
/// list is of all probes that are registered.
fn prove(jobs: &mut [&mut Job], before: &[RegisteredProbe], after: &[RegisteredProbe]) {
    let (before, after) = (Registered::of(before), Registered::of(after));
    let mut expected: HashMap<_, usize> = HashMap::new();
    for place in jobs.iter().filter_map(|job| Place::of(job)) {
        *expected.entry(place).or_default() += 1;
    }
    for job in jobs {
        let Some(place) = Place::of(job) else { continue };
        let came = after.count(&place).saturating_sub(before.count(&place));
        if came < expected.get(&place).copied().unwrap_or_default() {
            job.require(Err(Error::unregistered(&job.probe.name)));
        }
    }
}

/// A function, and how it is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    kind: ProbeKind,
    start: u64,
    end: u64,
}

impl Place {
    /// The place at which the probe of a job is to be registered. Absent if it waits for its
    /// module.
    fn of(job: &Job) -> Option<Self> {
        let basis = job.basis.as_ref().filter(|_| !job.begins_host_event())?;
        let Report { absent_module: None, code_range, .. } = &basis.report else { return None };
        let (start, end) = code_range.as_ref().map_or((0, 0), |range| (range.start, range.end));
        Some(Self { kind: job.probe.kind, start, end })
    }
}

/// The addresses of all registered probes, ascending; 0 if the kernel hides them.
struct Registered {
    entries: Vec<u64>,
    returns: Vec<u64>,
}

impl Registered {
    fn of(list: &[RegisteredProbe]) -> Self {
        let of = |kind| {
            let there = list.iter().filter(|probe| probe.kind == kind && !probe.gone);
            let mut addresses: Vec<_> = there.map(|probe| probe.address).collect();
            addresses.sort_unstable();
            addresses
        };
        Self { entries: of(ProbeKind::Entry), returns: of(ProbeKind::Return) }
    }

    /// How many are in a function, as far as the kernel shows.
    fn count(&self, place: &Place) -> usize {
        let addresses = match place.kind {
            ProbeKind::Entry | ProbeKind::Event => &self.entries,
            ProbeKind::Return => &self.returns,
        };
        let below = |limit: u64| addresses.partition_point(|address| *address < limit);
        // The kernel lists the hidden ones first.
        below(1) + below(place.end).saturating_sub(below(place.start.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_registered_is_counted_by_function() {
        let registered = |address, kind, gone| RegisteredProbe {
            address,
            kind,
            location: String::new(),
            gone,
            disabled: false,
        };
        let list = [
            registered(0x1010, ProbeKind::Entry, false),
            registered(0x1000, ProbeKind::Entry, false),
            registered(0x1004, ProbeKind::Entry, true),
            registered(0x1000, ProbeKind::Return, false),
            registered(0x2000, ProbeKind::Entry, false),
        ];
        let count = |list: &[RegisteredProbe], kind, start, end| {
            Registered::of(list).count(&Place { kind, start, end })
        };
        assert_eq!(
            count(&list, ProbeKind::Entry, 0x1000, 0x1010),
            1,
            "the end is not in it, nor what has gone"
        );
        assert_eq!(count(&list, ProbeKind::Entry, 0x1000, 0x2001), 3);
        assert_eq!(count(&list, ProbeKind::Return, 0x1000, 0x1010), 1);
        assert_eq!(count(&list, ProbeKind::Entry, 0, 0), 0);
        let hidden = [registered(0, ProbeKind::Entry, false), registered(0, ProbeKind::Return, false)];
        assert_eq!(count(&hidden, ProbeKind::Entry, 0x1000, 0x1010), 1, "the kernel hides where it is");
        assert_eq!(count(&[], ProbeKind::Entry, 0x1000, 0x1010), 0);
    }
}
