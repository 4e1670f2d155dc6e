//! Simulated hosts, disk and clock for tests of roll-outs.
//!
//! Owns what a daemon would do, and when the process ends. In every test it checks that each
//! request and each reported event is on the disk before.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use kprobed_client::api::probe_change::Change as Asked;
use kprobed_client::api::{KernelChange, Probe, ProbeState};
use kprobed_document::{Document, changed, creation, document_of};

use super::super::*;
use super::documents;

/// A host that keeps probes and remembers requests, as the daemon does.
#[derive(Clone, Debug, Default)]
pub(super) struct Daemon {
    pub(super) probes: BTreeMap<String, Probe>,
    /// Those that it had at the beginning.
    pub(super) begun: BTreeMap<String, Probe>,
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
    /// Lost events and hits of its probes since the change.
    pub(super) lost: [u64; 2],
    /// It carries changes out, and does not answer.
    pub(super) hides_answers: bool,
    /// It has disarmed another probe for a budget that they share.
    pub(super) pushes_out: bool,
    /// A check of `kprobectl doctor` fails that did not.
    pub(super) is_ill: bool,
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
        lease: request.lease,
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
        Self { begun: probes.clone(), probes, next: 10, ..Self::default() }
    }

    /// What people would see of it: everything but numbers.
    pub(super) fn shown(&self) -> Vec<Document> {
        self.probes.values().map(document_of).collect()
    }

    fn make(&mut self, asked: &Asked) -> Result<Option<Probe>, String> {
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
            return Ok(known.clone());
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
                probe.description = request.description.clone().unwrap_or(probe.description);
                probe.owner = request.owner.clone().unwrap_or(probe.owner);
                if let Some(lease) = &request.lease {
                    probe.lease = lease.duration.is_some().then(|| lease.clone());
                }
                if request.on_kernel_change() != KernelChange::Unspecified {
                    probe.on_kernel_change = request.on_kernel_change;
                }
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
        Ok(after)
    }

    fn reading(&mut self, now_ms: u64) -> Reading {
        self.readings += 1;
        let is_good = self.good_readings.is_none_or(|good| self.readings <= good);
        let [lost, hits] = self.lost;
        let one = |probe: &Probe| ProbeReading {
            uid: probe.uid,
            etag: probe.etag.clone(),
            enabled: probe.enabled,
            is_as_wanted: true,
            state: "armed".to_owned(),
            counted_ms: Some(now_ms),
            hits: Some(self.readings * 100),
            misses: Some(if is_good { 0 } else { 50 }),
            ledger_hits: Some(self.readings * 100 + hits),
            lost: if self.loses_counters { None } else { Some(lost) },
        };
        let is_anew = self.restarts_after.is_some_and(|after| self.readings > after);
        let checks = if self.is_ill { &["ever", "new"][..] } else { &["ever"] };
        Reading {
            boot_id: "b".to_owned(),
            daemon_start_ms: if is_anew { 2 } else { 1 },
            failed_checks: checks.iter().map(|check| (*check).to_owned()).collect(),
            tripped: self.pushes_out.then(|| (99, "`x/y` is tripped: why".to_owned())).into_iter().collect(),
            probes: self.probes.values().map(|probe| (probe.name.clone(), one(probe))).collect(),
        }
    }

    /// What would make a probe as its document says.
    fn change(&self, document: &Document) -> Option<Asked> {
        let Some(live) = self.probes.get(&document.name) else {
            return Some(Asked::Create(creation(document)));
        };
        let wanted = creation(document).definition;
        let definition = (wanted != live.definition).then_some(wanted);
        changed(document, live, definition).map(Asked::Update)
    }

    fn plan(&mut self, documents: &[Document], is_wave: bool, now_ms: u64) -> Result<Plan, HostFailure> {
        self.answers()?;
        self.verdicts += usize::from(!is_wave);
        let reading = if is_wave { self.reading(now_ms) } else { Reading::default() };
        let mut plan = Plan { kernel: "6.1".to_owned(), reading, ..Plan::default() };
        for document in documents {
            plan.add(&document.name, self.probes.get(&document.name), self.change(document).is_some());
        }
        if self.refuses || is_wave && self.changes_its_mind {
            plan.refusals.push("not here".to_owned());
        }
        Ok(plan)
    }

    fn apply(&mut self, targets: &[Target]) -> Result<BTreeMap<String, Armed>, HostFailure> {
        self.answers()?;
        let changes = targets.iter().map(|target| self.change(&target.document)).collect();
        let (kept, mut live) = (self.clone(), self.probes.clone());
        for request in requests(targets, &self.probes, changes)? {
            let name = match &request {
                Asked::Create(request) => request.definition.split([':', ' ']).nth(1).unwrap().to_owned(),
                Asked::Update(request) => request.name.clone(),
                Asked::Delete(request) => request.name.clone(),
            };
            match self.make(&request) {
                Ok(Some(probe)) => drop(live.insert(name, probe)),
                Ok(None) => drop(live.remove(&name)),
                Err(message) => {
                    *self = kept;
                    return Err(HostFailure::Refused(message));
                }
            }
        }
        if self.hides_answers {
            return Err(silent("no answer within 1s"));
        }
        settled(targets, &live)
    }

    fn answers(&self) -> Result<(), HostFailure> {
        if self.is_dead { Err(silent("connection refused")) } else { Ok(()) }
    }
}

