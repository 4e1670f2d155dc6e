//! Reconciliation at start: brings together what the database wants and what the kernel has.
//!
//! Owns the decision on each row. What clients saw acknowledged is put back; what was never
//! acknowledged is removed; what a client deleted is removed. An event in the kernel is ours only
//! if the kernel lists what it keeps of it as it did when the daemon made it: every other event
//! belongs to another program, and the daemon never touches it (see
//! [`kprobed_host::tracefs::OwnEvent`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::account::Account;
use super::audited;
use super::budget::stored_trouble;
use super::controller::{Controller, ControllerParts, LiveProbe};
use super::create::{refuse, settled_state};
use super::execute::Executor;
use super::footprint::Footprint;
use super::guard::{Guarded, Looked, look};
use super::job::{Basis, Job};
use super::lease::{AtStart, HOLD_ENDED, Leases, expired};
use super::observed::{Observed, ObservedEvent};
use super::source::event_source;
use super::step::{self, Aim, Seen};
use super::{Observer, Probe, ProbeState, Trouble, own};
use crate::error::Error;
use crate::store::{Phase, Record, Settled, StoredProbe, StoredTrip, Undo};
use kprobed_host::kernel::RecentFacts;
use kprobed_host::tracefs::{KprobeList, OwnEvent, Presence, Tracefs};
use kprobed_lang::definition::{Definition, ProbeKind};
use kprobed_lang::model::ProbeUid;
use kprobed_trace::pipeline::SourceTable;
use kprobed_verdict::checker::{CheckOutcome, Checker};

/// A probe that was being deleted, or was never acknowledged, when the daemon ended.
pub(super) struct Unfinished {
    probe: Arc<Probe>,
    phase: Phase,
    /// It was held by a client, and has no entry in the audit log yet.
    is_unheld: bool,
}

/// A probe that is to be there.
struct Wanted {
    row: StoredProbe,
    /// Its event, if the kernel still has it.
    left: Option<OwnEvent>,
    /// Why it is disarmed, if it has cost more than its budget.
    tripped: Option<Arc<Trouble>>,
}

