//! Simulated hosts, disk and clock for tests of roll-outs.
//!
//! Owns what a daemon would do, and when the process ends. In every test it checks that each
//! request and each reported event is on the disk before.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kprobed_client::api::probe_change::Change as Asked;
use kprobed_client::api::{Probe, ProbeState};
use kprobed_document::{Document, changed, creation, document_of};

use super::super::*;
use super::documents;

/// A host that keeps probes and remembers requests, as the daemon does.
#[derive(Clone, Debug, Default)]
pub(super) struct Daemon {
    pub(super) probes: BTreeMap<String, Probe>,
    pub(super) requests: BTreeMap<String, Option<Probe>>,
    /// Changes that were carried out.
    pub(super) effects: Vec<String>,
    next: i64,
    pub(super) readings: u64,
    /// How often it was asked for its verdict alone.
    pub(super) verdicts: usize,
    pub(super) refuses: bool,
    /// It accepts when all are asked, and refuses when its wave is.
    pub(super) changes_its_mind: bool,
    pub(super) is_dead: bool,
    /// It says no more than this many readings of it are good.
    pub(super) good_readings: Option<u64>,
    pub(super) loses_counters: bool,
    /// Hundredths of one core that it uses.
    pub(super) used_percent: u64,
    /// It does not say what it uses.
    pub(super) hides_use: bool,
    /// It was started anew after so many readings.
    pub(super) restarts_after: Option<u64>,
}

/// A process that is to end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Killed;

pub(super) struct Simulated {
    pub(super) daemons: RefCell<Vec<Daemon>>,
    /// What is on the disk.
    pub(super) disk: RefCell<Option<Vec<u8>>>,
    /// How often that was written.
    pub(super) saves: Cell<usize>,
    /// Whether what is only to be shown is written too.
    pub(super) shows: Cell<bool>,
    /// Actions until the process ends.
    pub(super) left: Cell<Option<usize>>,
    pub(super) actions: Cell<usize>,
    time_ms: Cell<u64>,
    pub(super) told: RefCell<Vec<RolloutEvent>>,
    /// How often the state had been saved before the last event in `told`.
    saves_told: Cell<usize>,
}

fn probe(document: &Document, number: i64) -> Probe {
    let request = creation(document);
    Probe {
        name: document.name.clone(),
        uid: number,
        etag: format!("e{number}"),
        definition: request.definition,
        enabled: request.enabled,
        filter: request.filter,
        labels: request.labels,
        description: request.description,
        owner: request.owner,
        on_kernel_change: request.on_kernel_change,
        state: if document.enabled { ProbeState::Armed } else { ProbeState::Disabled }.into(),
        ..Probe::default()
    }
}

impl Daemon {
    /// `b` has another definition, another label and is on; `same` is as it should be; `a` is not
    /// there.
    pub(super) fn new() -> Self {
        let text = "\
probe: kprobes/b
definition: p:kprobes/b vfs_write old=$arg2
enabled: true
labels: {team: net, tier: '2'}
filter: old == 3
---
probe: kprobes/same
definition: p:kprobes/same vfs_open
enabled: true
---
probe: kprobes/other
definition: p:kprobes/other vfs_close
enabled: true
";
        let found = kprobed_document::read(text).unwrap();
        let probes: BTreeMap<_, _> = found
            .iter()
            .zip(1..)
            .map(|(entry, number)| (entry.document.name.clone(), probe(&entry.document, number)))
            .collect();
        Self { probes, next: 10, ..Self::default() }
    }

    /// What people would see of it: everything but numbers.
    pub(super) fn shown(&self) -> Vec<Document> {
        self.probes.values().map(document_of).collect()
    }