fn silent(message: &str) -> HostFailure {
    HostFailure::Silent(message.to_owned())
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

    /// One host with the probe of a document.
    pub(super) fn over(document: &Document) -> Self {
        let world = Self::new(1);
        let probes = BTreeMap::from([(document.name.clone(), probe(document, 1))]);
        world.daemons.borrow_mut()[0] =
            Daemon { begun: probes.clone(), probes, next: 10, ..Daemon::default() };
        world
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

    /// Nothing is sent before the disk says what was there, and which way it goes.
    fn check_disk(&self, index: usize, targets: &[Target]) {
        let disk = State::decode(self.disk.borrow().as_ref().unwrap()).unwrap();
        let (host, daemon) = (&disk.hosts[index], &self.daemons.borrow()[index]);
        assert!(disk.phase == Phase::Undoing || host.step == Step::Intended, "{:?}", host.step);
        assert!(targets.iter().map(Target::name).eq(host.changes.keys()), "{targets:?}");
        let was = &daemon.begun;
        for (name, etag) in &host.changes {
            let before = host.before.iter().find(|document| document.name == *name);
            let was = was.get(name);
            assert_eq!(etag.is_some(), was.is_some());
            let lasting = was.filter(|probe| probe.state() != ProbeState::Expired);
            assert_eq!(before.cloned(), lasting.map(document_of), "{name}");
        }
    }

    /// The events that were told, by name.
    pub(super) fn events(&self) -> String {
        self.told.borrow().iter().map(|one| one.event).collect::<Vec<_>>().join(" ")
    }
}

impl World for Simulated {
    type Error = Killed;

    async fn plan(&self, state: &mut State, hosts: &[usize], note: Note<'_, Plan>) -> Result<(), Killed> {
        let documents = state.setting.documents.clone();
        for index in hosts {
            let is_wave = state.hosts[*index].step == Step::Accepted;
            let answer = self.daemons.borrow_mut()[*index].plan(&documents, is_wave, self.time_ms.get());
            self.acted()?;
            note(state, *index, answer);
            self.save(state)?;
        }
        Ok(())
    }

    async fn apply(
        &self,
        state: &mut State,
        targets: Vec<(usize, Vec<Target>)>,
        note: Note<'_, BTreeMap<String, Armed>>,
    ) -> Result<(), Killed> {
        for (index, targets) in targets {
            self.check_disk(index, &targets);
            let answer = self.daemons.borrow_mut()[index].apply(&targets);
            self.acted()?;
            note(state, index, answer);
            self.save(state)?;
        }
        Ok(())
    }

    async fn read(&self, state: &mut State, hosts: &[usize], note: Note<'_, Reading>) -> Result<(), Killed> {
        for index in hosts {
            let daemon = &mut self.daemons.borrow_mut()[*index];
            let answer = daemon.answers().map(|()| daemon.reading(self.time_ms.get()));
            self.acted()?;
            note(state, *index, answer);
            if self.shows.get() {
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

    fn tell(&self, happened: &RolloutEvent) -> Result<(), Killed> {
        // No event is reported before the state after it is on the disk.
        assert!(self.saves_told.replace(self.saves.get()) < self.saves.get());
        self.told.borrow_mut().push(happened.clone());
        self.acted()
    }

    fn soaks(&self, _done: Duration, _whole: Duration) {}

    async fn wait(&self, time: Duration) -> Result<(), Killed> {
        self.time_ms.set(self.time_ms.get() + u64::try_from(time.as_millis()).unwrap());
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.time_ms.get()
    }
}
