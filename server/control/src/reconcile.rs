//! Reconciliation at start: brings together what the database wants and what the kernel has.
//!
//! Owns the decision on each row. What clients saw acknowledged is put back; a change that was not
//! acknowledged is taken back, whatever it was. An event in the kernel is ours only
//! if the kernel lists what it keeps of it as it did when the daemon made it: every other event
//! belongs to another program, and the daemon never touches it (see
//! [`kprobed_host::tracefs::OwnEvent`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use kprobed_audit::Entry;

use super::account::Account;
use super::audited;
use super::controller::{Controller, ControllerParts, LiveProbe};
use super::create::refuse;
use super::job::Job;
use super::judge::{Work, each};
use super::lease::{Leases, expired};
use super::observed::{Observed, ObservedEvent};
use super::source::{event_source, of_stored};
use super::step::{self, Aim};
use super::{Probe, ProbeState, Trouble, own};
use crate::error::Error;
use crate::store::{Interrupted, ProbeSpec, Record, StoredProbe};
use kprobed_host::kernel::RecentFacts;
use kprobed_host::tracefs::{KprobeList, OwnEvent, Presence, Tracefs};
use kprobed_lang::definition::{Definition, ProbeKind};
use kprobed_lang::model::ProbeUid;
use kprobed_trace::decode::Schema;
use kprobed_trace::pipeline::SourceTable;
use kprobed_verdict::checker::Checker;

/// A change that was not acknowledged when the daemon ended.
pub(super) struct Unfinished {
    uid: ProbeUid,
    /// What the audit log says of it.
    entry: Entry,
    /// The event that it has made, if the kernel has it.
    made: Option<Probe>,
    /// The event was there before: it is recorded no more, and stays.
    stays: bool,
}

/// What a start finds.
pub(super) struct Found {
    /// What the kernel has of the probes in the registry.
    pub(super) live: HashMap<ProbeUid, LiveProbe>,
    /// What must be taken back: see [`Controller::take_back_unfinished`].
    pub(super) unfinished: Vec<Unfinished>,
    /// The probes that are to be as their rows say: see [`Controller::bring_back`].
    pub(super) wanted: Vec<ProbeUid>,
}

/// Finds the events of all rows of the database in the kernel. Changes nothing.
pub(super) async fn find(
    parts: &ControllerParts,
    sources: &SourceTable,
    leases: &mut Leases,
    mut rows: Vec<StoredProbe>,
) -> Result<Found, Error> {
    let (mut live, mut unfinished, mut wanted) = (HashMap::new(), Vec::new(), Vec::new());
    let tracefs = &parts.mounted.tracefs;
    let list = tracefs.kprobe_list()?;
    let mut facts = parts.checker.recent_facts();
    let mut claimed = HashSet::new();
    // A damaged row claims no event that another one has.
    rows.sort_by_key(|row| row.unreadable.is_some());
    let uids: HashMap<_, _> = rows.iter().map(|row| (row.record.uid, row.record.clone())).collect();
    for StoredProbe { mut record, unreadable } in rows {
        // Another row may be listed like it.
        let left = left_of(tracefs, &list, &record)?.filter(|left| claimed.insert(left.id));
        let is_wanted = leases.is_wanted_at_start(&mut record, left.is_some());
        // What it has recorded until now is read, whatever becomes of it.
        live.extend(left.as_ref().and_then(|_| still_recorded(parts, sources, &mut facts, &record)));
        // What its filter is about.
        let schema = live.get(&record.uid).map(|live: &LiveProbe| Arc::clone(&live.source.origin.schema));
        let probe = Probe { own: left, schema, ..as_probe(&parts.checker, record) };
        let state = match unreadable {
            Some(why) => ProbeState::Failed(Trouble::of_row(&probe.name, &why)),
            None if is_wanted && probe.own.is_some() => probe.settled(),
            None if is_wanted => ProbeState::Pending,
            // Its event is removed with those of all others whose time is over.
            None => expired(&probe, &leases.now())
                .map_or(ProbeState::Pending, |(_, trouble)| ProbeState::Expired(trouble)),
        };
        // A damaged row has nothing that could be brought back, and may have something to be taken out.
        if is_wanted && (probe.own.is_some() || state == ProbeState::Pending) {
            wanted.push(probe.uid);
        }
        parts.registry.put(Probe { state, ..probe });
    }
    for Interrupted { uid, name, after } in parts.store.journal().await? {
        let known = uids.get(&uid).or_else(|| after.as_ref().map(|after| &after.record)).cloned();
        let known = known.unwrap_or_else(|| {
            Record::new(name, ProbeSpec::default(), String::new(), SystemTime::UNIX_EPOCH)
        });
        let entry = audited::interrupted(&known);
        let stays = !uids.contains_key(&uid) && after.as_ref().is_some_and(|after| after.record.adopted);
        let mut made = None;
        if let Some(StoredProbe { record, .. }) = after
            && let Some(left) = left_of(tracefs, &list, &record)?.filter(|left| claimed.insert(left.id))
        {
            live.extend(still_recorded(parts, sources, &mut facts, &record));
            made = Some(Probe { own: Some(left), ..as_probe(&parts.checker, record) });
        }
        unfinished.push(Unfinished { uid, entry, made, stays });
    }
    Ok(Found { live, unfinished, wanted })
}