/// Compares all rows of the database with the kernel. Returns what the kernel has of them, and what must still
/// be removed: see [`Controller::finish_removals`].
pub(super) async fn reconcile(
    parts: &ControllerParts,
    observer: &Observer,
    sources: &SourceTable,
    leases: &mut Leases,
    trips: HashMap<ProbeUid, StoredTrip>,
) -> Result<(HashMap<ProbeUid, LiveProbe>, Vec<Unfinished>), Error> {
    let (mut live, mut unfinished) = (HashMap::new(), Vec::new());
    let mut trips = trips;
    let mut trip_of =
        |record: &Record| Some(Arc::new(stored_trouble(trips.remove(&record.uid)?, &record.name)));
    let tracefs = &parts.mounted.tracefs;
    let list = tracefs.kprobe_list()?;
    let mut wanted = Vec::new();
    let rows = parts.store.probes().await?;
    // Changes that were to be made all or not at all: the rows as read have them taken back
    // already.
    let reversals = rows.iter().filter(|row| row.is_reversed);
    let reversals = reversals.flat_map(|row| {
        [Undo::Reversal { before: Box::new(row.record.clone()) }, audited::interrupted(&row.record)]
    });
    parts.store.undo_all(reversals.collect()).await;
    let (mut meanings, unknown) = super::guard::read(&parts.store).await?;
    let mut claimed = HashSet::new();
    let (rows, unreadable): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.unreadable.is_none());
    for row in unreadable {
        let StoredProbe { record, kernel_listing, unreadable, .. } = row;
        let left = left_of_unreadable(tracefs, &list, &record, &kernel_listing)?;
        claimed.extend(left.iter().map(|left| left.id));
        let state = ProbeState::Failed(Trouble::of_row(&record.name, &unreadable.unwrap_or_default()));
        let probe = Probe { own: left, ..as_probe(&parts.checker, record, state) };
        take_out(parts, sources, &probe);
        parts.registry.put(Probe { own: None, ..probe });
    }
    let (settled, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.phase == Phase::Settled);
    for mut row in settled.into_iter().chain(others) {
        let StoredProbe { record, kernel_listing, .. } = &row;
        let left = if is_of_host_event(&parts.checker, record) {
            tracefs.host_event(&record.name)?
        } else {
            tracefs.find_left(&list, &record.name, kernel_listing, &record.kernel_definition)?
        };
        // A probe that was to replace another one may be listed like it.
        let left = left.filter(|left| claimed.insert(left.id));
        let at_start = leases.at_start(&mut row, left.is_some());
        let phase = match (row.phase, at_start) {
            // The client that held it has no connection any more.
            (Phase::Settled, AtStart::Unheld) => Phase::Removing,
            (phase, _) => phase,
        };
        if (phase, at_start) == (Phase::Settled, AtStart::Wanted) {
            let tripped = trip_of(&row.record);
            wanted.push(Wanted { row, left, tripped });
            continue;
        }
        if left.is_some()
            && let Some(entry) = still_recorded(parts, sources, &row.record)
        {
            live.insert(row.record.uid, entry);
        }
        let guarded = meanings.remove(&row.record.uid).unwrap_or_default();
        let tripped = trip_of(&row.record);
        let probe = as_probe(&parts.checker, row.record, ProbeState::Pending);
        let probe = Probe { own: left, guarded, tripped, ..probe };
        if let (Phase::Settled, Some((_, trouble))) = (phase, expired(&probe, &leases.now())) {
            // Its event is removed with those of all others that have expired.
            parts.registry.put(Probe { state: ProbeState::Expired(trouble), ..probe });
        } else {
            let is_unheld = row.phase == Phase::Settled;
            unfinished.push(Unfinished { probe: Arc::new(probe), phase, is_unheld });
        }
    }
    let (wanted, held): (Vec<_>, Vec<_>) =
        wanted.into_iter().partition(|wanted| !unknown.contains(&wanted.row.record.uid));
    for Wanted { row, left, tripped } in held {
        let state = ProbeState::HeldBack(Trouble::of_meaning(&row.record.name));
        let probe = Probe { own: left, tripped, ..as_probe(&parts.checker, row.record, state) };
        take_out(parts, sources, &probe);
        parts.registry.put(Probe { own: None, ..probe });
    }
    let (wanted, mut guarded) = hold_back(parts, sources, wanted, meanings).await;
    for (probe, entry) in bring_back(parts, observer, sources, &list, wanted).await {
        let guarded = guarded.remove(&probe.uid).unwrap_or_default();
        let probe = Probe { guarded, ..probe };
        live.extend(entry.map(|entry| (probe.uid, entry)));
        parts.registry.put(probe);
    }
    Ok((live, unfinished))
}

/// Returns the probes that can be armed, as far as their meaning is concerned, with what is known
/// of that meaning: the others are held back.
async fn hold_back(
    parts: &ControllerParts,
    sources: &SourceTable,
    rows: Vec<Wanted>,
    mut known: HashMap<ProbeUid, Guarded>,
) -> (Vec<Wanted>, HashMap<ProbeUid, Guarded>) {
    let (mut clear, mut unsaved) = (Vec::with_capacity(rows.len()), Vec::new());
    let mut facts = parts.checker.recent_facts();
    for Wanted { row, left, tripped } in rows {
        let uid = row.record.uid;
        let guarded = known.remove(&uid).unwrap_or_default();
        let probe = as_probe(&parts.checker, row.record.clone(), ProbeState::Pending);
        let probe = Probe { guarded, tripped: tripped.clone(), ..probe };
        match look(&parts.checker, &parts.rights, &probe, &mut facts) {
            Looked::Held(held) => {
                // Its event can still exist: its module was loaded anew, as another build.
                take_out(parts, sources, &Probe { own: left, ..probe.clone() });
                parts.registry.put(held.hold(probe));
            }
            Looked::Clear(guarded) => {
                if guarded.is_other_than(&probe.guarded) {
                    unsaved.extend(guarded.to_json().map(|text| (uid, text)));
                }
                known.insert(uid, guarded);
                clear.push(Wanted { row, left, tripped });
            }
        }
    }
    if !unsaved.is_empty()
        && let Err(error) = parts.store.set_meanings(&unsaved).await
    {
        // The next start compares again.
        tracing::warn!(%error, "cannot write down what probes mean on this kernel");
    }
    (clear, known)
}

