//! Roll-outs over simulated hosts: what they do when all is well, when a host fails, and when the process ends after each of its actions.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kprobed_client::api::probe_change::Change as Asked;
use kprobed_client::api::{Probe, ProbeState};
use kprobed_document::{Document, changed, creation, document_of};
use proptest::prelude::*;

use super::state::FormError;
use super::*;

const DOCUMENTS: &str = "\
probe: kprobes/a
definition: p:kprobes/a vfs_read
enabled: true
---
probe: kprobes/b
definition: p:kprobes/b vfs_write new=$arg1
enabled: false
labels: {team: storage}
---
probe: kprobes/same
definition: p:kprobes/same vfs_open
enabled: true
";

/// A host that keeps probes and remembers requests, as the daemon does.
#[derive(Clone, Debug, Default)]
struct Daemon {
    probes: BTreeMap<String, Probe>,
    requests: BTreeMap<String, Option<Probe>>,
    /// Changes that were carried out.
    effects: Vec<String>,
    next: i64,
    readings: u64,
    refuses: bool,
    is_dead: bool,
    /// It says no more than this many readings of it are good.
    good_readings: Option<u64>,
    loses_counters: bool,
}

/// A process that is to end.
#[derive(Debug, PartialEq, Eq)]
struct Killed;

struct Simulated {
    daemons: RefCell<Vec<Daemon>>,
    /// What is on the disk.
    disk: RefCell<Option<Vec<u8>>>,
    /// Actions until the process ends.
    left: Cell<Option<usize>>,
    actions: Cell<usize>,
    time_ms: Cell<u64>,
    pause: Cell<bool>,
    told: RefCell<Vec<String>>,
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

fn documents() -> Vec<Document> {
    kprobed_document::read(DOCUMENTS).unwrap().into_iter().map(|entry| entry.document).collect()
}

impl Daemon {
    /// `b` has another definition, another label and is on; `same` is as it should be; `a` is not there.
    fn new() -> Self {
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
    fn shown(&self) -> Vec<Document> {
        self.probes.values().map(document_of).collect()
    }

    fn make(&mut self, asked: &Asked) -> Result<Done, String> {
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
            return Ok(known.clone().map_or(Done::Deleted, |probe| Done::Probe(Box::new(probe))));
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
        Ok(after.map_or(Done::Deleted, |probe| Done::Probe(Box::new(probe))))
    }

    fn reading(&mut self, now_ms: u64) -> Reading {
        self.readings += 1;
        let is_good = self.good_readings.is_none_or(|good| self.readings <= good);
        let one = |probe: &Probe| ProbeReading {
            uid: probe.uid,
            etag: probe.etag.clone(),
            enabled: probe.enabled,
            is_as_wanted: true,
            state: "armed".to_owned(),
            counted_ms: Some(now_ms),
            hits: Some(self.readings * 100),
            misses: Some(if is_good { 0 } else { 50 }),
            ledger_hits: Some(self.readings * 100),
            lost: if self.loses_counters { None } else { Some(0) },
        };
        Reading {
            boot_id: "b".to_owned(),
            daemon_start_ms: 1,
            failed_checks: BTreeSet::from(["ever".to_owned()]),
            probes: self.probes.values().map(|probe| (probe.name.clone(), one(probe))).collect(),
        }
    }

    fn answer(&mut self, ask: &Ask, now_ms: u64) -> Result<Said, Trouble> {
        if self.is_dead {
            return Err(Trouble { is_refusal: false, message: "connection refused".to_owned() });
        }
        match ask {
            Ask::Look => {
                let planned = documents().into_iter().map(|document| {
                    let live = self.probes.get(&document.name).cloned();
                    let change = match &live {
                        None => Some(Asked::Create(creation(&document))),
                        Some(live) => {
                            let Asked::Create(request) = Asked::Create(creation(&document)) else {
                                unreachable!()
                            };
                            let definition =
                                (request.definition != live.definition).then_some(request.definition);
                            changed(&document, live, definition).map(Asked::Update)
                        }
                    };
                    Planned { name: document.name, live, change }
                });
                let planned = planned.collect();
                let refusals = if self.refuses { vec!["not here".to_owned()] } else { Vec::new() };
                let reading = self.reading(now_ms);
                Ok(Said::Looked(Box::new(Looked { kernel: "6.1".to_owned(), reading, planned, refusals })))
            }
            Ask::Make(changes) => {
                let kept = self.clone();
                let made: Result<Vec<_>, _> = changes.iter().map(|change| self.make(change)).collect();
                made.map(Said::Made).map_err(|message| {
                    *self = kept;
                    Trouble { is_refusal: true, message }
                })
            }
            Ask::Read => Ok(Said::Read(Box::new(self.reading(now_ms)))),
            Ask::Probes => Ok(Said::Probes(self.probes.values().cloned().collect())),
        }
    }
}

impl Simulated {
    fn new(hosts: usize) -> Self {
        Self {
            daemons: RefCell::new((0..hosts).map(|_| Daemon::new()).collect()),
            disk: RefCell::new(None),
            left: Cell::new(None),
            actions: Cell::new(0),
            time_ms: Cell::new(0),
            pause: Cell::new(false),
            told: RefCell::new(Vec::new()),
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

    fn shown(&self) -> Vec<Vec<Document>> {
        self.daemons.borrow().iter().map(Daemon::shown).collect()
    }
}

impl World for Simulated {
    type Error = Killed;

    async fn ask(
        &self,
        state: &mut State,
        asks: Vec<(usize, Ask)>,
        said: &mut Heard<'_>,
    ) -> Result<(), Killed> {
        for (index, ask) in asks {
            if let Ask::Make(changes) = &ask {
                // Nothing is sent that is not on the disk.
                let disk = State::decode(self.disk.borrow().as_ref().unwrap()).unwrap();
                let host = &disk.hosts[index];
                let kept: Vec<_> =
                    host.changes.iter().chain(&host.undo).map(|one| plan::decoded(one).unwrap()).collect();
                assert!(changes.iter().all(|change| kept.contains(change)));
            }
            let answer = self.daemons.borrow_mut()[index].answer(&ask, self.time_ms.get());
            self.acted()?;
            said(state, index, answer);
            self.save(state)?;
        }
        Ok(())
    }

    fn save(&self, state: &State) -> Result<(), Killed> {
        let bytes = state.encode().unwrap();
        assert_eq!(&State::decode(&bytes).unwrap(), state);
        *self.disk.borrow_mut() = Some(bytes);
        self.acted()
    }

    fn tell(&self, happened: &Happened) -> Result<(), Killed> {
        self.told.borrow_mut().push(happened.event.clone());
        Ok(())
    }

    async fn wait(&self, time: Duration) -> Result<(), Killed> {
        self.time_ms.set(self.time_ms.get() + u64::try_from(time.as_millis()).unwrap());
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.time_ms.get()
    }

    fn is_pause_asked(&self) -> bool {
        self.pause.get()
    }
}

fn state(hosts: usize, waves: &str) -> State {
    let setting = Setting {
        documents: DOCUMENTS.to_owned(),
        waves: waves.to_owned(),
        gates: Gates::with(&[]),
        soak_ms: 1000,
        on_failure: OnFailure::Undo,
        tolerated: 0,
    };
    let mut all: Vec<_> =
        (0..hosts).map(|number| Host::new(format!("h{number}"), format!("/h{number}"), None)).collect();
    for (wave, range) in waves.parse::<Waves>().unwrap().cut(hosts).unwrap().into_iter().enumerate() {
        for host in &mut all[range] {
            host.wave = wave;
        }
    }
    State::new("r".to_owned(), setting, all)
}

/// Futures of a simulated world are ready at once.
fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// A new process takes the state from the disk until it comes to an end.
fn go_on(world: &Simulated) -> Result<State, Stopped<Killed>> {
    let mut state = State::decode(world.disk.borrow().as_ref().unwrap()).unwrap();
    run(async {
        resume(world, &mut state)?;
        drive(world, &mut state).await
    })
    .map(|()| state)
}

/// The whole without a disturbance.
fn whole(world: &Simulated, mut state: State) -> State {
    run(async {
        begin(world, &mut state).unwrap();
        drive(world, &mut state).await.unwrap();
    });
    state
}

#[test]
fn all_waves_pass_and_nothing_else_is_touched() {
    let world = Simulated::new(5);
    let end = whole(&world, state(5, "1,40%,100%"));
    assert_eq!(end.phase, Phase::Done);
    let waves = "started intended changed passed intended changed passed intended changed passed done";
    assert_eq!(world.told.borrow().join(" "), waves);
    for daemon in &*world.daemons.borrow() {
        let mut wanted = documents();
        wanted.push(document_of(&Daemon::new().probes["kprobes/other"]));
        let mut is = daemon.shown();
        wanted.sort_by(|a, b| a.name.cmp(&b.name));
        is.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(is, wanted);
        assert_eq!(daemon.effects.len(), 2, "one was made, one changed, and one was as it should be");
    }
    // Once more: there is nothing to do, and all hosts are watched.
    world.told.borrow_mut().clear();
    let again = whole(&world, State { id: "s".to_owned(), ..state(5, "100%") });
    assert_eq!((again.phase, world.daemons.borrow()[0].effects.len()), (Phase::Done, 2));
}

#[test]
fn a_gate_that_fails_puts_all_hosts_back() {
    for (is_verdict, wave) in [(true, 1), (false, 1), (false, 0)] {
        let world = Simulated::new(4);
        let before = world.shown();
        let index = if wave == 0 { 0 } else { 2 };
        if is_verdict {
            world.daemons.borrow_mut()[index].refuses = true;
        } else {
            world.daemons.borrow_mut()[index].good_readings = Some(2);
        }
        let end = whole(&world, state(4, "1,100%"));
        assert_eq!((end.phase, end.wave), (Phase::Undone, wave), "{}", end.reason);
        assert_eq!(world.shown(), before);
        let reason =
            if is_verdict { "the change is refused: h2: not here" } else { "a gate is not passed: h" };
        assert!(end.reason.starts_with(reason), "{}", end.reason);
    }
    let world = Simulated::new(2);
    world.daemons.borrow_mut()[1].good_readings = Some(2);
    let mut pausing = state(2, "100%");
    pausing.setting.on_failure = OnFailure::Pause;
    let end = whole(&world, pausing);
    assert_eq!(end.phase, Phase::Paused);
    assert_eq!(world.daemons.borrow()[0].effects.len(), 2, "everything stays as it is");
}

#[test]
fn missing_data_pauses_and_resume_goes_on() {
    let world = Simulated::new(3);
    world.daemons.borrow_mut()[1].loses_counters = true;
    let end = whole(&world, state(3, "100%"));
    assert_eq!(end.phase, Phase::Paused);
    let reason = "data is missing: h1: loss of `kprobes/a`: the host does not know it";
    assert!(end.reason.starts_with(reason), "{}", end.reason);
    assert_eq!(go_on(&world).unwrap().phase, Phase::Paused, "still");
    world.daemons.borrow_mut()[1].loses_counters = false;
    assert_eq!(go_on(&world).unwrap().phase, Phase::Done);

    let world = Simulated::new(3);
    world.daemons.borrow_mut()[2].is_dead = true;
    let end = whole(&world, state(3, "1,100%"));
    assert_eq!((end.phase, end.reason.as_str()), (Phase::Paused, "no answer: h2: connection refused"));
    world.daemons.borrow_mut()[2].is_dead = false;
    assert_eq!(go_on(&world).unwrap().phase, Phase::Done);

    let world = Simulated::new(3);
    world.daemons.borrow_mut()[2].is_dead = true;
    let mut tolerant = state(3, "1,100%");
    tolerant.setting.tolerated = 1;
    let end = whole(&world, tolerant);
    assert_eq!((end.phase, end.hosts[2].step), (Phase::Done, Step::LeftOut));
}

#[test]
fn a_pause_is_heard_and_an_undo_finds_all_hosts() {
    let world = Simulated::new(3);
    let before = world.shown();
    world.pause.set(true);
    assert_eq!(whole(&world, state(3, "1,100%")).phase, Phase::Paused);
    assert_eq!(world.shown(), before);
    world.pause.set(false);
    let mut end = go_on(&world).unwrap();
    assert_eq!(end.phase, Phase::Done);
    world.daemons.borrow_mut()[1].is_dead = true;
    take_back(&world, &mut end, "wished".to_owned()).unwrap();
    run(drive(&world, &mut end)).unwrap();
    assert_eq!(end.phase, Phase::Undoing, "a host is missing");
    assert_eq!(
        end.hosts.iter().map(|host| host.step == Step::Undone).collect::<Vec<_>>(),
        [true, false, true]
    );
    world.daemons.borrow_mut()[1].is_dead = false;
    assert_eq!(go_on(&world).unwrap().phase, Phase::Undone);
    assert_eq!(world.shown(), before);
}

#[test]
fn what_someone_else_has_changed_is_left_alone() {
    let world = Simulated::new(2);
    let mut end = whole(&world, state(2, "100%"));
    {
        let mut daemons = world.daemons.borrow_mut();
        let probe = daemons[0].probes.get_mut("kprobes/b").unwrap();
        (probe.etag, probe.filter) = ("theirs".to_owned(), "new == 7".to_owned());
    }
    take_back(&world, &mut end, String::new()).unwrap();
    run(drive(&world, &mut end)).unwrap();
    assert_eq!(end.phase, Phase::Undoing);
    assert!(
        end.hosts[0].note.contains("`kprobes/b` was changed by someone else since"),
        "{}",
        end.hosts[0].note
    );
    assert_eq!(world.daemons.borrow()[0].probes["kprobes/b"].filter, "new == 7");
    assert_eq!(world.daemons.borrow()[1].shown(), Daemon::new().shown());
}

/// Ends the process after each of its actions in turn, lets another one go on, and compares with a run that was not disturbed.
fn killed_everywhere(prepare: fn(&Simulated), waves: &str) -> usize {
    let undisturbed = Simulated::new(4);
    prepare(&undisturbed);
    let wanted = whole(&undisturbed, state(4, waves));
    let actions = undisturbed.actions.get();
    for at in 1..actions {
        let world = Simulated::new(4);
        prepare(&world);
        let mut first = state(4, waves);
        world.save(&first).unwrap();
        world.left.set(Some(at));
        let killed = run(drive(&world, &mut first));
        if killed.is_ok() {
            continue;
        }
        drop(first);
        world.left.set(None);
        let end = go_on(&world).unwrap();
        assert_eq!(
            (end.phase, end.wave),
            (wanted.phase, wanted.wave),
            "killed after {at} of {actions}: {}",
            end.reason
        );
        assert_eq!(world.shown(), undisturbed.shown(), "killed after {at} of {actions}");
        for (host, (is, was)) in world.daemons.borrow().iter().zip(&*undisturbed.daemons.borrow()).enumerate()
        {
            assert_eq!(is.effects.len(), was.effects.len(), "host {host}, killed after {at} of {actions}");
        }
    }
    actions
}

#[test]
fn a_process_that_ends_at_any_point_is_followed_by_another_one() {
    assert!(killed_everywhere(|_world| (), "1,50%,100%") > 60);
    let bad = |world: &Simulated| world.daemons.borrow_mut()[2].good_readings = Some(1);
    assert!(killed_everywhere(bad, "1,100%") > 40);
    let refuses = |world: &Simulated| world.daemons.borrow_mut()[3].refuses = true;
    assert!(killed_everywhere(refuses, "1,50%,100%") > 40);
}

#[test]
fn a_request_that_the_host_has_forgotten_is_not_made_twice() {
    let undisturbed = Simulated::new(1);
    whole(&undisturbed, state(1, "100%"));
    for at in 1..undisturbed.actions.get() {
        let world = Simulated::new(1);
        let mut first = state(1, "100%");
        world.save(&first).unwrap();
        world.left.set(Some(at));
        if run(drive(&world, &mut first)).is_ok() {
            continue;
        }
        world.left.set(None);
        world.daemons.borrow_mut()[0].requests.clear();
        let end = go_on(&world).unwrap();
        assert_eq!(end.phase, Phase::Done, "killed after {at}: {}", end.reason);
        assert_eq!(world.daemons.borrow()[0].effects.len(), 2, "killed after {at}");
        assert_eq!(world.shown(), undisturbed.shown());
    }
}

#[test]
fn another_version_and_damage_are_named() {
    let good = String::from_utf8(state(2, "1,100%").encode().unwrap()).unwrap();
    let problem = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        State::decode(good.replacen(from, to, 1).as_bytes()).unwrap_err()
    };
    assert_eq!(problem("\"format\": 1", "\"format\": 2"), FormError::Version { found: 2 });
    assert!(matches!(problem("\"format\": 1", "\"form\": 1"), FormError::Form(_)));
    assert!(matches!(problem("\"tolerated\"", "\"tolerates\""), FormError::Form(_)));
    assert!(matches!(problem("loss<=0.1%", "loss<0.1%"), FormError::Form(_)));
    assert!(matches!(problem("\"h1\"", "\"h0\""), FormError::Damaged(_)));
    assert!(matches!(problem("\"/h1\"", "\"h1\""), FormError::Damaged(_)));
    assert!(matches!(problem("probe: kprobes/a", "prob: kprobes/a"), FormError::Damaged(_)));
    assert!(matches!(problem("\"wave\": 0", "\"wave\": 9"), FormError::Damaged(_)));
}

#[test]
fn one_process_drives_a_state() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/rollout.json");
    let file = StateFile::lock(&path).unwrap();
    assert!(matches!(StateFile::lock(&path), Err(StateError::InUse(_))));
    file.write(&state(2, "100%")).unwrap();
    assert!(matches!(StateFile::lock(&path), Err(StateError::InUse(_))));
    assert_eq!(StateFile::read(&path).unwrap(), state(2, "100%"));
    drop(file);
    StateFile::lock(&path).unwrap();
    assert!(matches!(StateFile::read(&directory.path().join("absent")), Err(StateError::Read { .. })));
}

proptest! {
    #[test]
    fn no_bytes_are_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        State::decode(&bytes).ok();
    }

    #[test]
    fn a_damaged_state_is_refused_or_read_and_never_driven_blindly(
        at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(),
    ) {
        let world = Simulated::new(2);
        let end = whole(&world, state(2, "1,100%"));
        let mut bytes = end.encode().unwrap();
        let place = at.index(bytes.len());
        bytes[place] = byte;
        if let Ok(state) = State::decode(&bytes) {
            // What is taken can be written and read again.
            prop_assert_eq!(State::decode(&state.encode().unwrap()).unwrap(), state);
        }
        bytes.truncate(cut.index(bytes.len() - 2));
        prop_assert!(State::decode(&bytes).is_err());
    }
}
