//! State log: changes of probes in their order, for clients that watch and for the history of
//! states.
//!
//! Owns since when each probe has its state, the latest changes, and which of them must still be
//! stored. Every part of the daemon that has looked at the kernel notes states here; the log never
//! looks itself. It notes what a client would see: if another program changes a probe, the log
//! shows it after the next look, and not before.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::watch;

use super::{Probe, ProbeState, Trouble};
use kprobed_lang::model::{ProbeUid, StateRecord};

/// Changes that are kept for clients that watch. A client that is further behind begins anew.
const KEPT: usize = 4096;

/// Changes of states that wait to be stored. If the database cannot store them, the oldest are
/// dropped.
const UNSAVED: usize = 4096;

/// One change of a probe, or of its state.
#[derive(Clone, Debug)]
pub struct ProbeChange {
    /// The probe as it was. Absent if it is new.
    pub before: Option<Arc<Probe>>,
    /// The probe as it is now. Absent if it is gone.
    pub now: Option<Arc<Probe>>,
}

/// A position among the changes of one run of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchPosition {
    /// The run.
    pub run: u64,
    /// The number of changes before it.
    pub sequence: u64,
}

/// The changes.
#[derive(Debug)]
pub struct StateLog {
    notes: Mutex<Notes>,
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Notes {
    run: u64,
    /// The number of the next change.
    next: u64,
    latest: VecDeque<ProbeChange>,
    probes: HashMap<ProbeUid, Arc<Probe>>,
    unsaved: VecDeque<StateRecord>,
    /// Those that are being stored: the database may not show them yet.
    being_stored: Vec<StateRecord>,
    closed: bool,
}

impl Default for StateLog {
    fn default() -> Self {
        let run = RandomState::new().build_hasher().finish();
        let notes = Notes { run, ..Notes::default() };
        Self { notes: Mutex::new(notes), newest: watch::Sender::new(0) }
    }
}

impl StateLog {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a probe with its state, as it was just seen. Returns it with the time since which its
    /// state is so.
    pub(super) fn note(&self, probe: &Arc<Probe>) -> Arc<Probe> {
        self.note_at(probe, SystemTime::now())
    }

    fn note_at(&self, probe: &Arc<Probe>, now: SystemTime) -> Arc<Probe> {
        let mut notes = self.notes();
        let last = notes.probes.get(&probe.uid);
        let same_state = last.filter(|last| is_same(&last.state, &probe.state));
        let state_time = same_state.map_or(Some(now), |last| last.state_time);
        let noted = Arc::new(Probe { state_time, ..Probe::clone(probe) });
        if last.is_some_and(|last| is_seen_alike(last, probe)) {
            return noted;
        }
        if same_state.is_none() {
            notes.keep(record(&noted, now));
        }
        let before = notes.probes.insert(probe.uid, Arc::clone(&noted));
        self.publish(notes, ProbeChange { before, now: Some(Arc::clone(&noted)) });
        noted
    }

    /// Notes that a probe is gone.
    pub(super) fn note_removal(&self, probe: &Arc<Probe>) {
        let mut notes = self.notes();
        let before = notes.probes.remove(&probe.uid);
        notes.unsaved.retain(|change| change.uid != probe.uid);
        notes.being_stored.retain(|change| change.uid != probe.uid);
        // What was never noted is known to no watch.
        if before.is_some() {
            self.publish(notes, ProbeChange { before, now: None });
        }
    }

    fn publish(&self, mut notes: MutexGuard<'_, Notes>, change: ProbeChange) {
        notes.latest.push_back(change);
        if notes.latest.len() > KEPT {
            notes.latest.pop_front();
        }
        notes.next += 1;
        // Sent under the lock, so that it is in order.
        self.newest.send_replace(notes.next);
    }

    /// All probes as they were last seen, and the position after them.
    pub fn all(&self) -> (Vec<Arc<Probe>>, WatchPosition) {
        let notes = self.notes();
        let mut probes: Vec<_> = notes.probes.values().cloned().collect();
        probes.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        (probes, WatchPosition { run: notes.run, sequence: notes.next })
    }