impl Controller {
    /// Removes the probes that were being deleted, or were never acknowledged, when the daemon
    /// ended. Those that cannot be removed stay as they were.
    pub(super) async fn finish_removals(&mut self, unfinished: &[Unfinished]) {
        let probes: Vec<_> = unfinished.iter().map(|unfinished| Arc::clone(&unfinished.probe)).collect();
        let outcomes = self.take_all_out_of_kernel(&probes);
        let mut undo = Vec::new();
        for (Unfinished { probe, phase, is_unheld }, outcome) in unfinished.iter().zip(outcomes) {
            match outcome {
                Ok(found) => {
                    undo.push(Undo::Probe(probe.uid));
                    if *is_unheld {
                        undo.push(audited::ended(&probe.record, HOLD_ENDED));
                    }
                    // A deletion has its entry since it was begun.
                    if *phase == Phase::Pending {
                        undo.push(audited::interrupted(&probe.record));
                    }
                    tracing::info!(probe = %probe.name, ?phase, ?found, "finished what a crash interrupted");
                }
                Err(error) => {
                    tracing::warn!(probe = %probe.name, %error, "cannot remove what a crash has left of it");
                    if self.parts.registry.get(&probe.name).is_some() {
                        // Another probe has the name, as soon as this one is out: the next start
                        // tries again.
                        continue;
                    }
                    undo.push(Undo::Deletion(probe.uid));
                    let state = if probe.spec.enabled { ProbeState::Armed } else { ProbeState::Disabled };
                    let schema = self.live.get(&probe.uid).map(|live| Arc::clone(&live.source.origin.schema));
                    self.parts.registry.put(Probe { state, schema, ..Probe::clone(probe) });
                }
            }
        }
        self.parts.store.undo_all(undo).await;
        // Those whose names were used by what has just been removed.
        let names = unfinished.iter().map(|unfinished| &unfinished.probe.name);
        let waiting: Vec<_> = names.filter_map(|name| self.parts.registry.get(name)).collect();
        if !waiting.is_empty() {
            self.put_right(&waiting).await;
        }
    }
}

/// The event of a probe whose row cannot be read: its line in the list may be what is bad.
fn left_of_unreadable(
    tracefs: &Tracefs,
    list: &KprobeList,
    record: &Record,
    listing: &str,
) -> Result<Option<OwnEvent>, Error> {
    let line = &record.kernel_definition;
    if line.is_empty() && listing.is_empty() {
        // No line was ever written for it.
        return Ok(tracefs.host_event(&record.name)?);
    }
    Ok(match tracefs.find_left(list, &record.name, listing, line)? {
        None if !line.is_empty() => tracefs.find_left(list, &record.name, "", line)?,
        found => found,
    })
}

/// Registers what the buffers hold of a probe that is to be removed: it has recorded until now.
fn still_recorded(parts: &ControllerParts, sources: &SourceTable, record: &Record) -> Option<LiveProbe> {
    let definition = parts.checker.probe(&record.spec.definition).ok()?;
    let reader = (&parts.mounted.tracefs, &*parts.checker);
    match event_source(reader, record.uid, &record.name, &definition) {
        Ok((id, source)) => {
            source.origin.set_labels(record.spec.labels.clone());
            sources.insert([(id, Arc::clone(&source))]);
            Some(LiveProbe { source, ever_enabled: true, account: Account::default() })
        }
        Err(error) => {
            tracing::warn!(probe = %record.name, %error, "what it has recorded cannot be read");
            None
        }
    }
}