    fn make(&mut self, asked: &Asked) -> Result<ChangeDone, String> {
        let (id, name, etag) = match asked {
            Asked::Create(request) => {
                let name = request.definition.split([':', ' ']).nth(1).unwrap();
                (&request.request_id, name.to_owned(), String::new())
            }
            Asked::Update(request) => (&request.request_id, request.name.clone(), request.etag.clone()),
            Asked::Delete(request) => (&request.request_id, request.name.clone(), request.etag.clone()),
        };
        assert!(!id.is_empty());
        if let Some(known) = self.requests.get(id) {
            return Ok(known.clone().map_or(ChangeDone::Deleted, |probe| ChangeDone::Probe(Box::new(probe))));
        }
        let live = self.probes.get(&name).cloned();
        if !etag.is_empty() && live.as_ref().is_none_or(|live| live.etag != etag) {
            return Err(format!("`{name}` has changed"));
        }
        self.next += 1;
        let after = match asked {
            Asked::Create(_) if live.is_some() => return Err(format!("`{name}` exists")),
            Asked::Create(request) => {
                let document = documents().into_iter().find(|document| document.name == name).unwrap();
                assert_eq!(creation(&document).definition, request.definition);
                Some(probe(&document, self.next))
            }
            Asked::Update(request) => {
                let mut probe = live.unwrap();
                if let Some(definition) = &request.definition {
                    probe.definition.clone_from(definition);
                    probe.uid = self.next;
                }
                probe.enabled = request.enabled.unwrap_or(probe.enabled);
                probe.filter = request.filter.clone().unwrap_or(probe.filter);
                probe.labels.retain(|key, _| !request.remove_labels.contains(key));
                probe.labels.extend(request.set_labels.clone());
                probe.state = if probe.enabled { ProbeState::Armed } else { ProbeState::Disabled }.into();
                probe.etag = format!("e{}", self.next);
                Some(probe)
            }
            Asked::Delete(_) => None,
        };
        match &after {
            Some(probe) => self.probes.insert(name.clone(), probe.clone()),
            None => self.probes.remove(&name),
        };
        self.effects.push(id.clone());
        self.requests.insert(id.clone(), after.clone());
        Ok(after.map_or(ChangeDone::Deleted, |probe| ChangeDone::Probe(Box::new(probe))))
    }

    fn reading(&mut self, now_ms: u64) -> Reading {
        self.readings += 1;
        let is_good = self.good_readings.is_none_or(|good| self.readings <= good);
        let one = |probe: &Probe| ProbeReading {
            uid: probe.uid,
            etag: probe.etag.clone(),
            enabled: probe.enabled,
            is_as_wanted: true,
            is_tripped: false,
            state: "armed".to_owned(),
            counted_ms: Some(now_ms),
            hits: Some(self.readings * 100),
            misses: Some(if is_good { 0 } else { 50 }),
            ledger_hits: Some(self.readings * 100),
            lost: if self.loses_counters { None } else { Some(0) },
        };
        let is_anew = self.restarts_after.is_some_and(|after| self.readings > after);
        let uptime_ns = now_ms * 1_000_000;
        let spent = Spent { processor_ns: uptime_ns / 100 * self.used_percent, uptime_ns };
        Reading {
            boot_id: "b".to_owned(),
            daemon_start_ms: if is_anew { 2 } else { 1 },
            spent: (!self.hides_use).then_some(spent),
            failed_checks: BTreeSet::from(["ever".to_owned()]),
            probes: self.probes.values().map(|probe| (probe.name.clone(), one(probe))).collect(),
            others_tripped: BTreeMap::new(),
        }
    }

    fn verdict(&self, refuses: bool) -> Verdict {
        let planned = documents().into_iter().map(|document| {
            let live = self.probes.get(&document.name).cloned();
            let change = match &live {
                None => Some(Asked::Create(creation(&document))),
                Some(live) => {
                    let wanted = creation(&document).definition;
                    let definition = (wanted != live.definition).then_some(wanted);
                    changed(&document, live, definition).map(Asked::Update)
                }
            };
            PlannedProbe { name: document.name, live, change }
        });
        let refusals = if refuses { vec!["not here".to_owned()] } else { Vec::new() };
        Verdict { kernel: "6.1".to_owned(), planned: planned.collect(), refusals }
    }