impl Controller {
    /// Takes back the changes that were not acknowledged when the daemon ended. What cannot be taken out of the kernel
    /// stays in the journal: the next start tries again.
    pub(super) async fn take_back_unfinished(&mut self, unfinished: Vec<Unfinished>) {
        let (mut reverted, mut entries) = (Vec::new(), Vec::new());
        let (mut out, mut of_out) = (Vec::new(), Vec::new());
        for Unfinished { uid, entry, made, stays } in unfinished {
            match made {
                Some(probe) if !stays => {
                    out.push(Arc::new(probe));
                    of_out.push(entry);
                    continue;
                }
                Some(probe) => self.leave_alone(&probe.name, uid),
                None => {}
            }
            reverted.push(uid);
            entries.push(entry);
        }
        let outcomes = self.take_all_out_of_kernel(&out);
        for ((probe, entry), outcome) in out.iter().zip(of_out).zip(outcomes) {
            match outcome {
                Ok(found) => {
                    tracing::info!(probe = %probe.name, ?found, "took back what a crash interrupted");
                    reverted.push(probe.uid);
                    entries.push(entry);
                }
                Err(error) => {
                    tracing::warn!(probe = %probe.name, %error, "cannot remove what a crash has left of it");
                }
            }
        }
        self.parts.store.revert(reverted, entries).await;
    }

    /// Makes probes record as their rows say: those that the kernel still has, and those that are defined anew. Those
    /// that mean something else on this kernel, and those that cannot be brought back, are not in the kernel then.
    pub(super) async fn bring_back(&mut self, wanted: &[ProbeUid]) {
        let probes = wanted.iter().filter_map(|uid| self.parts.registry.by_uid(*uid));
        let (probes, damaged): (Vec<_>, Vec<_>) = probes.partition(|probe| probe.require_readable().is_ok());
        let out = |probe: &Arc<Probe>| Probe { own: None, schema: None, ..Probe::clone(probe) };
        let mut works: Vec<_> = damaged.iter().map(|probe| keeping_out(probe, out(probe))).collect();
        // That takes long: what the kernel has is read after it, right before it is changed.
        let compared = self.compared(probes).await;
        let probes: Vec<_> = compared.iter().map(|(probe, _)| Arc::clone(probe)).collect();
        let observed = self.observer.observe(&probes);
        let list = self.tracefs().kprobe_list().unwrap_or_default();
        let checker = Arc::clone(&self.parts.checker);
        let mut facts = checker.recent_facts();
        for (probe, compared) in compared {
            let probe = match compared {
                Ok(now) => self.parts.registry.put(now),
                Err(held) => {
                    works.push(keeping_out(&probe, held.hold(Probe::clone(&probe))));
                    continue;
                }
            };
            let schema = self.live.get(&probe.uid).map(|live| Arc::clone(&live.source.origin.schema));
            let job = match job(&checker, &mut facts, &observed, &list, &probe, schema) {
                Ok(job) => job,
                Err(_) if probe.own.is_none() && probe.kind == ProbeKind::Event => {
                    tracing::info!(probe = %probe.name, "the host does not have the event of a probe: it waits");
                    let waiting = Probe { state: probe.settled(), ..Probe::clone(&probe) };
                    Job::change(waiting, Vec::new())
                }
                Err(error) => {
                    works.push(keeping_out(&probe, failed(&probe, &error)));
                    continue;
                }
            };
            works.push(Work::new(Some(probe), job));
        }
        let befores: Vec<_> = works.iter().filter_map(|work| work.before.clone()).collect();
        let mut broken = Vec::new();
        for (probe, outcome) in befores.iter().zip(self.change(each(works)).await) {
            match outcome {
                Ok(_) => tracing::info!(probe = %probe.name, "brought back"),
                Err(error) => broken.push(keeping_out(probe, failed(probe, &error))),
            }
        }
        let kept_out: Vec<_> = broken.iter().map(|work| work.probe().clone()).collect();
        for (probe, outcome) in kept_out.into_iter().zip(self.change(each(broken)).await) {
            if let Err(error) = outcome {
                tracing::warn!(probe = %probe.name, %error, "cannot take out a probe that cannot be brought back");
                self.parts.registry.put(probe);
            }
        }
    }
}