    /// The changes after a position, and the position after them. Absent if some of them are not
    /// kept any more, or if the position is of another run.
    pub fn since(&self, position: WatchPosition) -> Option<(Vec<ProbeChange>, WatchPosition)> {
        let notes = self.notes();
        let oldest = notes.next - u64::try_from(notes.latest.len()).unwrap_or(notes.next);
        if position.run != notes.run || !(oldest..=notes.next).contains(&position.sequence) {
            return None;
        }
        let skipped = usize::try_from(position.sequence - oldest).ok()?;
        let changes = notes.latest.iter().skip(skipped).cloned().collect();
        Some((changes, WatchPosition { sequence: notes.next, ..position }))
    }

    /// The number of all changes; a receiver wakes up with each.
    pub fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Ends all watches.
    pub fn close(&self) {
        let mut notes = self.notes();
        notes.closed = true;
        self.newest.send_replace(notes.next);
    }

    /// Whether the daemon is stopping.
    pub fn is_closed(&self) -> bool {
        self.notes().closed
    }

    /// The changes of states that must be stored, oldest first. They count as unsaved until
    /// [`Self::end_storing`].
    pub(super) fn begin_storing(&self) -> Vec<StateRecord> {
        let mut notes = self.notes();
        let unsaved = std::mem::take(&mut notes.unsaved);
        notes.being_stored.extend(unsaved);
        notes.being_stored.clone()
    }

    /// Those are stored, or could not be stored now.
    pub(super) fn end_storing(&self, stored: bool) {
        let mut notes = self.notes();
        let changes = std::mem::take(&mut notes.being_stored);
        if !stored {
            let newer = std::mem::replace(&mut notes.unsaved, changes.into());
            for change in newer {
                notes.keep(change);
            }
        }
    }