/// Makes probes record as their rows say: those that the kernel still has, and those that are
/// defined anew. A probe that cannot be brought back is not in the kernel then.
async fn bring_back(
    parts: &ControllerParts,
    observer: &Observer,
    sources: &SourceTable,
    list: &KprobeList,
    wanted: Vec<Wanted>,
) -> Vec<(Probe, Option<LiveProbe>)> {
    let tracefs = &parts.mounted.tracefs;
    let left = wanted.iter().filter(|wanted| wanted.left.is_some());
    let left = left.map(|Wanted { row, left, .. }| {
        let record = row.record.clone();
        let state = if record.spec.enabled { ProbeState::Armed } else { ProbeState::Disabled };
        Arc::new(Probe { own: left.clone(), ..as_probe(&parts.checker, record, state) })
    });
    let observed = observer.observe(&left.collect::<Vec<_>>());
    let mut facts = parts.checker.recent_facts();
    let (mut brought, mut jobs, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for Wanted { row, left, tripped } in wanted {
        let known = (&row.record, tripped.clone());
        match job(&parts.checker, tracefs, &mut facts, &observed, list, known, left.clone()) {
            Ok(job) => {
                jobs.push(job);
                rows.push(row);
            }
            Err(_) if left.is_none() && is_of_host_event(&parts.checker, &row.record) => {
                tracing::info!(probe = %row.record.name, "the host does not have the event of a probe: it waits");
                let state = settled_state(row.record.spec.enabled && tripped.is_none());
                let probe = as_probe(&parts.checker, row.record, state);
                brought.push((Probe { tripped, ..probe }, None));
            }
            Err(error) => {
                let probe = Probe { own: left, ..failed(&parts.checker, row.record, &error) };
                take_out(parts, sources, &probe);
                brought.push((Probe { own: None, tripped, ..probe }, None));
            }
        }
    }
    let known =
        jobs.iter().filter_map(|job| Some((job.probe.own.as_ref()?.id, Arc::clone(job.source.as_ref()?))));
    sources.insert(known.collect::<Vec<_>>());
    Executor::new(parts, sources).carry_out(&mut jobs);
    store_redefined(parts, &mut jobs, &rows).await;
    for (mut job, row) in jobs.into_iter().zip(rows) {
        match (std::mem::replace(&mut job.outcome, Ok(())), job.source.take()) {
            (Ok(()), Some(source)) => {
                let (state, adopted) = (&job.probe.state, job.basis.is_none());
                tracing::info!(probe = %row.record.name, ?state, adopted, "brought back");
                // An earlier daemon may have had it enabled: its removal must be treated so.
                let entry = LiveProbe { source, ever_enabled: true, account: Account::default() };
                brought.push((job.probe, Some(entry)));
            }
            // Its module has gone since it was looked at.
            (Ok(()), None) if job.probe.waits_for_module() => brought.push((job.probe, None)),
            (outcome, _) => {
                let missing = || own::missing(Presence::Absent, &row.record.name);
                let error = outcome.err().unwrap_or_else(missing);
                take_out(parts, sources, &job.probe);
                let tripped = job.probe.tripped.take();
                let probe = failed(&parts.checker, row.record, &error);
                brought.push((Probe { tripped, ..probe }, None));
            }
        }
    }
    brought
}

/// What is to be done for a row.
fn job(
    checker: &Checker,
    tracefs: &Tracefs,
    facts: &mut RecentFacts<'_>,
    observed: &Observed,
    list: &KprobeList,
    (record, tripped): (&Record, Option<Arc<Trouble>>),
    left: Option<OwnEvent>,
) -> Result<Job, Error> {
    let spec = &record.spec;
    let outcome = checker.check_text(&spec.definition, facts)?;
    // Its name is its own, or is checked below.
    refuse(spec.definition.as_str(), &outcome, None)?;
    let footprint = Footprint::of(&outcome);
    let CheckOutcome { definition, report, .. } = outcome;
    if left.is_none() && !definition.is_of_host_event() && list.lines_of(&record.name).next().is_some() {
        return Err(Error::exists_foreign(&record.name));
    }
    let is_to_record = spec.enabled && tripped.is_none();
    let fires = observed.switches.kprobes || definition.is_of_host_event();
    let enabled = if is_to_record && !fires {
        // If it were switched on now, it would not fire even after kprobes are switched on again.
        // It is off instead, and its state says why.
        tracing::warn!(probe = %record.name, "left a probe switched off: kprobes are switched off on this host");
        None
    } else {
        Some(is_to_record)
    };
    let aim = Aim { enabled, filter: &spec.filter };
    let state = match &tripped {
        Some(why) => ProbeState::Tripped(Trouble::clone(why)),
        None => settled_state(spec.enabled),
    };
    let probe =
        Probe::unresolved(record.clone(), definition.kind, state).resolved(&definition, &report, footprint);
    let mut probe = Probe { own: left, tripped, ..probe };
    let Some(own) = &probe.own else {
        // The definition is rendered anew: another kernel may know other arguments.
        let line = checker.kernel_line(&definition, record.name.parts()).text;
        let steps = step::define(&line, aim);
        probe.record.kernel_definition = line;
        return Ok(Job::define(probe, Basis { definition, report }, steps));
    };
    let (_id, source) = event_source((tracefs, checker), record.uid, &own.name, &definition)?;
    source.origin.set_labels(spec.labels.clone());
    let schema = Some(Arc::clone(&source.origin.schema));
    let Some(ObservedEvent::There { switch, filter, unarmed, .. }) = observed.events.get(&record.uid) else {
        return Err(own::missing(Presence::Absent, &record.name));
    };
    let seen = Seen { switch: *switch, filter: filter.clone(), unarmed: *unarmed };
    let steps = step::change(&seen, aim);
    Ok(Job::adopt(Probe { schema, ..probe }, source, steps))
}

/// Stores how the kernel lists the probes that were defined anew, if that has changed. If it cannot
/// be stored, their jobs end.
async fn store_redefined(parts: &ControllerParts, jobs: &mut [Job], rows: &[StoredProbe]) {
    let mut redefined = Vec::new();
    let mut changed = Vec::new();
    for (job, row) in jobs.iter_mut().zip(rows) {
        let (Job { probe, basis: Some(_), outcome: Ok(()), .. }, uid) = (&*job, row.record.uid) else {
            continue;
        };
        let listing = probe.own.as_ref().map(|own| own.listing.clone()).unwrap_or_default();
        if row.record.kernel_definition != probe.kernel_definition || row.kernel_listing != listing {
            let kernel_definition = probe.kernel_definition.clone();
            redefined.push((Settled::Redefined { uid, kernel_definition, listing }, None));
            changed.push(job);
        }
    }
    if redefined.is_empty() {
        return;
    }
    if let Err(error) = parts.store.settle(&redefined).await {
        let error = Error::from(error);
        for job in changed {
            job.require(Err(error.clone()));
        }
    }
}

/// Removes from the kernel what cannot be brought back, or only in part.
fn take_out(parts: &ControllerParts, sources: &SourceTable, probe: &Probe) {
    sources.remove(&[probe.uid]);
    let Some(own) = &probe.own else { return };
    let tracefs = &parts.mounted.tracefs;
    let deleted = tracefs.presence(own).and_then(|found| {
        own::end(&parts.instance, own, found)?;
        tracefs.delete_own(&*tracefs.kprobe_list()?, own)
    });
    if let Err(error) = deleted {
        tracing::warn!(probe = %probe.name, %error, "cannot take out a probe that cannot be brought back");
    }
}

/// A probe that the kernel does not have.
fn failed(checker: &Checker, record: Record, error: &Error) -> Probe {
    tracing::warn!(probe = %record.name, %error, "cannot bring a probe back");
    as_probe(checker, record, ProbeState::kept_out(error))
}

/// Whether a row is of an event of the host.
fn is_of_host_event(checker: &Checker, record: &Record) -> bool {
    let reading = checker.reading(&record.spec.definition);
    matches!(&reading.result, Ok(Definition::Probe(definition)) if definition.is_of_host_event())
}

/// A probe of which only its row is known, and what its definition says.
fn as_probe(checker: &Checker, record: Record, state: ProbeState) -> Probe {
    let reading = checker.reading(&record.spec.definition);
    let kind = match &reading.result {
        Ok(Definition::Probe(definition)) => definition.kind,
        Ok(Definition::Delete(_)) | Err(_) => ProbeKind::Entry,
    };
    Probe::unresolved(record, kind, state)
}

#[cfg(test)]
pub(crate) mod tests {
    use kprobed_rights::Roles;

    use super::*;
    use crate::auth::{AuditQueue, Rights};
    use crate::control::create::tests::observed;

    /// The probes that a start makes of records whose events the kernel does not have: compared
    /// with what they meant, and judged anew.
    pub(crate) fn recalled(checker: &Checker, records: Vec<Record>) -> Vec<Probe> {
        let (tracefs, list) = (Tracefs::new("/nonexistent", "/nonexistent"), KprobeList::default());
        let (observed, mut facts) = (observed(), checker.recent_facts());
        let rights = Rights::new(Roles::default(), AuditQueue::new().0);
        let recalled = records.into_iter().map(|record| {
            let probe = as_probe(checker, record, ProbeState::Pending);
            let Looked::Clear(guarded) = look(checker, &rights, &probe, &mut facts) else {
                panic!("`{}` is held back", probe.name)
            };
            let job =
                job(checker, &tracefs, &mut facts, &observed, &list, (&probe.record, None), None).unwrap();
            Probe { guarded, ..job.probe }
        });
        recalled.collect()
    }
}