    fn answer(&mut self, ask: &HostQuery, now_ms: u64) -> Result<HostAnswer, HostFailure> {
        if self.is_dead {
            return Err(HostFailure { is_refusal: false, message: "connection refused".to_owned() });
        }
        match ask {
            HostQuery::Judge => {
                self.verdicts += 1;
                Ok(HostAnswer::Judged(Box::new(self.verdict(self.refuses))))
            }
            HostQuery::Look => {
                let verdict = self.verdict(self.refuses || self.changes_its_mind);
                let reading = self.reading(now_ms);
                Ok(HostAnswer::Inspected(Box::new(Inspection { verdict, reading })))
            }
            HostQuery::Make(changes) => {
                let kept = self.clone();
                let made: Result<Vec<_>, _> = changes.iter().map(|change| self.make(change)).collect();
                made.map(HostAnswer::Made).map_err(|message| {
                    *self = kept;
                    HostFailure { is_refusal: true, message }
                })
            }
            HostQuery::Read => Ok(HostAnswer::Read(Box::new(self.reading(now_ms)))),
            HostQuery::Probes => Ok(HostAnswer::Probes(self.probes.values().cloned().collect())),
        }
    }
}

impl Simulated {
    pub(super) fn new(hosts: usize) -> Self {
        Self {
            daemons: RefCell::new((0..hosts).map(|_| Daemon::new()).collect()),
            disk: RefCell::new(None),
            saves: Cell::new(0),
            shows: Cell::new(false),
            left: Cell::new(None),
            actions: Cell::new(0),
            time_ms: Cell::new(0),
            told: RefCell::new(Vec::new()),
            saves_told: Cell::new(0),
        }
    }

    /// Counts an action that was done, after which the process may end.
    fn acted(&self) -> Result<(), Killed> {
        self.actions.set(self.actions.get() + 1);
        match self.left.get() {
            Some(1) => Err(Killed),
            left => {
                self.left.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }

    pub(super) fn shown(&self) -> Vec<Vec<Document>> {
        self.daemons.borrow().iter().map(Daemon::shown).collect()
    }

    /// The events that were told, by name.
    pub(super) fn events(&self) -> String {
        self.told.borrow().iter().map(|one| one.event).collect::<Vec<_>>().join(" ")
    }
}

impl World for Simulated {
    type Error = Killed;

    async fn ask(
        &self,
        state: &mut State,
        asks: Vec<(usize, HostQuery)>,
        said: &mut AnswerHandler<'_>,
    ) -> Result<(), Killed> {
        for (index, ask) in asks {
            let is_kept = ask.is_kept();
            if let HostQuery::Make(changes) = &ask {
                // Nothing is sent that is not on the disk.
                let disk = State::decode(self.disk.borrow().as_ref().unwrap()).unwrap();
                let host = &disk.hosts[index];
                let kept: Vec<_> = host
                    .changes
                    .iter()
                    .chain(&host.undo)
                    .map(|one| recorded_change::decoded(one).unwrap())
                    .collect();
                assert!(changes.iter().all(|change| kept.contains(change)));
            }
            let answer = self.daemons.borrow_mut()[index].answer(&ask, self.time_ms.get());
            self.acted()?;
            said(state, index, answer);
            if is_kept {
                self.save(state)?;
            }
        }
        Ok(())
    }

    fn save(&self, state: &State) -> Result<(), Killed> {
        let bytes = state.encode().unwrap();
        assert_eq!(&State::decode(&bytes).unwrap(), state);
        *self.disk.borrow_mut() = Some(bytes);
        self.saves.set(self.saves.get() + 1);
        self.acted()
    }

    fn show(&self, state: &State) -> Result<(), Killed> {
        if self.shows.get() { self.save(state) } else { Ok(()) }
    }

    fn tell(&self, happened: &RolloutEvent) -> Result<(), Killed> {
        // No event is reported before the state after it is on the disk.
        assert!(self.saves_told.replace(self.saves.get()) < self.saves.get());
        self.told.borrow_mut().push(happened.clone());
        self.acted()
    }

    async fn wait(&self, time: Duration) -> Result<(), Killed> {
        self.time_ms.set(self.time_ms.get() + u64::try_from(time.as_millis()).unwrap());
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.time_ms.get()
    }
}