/// What keeps a probe out of the kernel, after which it is this.
fn keeping_out(probe: &Arc<Probe>, after: Probe) -> Work {
    if probe.own.is_some() {
        return Work::taking_out(probe, Some(after), None);
    }
    Work::new(Some(Arc::clone(probe)), Job::change(after, Vec::new()))
}

/// The event that an earlier run has left of a probe: by its line in the list, or by the one that was written, of which
/// either may be damaged.
fn left_of(tracefs: &Tracefs, list: &KprobeList, record: &Record) -> Result<Option<OwnEvent>, Error> {
    let Record { name, kernel_definition, kernel_listing, .. } = record;
    if kernel_definition.is_empty() && kernel_listing.is_empty() {
        // No line was ever written for it.
        return Ok(tracefs.host_event(name)?);
    }
    Ok(match tracefs.find_left(list, name, kernel_listing, kernel_definition)? {
        None if !kernel_definition.is_empty() => tracefs.find_left(list, name, "", kernel_definition)?,
        found => found,
    })
}

/// Registers what the buffers hold of a probe that is to be removed: it has recorded until now.
fn still_recorded(
    parts: &ControllerParts,
    sources: &SourceTable,
    facts: &mut RecentFacts<'_>,
    record: &Record,
) -> Option<(ProbeUid, LiveProbe)> {
    let (definition, notations) = of_stored(&parts.checker, &record.spec.definition, facts).ok()?;
    match event_source(parts, record, (&definition, &notations)) {
        Ok(source) => {
            sources.insert([(source.origin.type_id, Arc::clone(&source))]);
            Some((record.uid, LiveProbe { source, ever_enabled: true, account: Account::default() }))
        }
        Err(error) => {
            tracing::warn!(probe = %record.name, %error, "what it has recorded cannot be read");
            None
        }
    }
}

/// What is to be done for a probe that is stored.
pub(super) fn job(
    checker: &Checker,
    facts: &mut RecentFacts<'_>,
    observed: &Observed,
    list: &KprobeList,
    probe: &Probe,
    schema: Option<Arc<Schema>>,
) -> Result<Job, Error> {
    let (record, spec) = (&probe.record, &probe.spec);
    let outcome = checker.check_text(&spec.definition, facts)?;
    // Its name is its own, or is checked below.
    refuse(spec.definition.as_str(), &outcome, None)?;
    let is_of_host = outcome.definition.is_of_host_event();
    if probe.own.is_none() && !is_of_host && list.lines_of(&record.name).next().is_some() {
        return Err(Error::exists_foreign(&record.name));
    }
    let fires = observed.switches.kprobes || is_of_host;
    let enabled = if probe.is_to_record() && !fires {
        // If it were switched on now, it would not fire even after kprobes are switched on again.
        // It is off instead, and its state says why.
        tracing::warn!(probe = %record.name, "left a probe switched off: kprobes are switched off on this host");
        None
    } else {
        Some(probe.is_to_record())
    };
    let aim = Aim { enabled, filter: &spec.filter, stack: spec.stack };
    let found = Probe { kind: outcome.definition.kind, state: probe.settled(), ..probe.clone() };
    let mut found = found.resolved(&outcome);
    if found.own.is_none() {
        // The definition is rendered anew: another kernel may know other arguments.
        let line = checker.kernel_line(&outcome.definition, record.name.parts()).text;
        let steps = step::define(&line, aim);
        found.record.kernel_definition = line;
        return Ok(Job::define(found, outcome, steps));
    }
    let (Some(ObservedEvent::There { seen, .. }), Some(schema)) = (observed.events.get(&record.uid), schema)
    else {
        return Err(own::missing(Presence::Absent, &record.name));
    };
    Ok(Job::change(Probe { schema: Some(schema), ..found }, step::change(seen, aim)))
}

/// A probe that the kernel does not have.
fn failed(probe: &Probe, error: &Error) -> Probe {
    tracing::warn!(probe = %probe.name, %error, "cannot bring a probe back");
    Probe { state: ProbeState::kept_out(error), own: None, schema: None, ..probe.clone() }
}

/// A probe of which only its row is known, and what its definition says.
pub(super) fn as_probe(checker: &Checker, record: Record) -> Probe {
    let reading = checker.reading(&record.spec.definition);
    let kind = match &reading.result {
        Ok(Definition::Probe(definition)) => definition.kind,
        Ok(Definition::Delete(_)) | Err(_) => ProbeKind::Entry,
    };
    Probe::unresolved(record, kind, ProbeState::Pending)
}