    /// The changes of states of a probe that may not be stored yet, oldest first. Whoever reads them and
    /// then the database misses none; the database can have some of them as well.
    pub fn unsaved_of(&self, uid: ProbeUid) -> Vec<StateRecord> {
        let notes = self.notes();
        let changes = notes.being_stored.iter().chain(&notes.unsaved);
        changes.filter(|change| change.uid == uid).cloned().collect()
    }
}

impl Notes {
    fn keep(&mut self, change: StateRecord) {
        self.unsaved.push_back(change);
        if self.unsaved.len() > UNSAVED {
            self.unsaved.pop_front();
        }
    }
}

/// The state of a probe, for its history.
fn record(probe: &Probe, time: SystemTime) -> StateRecord {
    let text = |of: fn(&Trouble) -> &str| probe.state.trouble().map(of).unwrap_or_default().to_owned();
    StateRecord {
        uid: probe.uid,
        time,
        state: probe.state.kind().as_str_name().trim_start_matches("PROBE_STATE_").to_owned(),
        reason: text(|trouble| trouble.code),
        message: text(|trouble| &trouble.reason),
        hint: text(|trouble| &trouble.hint),
    }
}

/// Whether a client would see no difference. A warning about a livepatch comes and goes without a
/// change of the probe, and counts as one.
fn is_seen_alike(last: &Probe, now: &Probe) -> bool {
    last.state == now.state && last.revision == now.revision && last.warnings == now.warnings
}

/// Whether it is the same state. A reason that is worded differently is the same.
fn is_same(last: &ProbeState, now: &ProbeState) -> bool {
    let code = |state: &ProbeState| state.trouble().map(|trouble| trouble.code);
    std::mem::discriminant(last) == std::mem::discriminant(now) && code(last) == code(now)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::samples::probe;
    use kprobed_lang::definition::{Code, Diagnostic, Span};

    /// Something of the probes before and after each change.
    fn sides<T>(changes: &[ProbeChange], of: fn(&Probe) -> T) -> Vec<[Option<T>; 2]> {
        let sides = |change: &ProbeChange| [&change.before, &change.now].map(|side| side.as_deref().map(of));
        changes.iter().map(sides).collect()
    }

    fn drifted(code: &'static str, reason: &str) -> ProbeState {
        ProbeState::Drifted(Trouble { code, reason: reason.to_owned(), hint: String::new() })
    }

    #[test]
    fn a_state_has_a_beginning() {
        let log = StateLog::default();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let with = |state| Arc::new(Probe { state, ..probe(1, "kprobes/a") });
        let since = |state, seconds| log.note_at(&with(state), at(seconds)).state_time;
        assert_eq!(since(ProbeState::Armed, 1), Some(at(1)));
        assert_eq!(since(ProbeState::Armed, 2), Some(at(1)));
        assert_eq!(since(drifted("SWITCHED_OFF", "off"), 3), Some(at(3)));
        assert_eq!(since(drifted("SWITCHED_OFF", "off, and filtered"), 4), Some(at(3)));
        assert_eq!(since(drifted("REMOVED", "gone"), 5), Some(at(5)));
        let stored: Vec<_> = log.begin_storing().into_iter().map(|change| change.time).collect();
        assert_eq!(stored, [at(1), at(3), at(5)]);
        assert_eq!(log.unsaved_of(ProbeUid(1)).len(), 3, "the database may not show them yet");
        log.end_storing(true);
        assert!(log.begin_storing().is_empty() && log.unsaved_of(ProbeUid(1)).is_empty());
    }

    #[test]
    fn a_warning_that_comes_or_goes_is_a_change_and_no_new_state() {
        let log = StateLog::default();
        let begin = log.all().1;
        let with = |warnings: &[&str]| {
            let warnings = warnings
                .iter()
                .map(|message| Diagnostic::warning(Code::Livepatched, Span::new(0, 1), *message));
            Arc::new(Probe { warnings: warnings.collect(), ..probe(1, "kprobes/a") })
        };
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (seconds, warnings) in
            [&[][..], &["patched"], &["patched"], &["is being patched"], &[], &[]].into_iter().enumerate()
        {
            let noted = log.note_at(&with(warnings), at(seconds as u64));
            assert_eq!(noted.state_time, Some(at(0)), "its state has gone on");
        }
        let (changes, _) = log.since(begin).unwrap();
        let told = sides(&changes, |probe| probe.warnings.len());
        assert_eq!(told, [[None, Some(0)], [Some(0), Some(1)], [Some(1), Some(1)], [Some(1), Some(0)]]);
        assert_eq!(log.begin_storing().len(), 1);
    }

    #[test]
    fn those_who_watch_miss_nothing_or_know_that_they_do() {
        let log = StateLog::default();
        let (none, begin) = log.all();
        assert!(none.is_empty());
        let mut newest = log.newest();
        log.note(&Arc::new(probe(1, "kprobes/a")));
        log.note(&Arc::new(probe(1, "kprobes/a")));
        assert!(newest.has_changed().unwrap());
        newest.mark_unchanged();
        log.note(&Arc::new(probe(1, "kprobes/a").with(|record| record.revision = 2)));
        log.note_removal(&Arc::new(probe(1, "kprobes/a")));
        let (changes, end) = log.since(begin).unwrap();
        let revisions = sides(&changes, |probe| probe.revision);
        assert_eq!(revisions, [[None, Some(1)], [Some(1), Some(2)], [Some(2), None]]);
        assert!(newest.has_changed().unwrap() && log.since(end).unwrap().0.is_empty());
        assert!(log.since(WatchPosition { run: begin.run ^ 1, ..begin }).is_none(), "of another run");
        assert!(log.since(WatchPosition { sequence: end.sequence + 1, ..end }).is_none(), "of the future");
        for uid in 0..i64::try_from(KEPT).unwrap() {
            log.note(&Arc::new(probe(10 + uid, &format!("kprobes/n{uid}"))));
        }
        assert!(log.since(begin).is_none(), "not kept any more");
        let (changes, last) = log.since(end).unwrap();
        assert_eq!((changes.len(), log.all().0.len(), log.all().1), (KEPT, KEPT, last));
    }

    #[test]
    fn what_cannot_be_stored_is_bounded() {
        let log = StateLog::default();
        for uid in 0..i64::try_from(UNSAVED + 5).unwrap() {
            log.note(&Arc::new(probe(uid, &format!("kprobes/n{uid}"))));
        }
        let unsaved = log.begin_storing();
        assert_eq!((unsaved.len(), unsaved[0].uid), (UNSAVED, ProbeUid(5)));
        log.note(&Arc::new(probe(-1, "kprobes/later")));
        log.end_storing(false);
        assert_eq!(log.unsaved_of(ProbeUid(-1)).len(), 1);
        assert!(log.unsaved_of(ProbeUid(5)).is_empty() && log.unsaved_of(ProbeUid(6)).len() == 1);
        log.note_removal(&Arc::new(probe(6, "kprobes/n6")));
        assert!(log.unsaved_of(ProbeUid(6)).is_empty());
        assert_eq!(log.begin_storing().len(), UNSAVED - 1);
        log.note_removal(&Arc::new(probe(7, "kprobes/n7")));
        assert!(log.unsaved_of(ProbeUid(7)).is_empty(), "also while it is being stored");
    }
}
